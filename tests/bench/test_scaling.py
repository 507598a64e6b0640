"""The scaling study: which jobs, what follows from their times, and one small study for real."""

from pathlib import Path

import pytest

from rn50.bench import curves
from rn50.bench.curves import Case, curve_rows, curves_outcome
from rn50.bench.harness import spread
from rn50.bench.scaling import MODELS, plan_curves
from rn50.config.load import load
from rn50.train.capabilities import check_supported
from tests.bench.conftest import Measure
from tests.conftest import Rn50


def test_efficiencies_are_of_the_same_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 images an epoch, on a machine of two cores."""
    monkeypatch.setattr(curves, "machine", lambda: {"cores": 2})
    run = load("quick", ["data.train_samples=400", "system.cores_per_rank=1"]).run
    rates = {1: [10.0, 20.0], 2: [20.0, 30.0], 4: [16.0, 40.0]}
    jobs = {}
    for ranks, values in rates.items():
        jobs[Case("resnet50", ranks, 8)] = values
    alone, two, four = rows = curve_rows(jobs, run)
    assert alone["epoch_s"] == spread([40, 20])
    assert two["speedup"] == spread([2, 1.5])
    assert two["images_per_s_a_rank"] == spread([10, 15])
    assert four["efficiency"]["median"] == pytest.approx(0.45)
    del jobs[Case("resnet50", 1, 8)]
    _, more = curve_rows(jobs, run)
    assert more["efficiency"] == spread([16 / 20 / 2, 40 / 30 / 2])
    outcome = curves_outcome({"b": rows}, run)
    assert [line[:2] for line in outcome.table] == [("b", "1"), ("b", "2"), ("b", "4")]
    assert list(outcome.ratios) == ["b, 2 ranks: efficiency", "b, 4 ranks: efficiency"]
    assert outcome.notes == ["4 ranks need 4 cores and share 2"]
    assert curves_outcome({"b": rows[:2]}, run).notes == []


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("config", ["quick", "dgx1_8"])
def test_the_networks_are_the_real_ones(model: str, config: str) -> None:
    small = ["data.crop_px=64", "data.eval_resize_px=72", "model.dtype=float32"]
    overrides = [*small, *MODELS[model], "system.device=cpu"]
    run = load(config, overrides).run
    check_supported(run)
    assert run.model.network == model.removesuffix("50")
    assert run.model.width == 64
    assert run.model.stem == "imagenet"
    assert run.model.depth == 50


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["scaling", "--models", "vgg"], ["--models", "resnet50", "vgg"]),
        (["scaling", "--ranks", "1,4,2"], ["--ranks", "rising", "1,4,2"]),
        (["scaling", "--batch", "1e3"], ["--batch", "whole numbers", "1e3"]),
        (["scaling", "model.dtype=float16"], ["model.dtype", "bfloat16", "float16"]),
        (["overlap", "smoke", "--ranks", "1"], ["two ranks", "found 1"]),
    ],
)
def test_bad_input_is_one_line(
    rn50: Rn50, arguments: list[str], expected: list[str]
) -> None:
    line = rn50.error("bench", *arguments)
    assert all(phrase in line for phrase in expected), line


def test_one_rank_count_is_throughput_and_more_are_two_curves() -> None:
    """The jobs that both curves share are equal, so they run once."""
    assert plan_curves(["resnet50"], [8, 16], [2]) == {
        "resnet50, batch 8": [Case("resnet50", 2, 8)],
        "resnet50, batch 16": [Case("resnet50", 2, 16)],
    }
    assert plan_curves(["resnet50"], [2], [1, 2]) == {
        "resnet50, batch 2": [Case("resnet50", 1, 2), Case("resnet50", 2, 2)],
        "resnet50, 4 images": [Case("resnet50", 1, 4), Case("resnet50", 2, 2)],
    }


@pytest.mark.slow
def test_a_small_study_needs_no_images(measure: Measure, tmp_path: Path) -> None:
    outcome, svg = measure(
        "bench scaling smoke --ranks 1,2 --batch 6 --passes 1 --rounds 2 --steps 2",
        "data.classes=300",
        "data.crop_px=48",
        f"data.path={tmp_path}/none",
    )
    assert outcome["figures"]["classes"] == 300
    assert outcome["figures"]["crop_px"] == 48
    alone, both, _, shared = outcome["rows"]
    assert (alone["ranks"], alone["global_batch"]) == (1, 6)
    assert (both["ranks"], both["global_batch"]) == (2, 12)
    assert both["images_per_s"] == shared["images_per_s"]
    for row in outcome["rows"]:
        assert row["images_per_s"]["n"] == 1
        fastest_s = 1281167 / row["images_per_s"]["max"]
        assert row["epoch_s"]["min"] == pytest.approx(fastest_s)
    assert "smoke, 12 images" in svg
    assert not (tmp_path / "none").exists()
