"""`rn50 predict` as a user meets it."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from rn50.config.benchmark import IMAGENET_EVAL_SAMPLES, IMAGENET_TRAIN_SAMPLES
from tests.compliance.log_text import Record
from tests.conftest import Rn50
from tests.report.conftest import write_config

pytestmark = pytest.mark.in_process


def write_log(
    file: Path,
    *,
    batch: int,
    step_s: float,
    samples: int = IMAGENET_TRAIN_SAMPLES,
    eval_samples: int = IMAGENET_EVAL_SAMPLES,
    benchmark: str = "resnet",
) -> Path:
    """A log of four blocks of four epochs with an evaluation of one second inside each."""
    lines = []
    clock_ms = 1_700_000_000_000

    def put(key: str, value: object = None, **metadata: object) -> None:
        lines.append(Record(key, value, clock_ms, **metadata).text("4.0.0") + "\n")

    put("submission_benchmark", benchmark)
    put("init_start")
    put("global_batch_size", batch)
    put("train_samples", samples)
    put("eval_samples", eval_samples)
    put("init_stop")
    put("run_start")
    clock_ms += 2_000
    for block in range(4):
        put("block_start", first_epoch_num=4 * block + 1, epoch_count=4)
        steps = 4 * math.ceil(samples / batch)
        clock_ms += round(steps * step_s * 1000)
        put("eval_start")
        clock_ms += 1_000
        put("eval_stop")
        put("block_stop")
    put("run_stop", status="success")
    file.write_text("".join(lines))
    return file


def answer(rn50: Rn50, options: str) -> dict[str, Any]:
    out = rn50.output("predict", *options.split(), "--json")
    return json.loads(out)


def test_a_config_is_answered_with_where_the_time_goes(rn50: Rn50) -> None:
    out = rn50.output("predict", "abci_2048_open")
    for phrase in (
        "images/s",
        "time to train",
        "straggler",
        "calibrated on",
        "first epoch excess",
        "GPU-hours",
        "20.9 s",  # initialisation
        "2.83e+18 FLOP",
        "chosen by the config",
    ):
        assert phrase in out
    assert not re.search(r"\d%", out)


def test_the_epochs_of_a_config_wait_for_its_next_evaluation(rn50: Rn50) -> None:
    size = "system.nodes=16 batch.per_rank=256"
    config = f"dgxh100_8 {size} schedule.length=90epochs"
    machine = "--system dgxh100 --gpus 128 --batch-per-gpu 256"
    epochs = []
    for options in (config, machine):
        figures = answer(rn50, options)
        epochs.append(figures["epochs"])
        assert figures["epochs_needed"] == pytest.approx(57.2, abs=0.1)
    assert epochs == [59, 57]
    out = rn50.output("predict", *config.split())
    assert "published runs needed 57.2; the config evaluates every 4" in out


def test_choices_change_the_answer(rn50: Rn50) -> None:
    size = "--system abci --gpus 1024 --batch-per-gpu 32"
    assert answer(rn50, f"{size} --epochs 60")["epochs"] == 60
    ring_ms, tree_ms, single_ms = (
        answer(rn50, f"{size} {choice}")["step_time_ms"]
        for choice in ("--algorithm ring", "--algorithm double_tree", "--groups single")
    )
    assert ring_ms > tree_ms != single_ms


@pytest.mark.slow
def test_one_plot_has_all_panels(rn50: Rn50, tmp_path: Path) -> None:
    plot = tmp_path / "all.svg"
    done = rn50("predict", "dgxh100_8", "--plot", str(plot))
    assert done.stdout.splitlines()[-1] == f"{plot}: drawn"
    for label in (
        "Time to train by GPUs",
        "Where a step goes",
        "One step",
        "a group is ready",
        ">efficiency<",  # the legend names the line of the right axis
    ):
        assert label in plot.read_text()
    done = rn50("predict", "dgxh100_8", "--plot", "-")
    assert done.stdout == plot.read_text()
    assert "time to train" in done.stderr


def test_calibration_from_logs_predicts_and_writes_the_machine(
    rn50: Rn50, tmp_path: Path
) -> None:
    small = write_log(tmp_path / "small.txt", batch=128, step_s=0.02)
    large = write_log(tmp_path / "large.txt", batch=256, step_s=0.032)
    out = tmp_path / "mine.yaml"
    calibrate = f"calibrate {small}:8 {large}:8 --system dgx1"
    fit = answer(rn50, calibrate)
    of_small, of_large = fit["runs"]
    assert of_small["step_s"] == pytest.approx(0.02)
    assert of_large["step_s"] == pytest.approx(0.032)
    assert of_small["startup_s"] == pytest.approx(2)
    assert of_small["evaluation_s"] == pytest.approx(1)
    assert fit["per_image_ms"] == pytest.approx((32 - 20) / 16, rel=0.05)
    assert "no residual" in rn50.output("predict", *calibrate.split())
    answer(rn50, f"{calibrate} --out {out}")
    calibrated = answer(rn50, f"--system {out} --gpus 8 --batch-per-gpu 32")
    assert calibrated["step_time_ms"] == pytest.approx(32, rel=1e-3)


RUN = ("seed=1", "system.nodes=1", "batch.per_rank=16")
CALIBRATE = ("predict", "calibrate", "--system", "dgxa100")


def write_run(
    folder: Path, *overrides: str, preset: str = "dgxa100_8", step_s: float = 0.02
) -> str:
    """A run's folder: its resolved config and a log of its batch."""
    run = write_config(folder, *RUN, *overrides, preset=preset).run
    write_log(
        folder / "result_0.txt",
        batch=run.system.world_size * run.batch.per_rank,
        step_s=step_s,
        samples=run.data.train_samples,
        eval_samples=run.data.eval_samples,
    )
    return str(folder)


@pytest.mark.parametrize(
    ("preset", "overrides", "expected"),
    [
        ("smoke", [], "model.depth tiny (not 50), model.width 16 (not 64)"),
        ("dgxa100_8", ["model.network=alexnet"], "model.network alexnet (not resnet)"),
        ("dgxa100_8", ["model.norm=none"], "model.norm none (not batch)"),
    ],
)
def test_calibration_refuses_what_is_no_resnet_50_at_224_px(
    rn50: Rn50, tmp_path: Path, preset: str, overrides: list[str], expected: str
) -> None:
    run = write_run(tmp_path / "run", *overrides, preset=preset)
    for argument in (run, f"{run}/result_0.txt:8"):
        error = rn50.error(*CALIBRATE, argument)
        refusal = "ResNet-50 v1.5 at 224 px expected, found "
        assert error.startswith(f"rn50: error: {run}/config.yaml: {refusal}{expected}")


def test_a_bare_log_that_cannot_be_imagenets_is_refused(
    rn50: Rn50, tmp_path: Path
) -> None:
    small = write_log(tmp_path / "small.txt", batch=64, step_s=0.1, samples=3200)
    ssd = write_log(tmp_path / "ssd.txt", batch=64, step_s=0.1, benchmark="ssd")
    for log, content in ((small, "resnet with 3200"), (ssd, "ssd with 1281167")):
        error = rn50.error(*CALIBRATE, f"{log}:2")
        assert f"rn50: error: {log}: submission_benchmark resnet with" in error
        assert f"expected, found {content}" in error


def test_runs_of_a_machine_of_their_own_need_no_system(
    rn50: Rn50, tmp_path: Path
) -> None:
    """Its network is in their config, and so is the precision that they computed in."""
    out = tmp_path / "mine.yaml"
    run, half = (
        write_run(
            tmp_path / dtype, "system.name=mine", f"model.dtype={dtype}", preset="base"
        )
        for dtype in ("float32", "bfloat16")
    )
    rn50.output("predict", "calibrate", run, "--out", str(out))
    assert "fp32:" in out.read_text()
    assert "name: mine" in out.read_text()
    for arguments in ((run, "--precision", "fp16"), (run, half)):
        error = rn50.error("predict", "calibrate", *arguments)
        assert "runs of one precision expected, found " in error


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--gpus 8", "CONFIG (before its overrides) or --system NAME alone expected"),
        ("--system abci", "--system without CONFIG needs --gpus"),
        ("abci_2048_open --system dgxa100 --gpus 12", "--gpus: a multiple of 8"),
        ("dgxa100_8 data.crop_px=192", "found data.crop_px 192 (not 224)"),
        ("calibrate FOLDER/none.txt:8", "none.txt: a log or a folder expected"),
        ("calibrate FOLDER/log.txt", "LOG:GPUS expected"),
        ("calibrate FOLDER/log.txt:8", "--system: the machine of a log expected"),
        ("calibrate FOLDER/log.txt:7 --system dgx1", "no multiple of 7"),
        ("calibrate FOLDER/log.txt:0", "from 1 expected, found 0"),
        ("dgx1_8 --plot /nowhere/a.svg", "/nowhere/a.svg: cannot write: no folder"),
    ],
)
def test_bad_input_is_one_clear_line(
    rn50: Rn50, tmp_path: Path, options: str, expected: str
) -> None:
    write_log(tmp_path / "log.txt", batch=128, step_s=0.02)
    arguments = [
        argument.replace("FOLDER", str(tmp_path)) for argument in options.split()
    ]
    assert expected in rn50.error("predict", *arguments)


def test_points_that_the_model_misses_are_warned_of(rn50: Rn50, tmp_path: Path) -> None:
    """The warning is in `--json` and on stderr; the points of DGX H100 are met."""
    file = tmp_path / "mine.yaml"
    point = "{gpus: 8, batch: 256, step_s: 0.2, source: mine}"
    file.write_text(f"base: dgxh100\nperformance: {{fp16: {{points: [{point}]}}}}\n")
    size = "--gpus 8 --batch-per-gpu 256 --json"
    done = rn50("predict", *f"--system {file} {size}".split())
    (missed,) = json.loads(done.stdout)["warnings"]
    start = "NVIDIA DGX H100 (mine.yaml): 8 x 256: 200.00 ms published, 1"
    assert missed.startswith(start)
    assert done.stderr == f"rn50: warning: {missed}\n"
    assert answer(rn50, f"--system dgxh100 {size}")["warnings"] == []


def test_fewer_ranks_of_a_recipe_leave_the_machine_as_fast(rn50: Rn50) -> None:
    size = "--system a100_pcie --gpus 1 --batch-per-gpu 200"
    recipe = answer(rn50, f"dgxa100_8 {size}")
    assert recipe["step_time_ms"] == answer(rn50, size)["step_time_ms"]
