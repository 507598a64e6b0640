import math
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rn50.config import benchmark
from rn50.config.load import Loaded, load
from rn50.config.machine import System
from rn50.config.names import PRESETS, list_presets
from rn50.config.plan import build_plan
from rn50.config.variants import optimizer_rule

SYSTEMS = sorted((PRESETS / "system").glob("*.yaml"))
CLOSED = [name for name in list_presets() if load(name).run.division == "closed"]
CLOSED_SGD = [name for name in CLOSED if load(name).run.optimizer.name == "sgd"]
CLOSED_LARS = [name for name in CLOSED if load(name).run.optimizer.name == "lars"]


def multiple_of(value: float, unit: float) -> bool:
    return math.isclose(value, round(value / unit) * unit, rel_tol=1e-9) and value > 0


def test_the_default_comes_first() -> None:
    assert list_presets()[0] == "quick"
    assert {"quick", "smoke", "cpu_small", "abci_2048_open", "dgx1_8"} <= set(list_presets())


@pytest.mark.parametrize("name", list_presets())
def test_preset_loads_and_can_be_planned(name: str) -> None:
    loaded = load(name)
    assert loaded.run.name == name
    assert build_plan(loaded.run).total_steps > 0


@pytest.mark.parametrize("name", [name for name in list_presets() if name != "base"])
def test_header_holds_the_command(name: str) -> None:
    header = []
    for line in (PRESETS / f"{name}.yaml").read_text().splitlines():
        if not line.startswith("#"):
            break
        header.append(line.lstrip("# "))
    assert header
    argument = "( quick)?" if name == "quick" else f" {name}"
    assert any(re.match(rf"\./run_and_time\.sh{argument}(\s|$)", line) for line in header)


@pytest.mark.parametrize("path", SYSTEMS, ids=lambda path: path.stem)
def test_a_system_file_speaks_of_the_machine_alone(path: Path) -> None:
    keys = set(YAML(typ="safe", pure=True).load(path))
    assert keys
    assert keys <= {*System.model_fields, "base"}


@pytest.mark.parametrize("name", CLOSED)
def test_closed_preset_keeps_what_the_division_fixes(name: str) -> None:
    run = load(name).run
    assert run.eval.period == 4
    assert run.eval.target >= 0.759
    assert run.schedule.end_lr == 1e-4
    assert run.schedule.power == 2
    assert run.model.label_smoothing in (0, 0.1)
    assert (run.model.bn_momentum, run.model.bn_epsilon) == (0.9, 1e-5)
    exponent = math.log2(run.optimizer.weight_decay / 1e-4)
    assert abs(exponent - round(exponent)) < 1e-5
    if build_plan(run).global_batch_size < 32_000 or run.optimizer.name == "sgd":
        assert run.optimizer.momentum == 0.9


@pytest.mark.parametrize("name", CLOSED_LARS)
def test_closed_lars_preset_keeps_the_references_eta_and_epsilon(name: str) -> None:
    rule = optimizer_rule(load(name).run.optimizer)
    assert (rule.eta, rule.epsilon) == (1e-3, 0)


@pytest.mark.parametrize("name", CLOSED_SGD)
def test_closed_sgd_preset_has_a_learning_rate_of_whole_thousandths(name: str) -> None:
    assert multiple_of(load(name).run.optimizer.base_lr, 0.001)


@pytest.mark.parametrize("name", [n for n in list_presets() if load(n).run.data.synthetic is None])
def test_presets_on_imagenet_take_the_benchmarks_counts(name: str) -> None:
    data = load(name).run.data
    assert (data.train_samples, data.eval_samples, data.classes) == (1_281_167, 50_000, 1000)


@pytest.mark.parametrize("name", [n for n in list_presets() if load(n).run.data.synthetic])
def test_the_drawn_set_is_the_set_the_preset_reads(name: str) -> None:
    data = load(name).run.data
    drawn = data.synthetic
    assert drawn is not None
    assert (drawn.train_samples, drawn.eval_samples, drawn.classes) == (
        data.train_samples,
        data.eval_samples,
        data.classes,
    )


def test_facts_of_the_benchmark() -> None:
    assert benchmark.IMAGENET_TRAIN_SAMPLES == 1_281_167
    assert benchmark.IMAGENET_EVAL_SAMPLES == 50_000
    assert benchmark.TARGET_ACCURACY == 0.759
    assert benchmark.EVAL_PERIOD_EPOCHS == 4
    assert benchmark.RULESETS[0] == "0.6.0"
    assert benchmark.RULESETS[-1] == "4.0.0"


def test_fujitsus_published_hyper_parameters() -> None:
    """mlcommons/training_results_v0.6, Fujitsu/benchmarks/resnet/implementations/mxnet,
    JobScripts/parameters."""
    loaded: Loaded = load("abci_2048_open")
    run = loaded.run
    assert run.division == "open"
    rule = optimizer_rule(run.optimizer)
    assert (run.optimizer.base_lr, run.optimizer.momentum, rule.eta) == (13, 0.96, 0.0025)
    assert (run.optimizer.weight_decay, rule.epsilon) == (5e-5, 1e-9)
    assert not rule.momentum_correction
    assert run.schedule.power == 2.2
    assert run.schedule.end_lr == pytest.approx(0.0025 * 13)
    assert (run.eval.period, run.eval.offset, run.eval.target) == (4, 1, 0.759)
    assert run.comm.groups == "cubic(3)"
