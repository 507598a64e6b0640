"""`rn50 predict` as a user meets it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rn50.config.benchmark import IMAGENET_EVAL_SAMPLES, IMAGENET_TRAIN_SAMPLES
from rn50.config.load import load
from tests.conftest import Rn50

pytestmark = pytest.mark.in_process
LINE = ':::MLLOG {{"time_ms": {time}, "event_type": "{kind}", "key": "{key}", "value": {value}, "metadata": {{{more}}}}}\n'  # noqa: E501


def write_log(
    file: Path,
    *,
    batch: int,
    step_s: float,
    samples: int = IMAGENET_TRAIN_SAMPLES,
    eval_samples: int = IMAGENET_EVAL_SAMPLES,
    blocks: int = 4,
    benchmark: str = "resnet",
) -> Path:
    """A log of blocks of four epochs with an evaluation of one second inside each."""
    clock = 1_700_000_000_000

    def line(
        key: str, kind: str = "POINT_IN_TIME", value: object = "null", more: str = ""
    ) -> str:
        return LINE.format(
            time=clock,
            kind=kind,
            key=key,
            value=value,
            more=more,
        )

    text = line("submission_benchmark", value=f'"{benchmark}"')
    text += line("init_start") + line("global_batch_size", value=batch)
    text += line("train_samples", value=samples) + line(
        "eval_samples", value=eval_samples
    )
    clock += 10_000
    text += line("init_stop") + line("run_start")
    clock += 2_000
    for block in range(blocks):
        text += line(
            "block_start", more=f'"first_epoch_num": {4 * block + 1}, "epoch_count": 4'
        )
        clock += round(4 * math.ceil(samples / batch) * step_s * 1000)
        text += line("eval_start")
        clock += 1_000
        text += line("eval_stop") + line("block_stop")
    text += line("run_stop", more='"status": "success"')
    file.write_text(text)
    return file


def test_a_config_is_answered_with_where_the_time_goes(rn50: Rn50) -> None:
    out = rn50.output("predict", "abci_2048_open")
    for word in (
        "step",
        "images/s",
        "time to train",
        "backward",
        "straggler",
        "calibrated on",
    ):
        assert word in out


def test_choices_change_the_answer(rn50: Rn50) -> None:
    base = [
        "predict",
        "--system",
        "abci",
        "--gpus",
        "1024",
        "--batch-per-gpu",
        "32",
        "--json",
    ]
    epochs = json.loads(rn50(*base, "--epochs", "60").stdout)
    assert epochs["epochs"] == 60
    ring = json.loads(rn50(*base, "--algorithm", "ring").stdout)
    tree = json.loads(rn50(*base, "--algorithm", "double_tree").stdout)
    assert ring["step_time_ms"] > tree["step_time_ms"]
    single = json.loads(rn50(*base, "--groups", "single").stdout)
    assert single["step_time_ms"] != tree["step_time_ms"]


@pytest.mark.slow
def test_one_plot_has_all_panels(rn50: Rn50, tmp_path: Path) -> None:
    plot = tmp_path / "all.svg"
    done = rn50("predict", "dgxh100_8", "--plot", str(plot))
    assert done.stdout.splitlines()[-1] == f"{plot}: drawn"
    for text in (
        "Time to train by GPUs",
        "Where a step goes",
        "One step",
        "a group is ready",
        ">efficiency<",  # the legend names the line of the right axis
    ):
        assert text in plot.read_text()
    done = rn50("predict", "dgxh100_8", "--plot", "-")
    assert done.stdout == plot.read_text()
    assert "time to train" in done.stderr


def test_calibration_from_logs_predicts_and_writes_the_machine(
    rn50: Rn50, tmp_path: Path
) -> None:
    small = write_log(tmp_path / "small.txt", batch=128, step_s=0.02)
    large = write_log(tmp_path / "large.txt", batch=256, step_s=0.032)
    out = tmp_path / "mine.yaml"
    logs = [f"{small}:8", f"{large}:8"]
    done = rn50(
        "predict",
        "calibrate",
        *logs,
        "--system",
        "dgx1",
        "--json",
    )
    fit = json.loads(done.stdout)
    assert [run["step_s"] for run in fit["runs"]] == [
        pytest.approx(0.02),
        pytest.approx(0.032),
    ]
    assert fit["runs"][0]["startup_s"] == pytest.approx(2)
    assert fit["runs"][0]["evaluation_s"] == pytest.approx(1)
    assert fit["per_image_ms"] == pytest.approx((32 - 20) / 16, rel=0.05)
    both = ["--gpus", "8", "--batch-per-gpu", "32"]
    rn50.output(
        "predict",
        "calibrate",
        *logs,
        "--system",
        "dgx1",
        "--out",
        str(out),
    )
    again = json.loads(rn50("predict", "--system", str(out), *both, "--json").stdout)
    assert again["step_time_ms"] == pytest.approx(32, rel=1e-3)


RUN = ("seed=1", "system.nodes=1", "batch.per_rank=16")


def write_run(
    folder: Path, *overrides: str, preset: str = "dgxa100_8", step_s: float = 0.02
) -> str:
    """A run's folder: its resolved config and a log of its batch."""
    folder.mkdir()
    run = load(preset, [*RUN, *overrides])
    ranks = run.run.system.world_size
    (folder / "config.yaml").write_text(run.to_yaml())
    write_log(
        folder / "result_0.txt",
        batch=ranks * run.run.batch.per_rank,
        step_s=step_s,
        samples=run.run.data.train_samples,
        eval_samples=run.run.data.eval_samples,
    )
    return str(folder)


@pytest.mark.parametrize(
    ("preset", "overrides", "expected"),
    [
        (
            "smoke",
            [],
            "model.depth tiny (not 50), model.width 16 (not 64), model.stem small ",
        ),
        (
            "dgxa100_8",
            ["model.network=alexnet"],
            "found model.network alexnet (not resnet)",
        ),
        ("dgxa100_8", ["model.norm=none"], "found model.norm none (not batch)"),
    ],
)
def test_calibration_refuses_what_is_no_resnet_50_at_224_px(
    rn50: Rn50, tmp_path: Path, preset: str, overrides: list[str], expected: str
) -> None:
    run = write_run(tmp_path / "run", *overrides, preset=preset)
    for argument in (run, f"{run}/result_0.txt:8"):
        error = rn50.error(
            "predict",
            "calibrate",
            argument,
            "--system",
            "dgxa100",
        )
        start = (
            f"rn50: error: {run}/config.yaml: ResNet-50 v1.5 at 224 px expected, found "
        )
        assert error.startswith(start)
        assert expected in error


def test_a_bare_log_that_cannot_be_imagenets_is_refused(
    rn50: Rn50, tmp_path: Path
) -> None:
    small = write_log(
        tmp_path / "small.txt",
        batch=64,
        step_s=0.1,
        samples=3200,
    )
    ssd = write_log(
        tmp_path / "ssd.txt",
        batch=64,
        step_s=0.1,
        benchmark="ssd",
    )
    for log, found in ((small, "resnet with 3200"), (ssd, "ssd with 1281167")):
        error = rn50.error(
            "predict",
            "calibrate",
            f"{log}:2",
            "--system",
            "dgxa100",
        )
        assert f"rn50: error: {log}: submission_benchmark resnet with" in error
        assert f"expected, found {found}" in error


def test_as_many_constants_as_runs_have_no_residual(rn50: Rn50, tmp_path: Path) -> None:
    calibrate = ["predict", "calibrate", "--system", "dgxa100"]
    one = write_run(tmp_path / "one")
    two = write_run(
        tmp_path / "two",
        "batch.per_rank=32",
        step_s=0.032,
    )
    done = rn50(*calibrate, one)
    assert "no residual: as many constants (per image) as runs" in done.stdout
    assert "off by" not in done.stdout
    done = rn50(*calibrate, one, two)
    assert "no residual: as many constants (fixed and per image) as runs" in done.stdout
    fit = json.loads(rn50(*calibrate, one, two, "--json").stdout)
    assert (fit["constants"], fit["residual"]) == (["fixed", "per_image"], None)
    slow = write_run(tmp_path / "slow", step_s=0.024)
    done = rn50(*calibrate, one, slow)
    assert "off by 9." in done.stdout
    assert "from 2 runs, which fixed per image" in done.stdout


def test_runs_of_a_machine_of_their_own_need_no_system(
    rn50: Rn50, tmp_path: Path
) -> None:
    """Its network is in their config, and so is the precision that they computed in."""
    out = tmp_path / "mine.yaml"
    own = ["system.name=mine", "model.dtype=float32"]
    run = write_run(tmp_path / "run", *own, preset="base")
    assert "no residual" in rn50("predict", "calibrate", run, "--out", str(out)).stdout
    assert "fp32:" in out.read_text()
    assert "name: mine" in out.read_text()
    done = rn50("predict", "calibrate", run, "--precision", "fp16")
    assert "runs of one precision expected, found fp16 and fp32" in done.stderr
    half = write_run(
        tmp_path / "half", "system.name=mine", "model.dtype=bfloat16", preset="base"
    )
    done = rn50("predict", "calibrate", run, half)
    assert "runs of one precision expected, found " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--gpus", "8"],
            "CONFIG (before its overrides) or --system NAME alone expected",
        ),
        (
            ["--system", "cray", "--gpus", "8", "--batch-per-gpu", "8"],
            "a YAML file or a machine",
        ),
        (["--system", "abci"], "--system without CONFIG needs --gpus"),
        (
            ["abci_2048_open", "--system", "dgxa100", "--gpus", "12"],
            "--gpus: a multiple of 8",
        ),
        (["dgxa100_8", "data.crop_px=192"], "found data.crop_px 192 (not 224)"),
        (["calibrate", "{folder}/none.txt:8"], "none.txt: a log or a folder expected"),
        (["calibrate", "{folder}/log.txt"], "LOG:GPUS expected"),
        (["calibrate", "{folder}/log.txt:7"], "no multiple of 7"),
        (["calibrate", "{folder}/log.txt:0"], "from 1 expected, found 0"),
        (
            ["dgx1_8", "--plot", "/nowhere/a.svg"],
            "/nowhere/a.svg: cannot write: no folder",
        ),
    ],
)
def test_bad_input_is_one_clear_line(
    rn50: Rn50, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    write_log(tmp_path / "log.txt", batch=128, step_s=0.02)
    words = (text.format(folder=tmp_path) for text in arguments)
    assert expected in rn50.error("predict", *words)


def test_points_that_the_model_misses_are_warned_of(rn50: Rn50, tmp_path: Path) -> None:
    """In `--json` and on stderr; the points of DGX H100 are met."""
    file = tmp_path / "mine.yaml"
    point = "{gpus: 8, batch: 256, step_s: 0.2, source: mine}"
    file.write_text(f"base: dgxh100\nperformance: {{fp16: {{points: [{point}]}}}}\n")
    size = ("--gpus", "8", "--batch-per-gpu", "256", "--json")
    done = rn50("predict", "--system", str(file), *size)
    (missed,) = json.loads(done.stdout)["warnings"]
    assert missed.startswith(f"{file}: 8 x 256: 200.00 ms published, 1")
    assert "modelled" in missed
    assert done.stderr == f"rn50: warning: {missed}\n"
    met = rn50("predict", "--system", "dgxh100", *size)
    assert json.loads(met.stdout)["warnings"] == []
    assert met.stderr == ""


def test_fewer_ranks_of_a_recipe_leave_the_machine_as_fast(rn50: Rn50) -> None:
    size = ("--system", "a100_pcie", "--gpus", "1", "--batch-per-gpu", "200", "--json")
    recipe, machine = (rn50("predict", *of, *size) for of in (("dgxa100_8",), ()))
    assert (
        json.loads(recipe.stdout)["step_time_ms"]
        == json.loads(machine.stdout)["step_time_ms"]
    )
