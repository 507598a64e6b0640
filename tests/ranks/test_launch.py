"""Real ranks through the real command: end to end and repeatable. Ends: tests/faults."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.compliance.official import check_officially
from rn50.config.load import load
from rn50.launch.launchers import build_job
from rn50.launch.supervisor import run_job
from tests import mpi
from tests.conftest import GOLDEN_LOG, Rn50, logged, metrics, read_json, stop_of
from tests.waiting import leave_nothing

pytestmark = pytest.mark.slow
BODIES = str(Path(__file__).with_name("rank_bodies.py"))


def shape(log: Path) -> list[tuple[str, object, dict[str, object]]]:
    """Events without what a clock, a machine or an edit changes."""
    events = []
    for key, value, metadata in logged(log.parent, log.name):
        if key == "eval_accuracy":
            value = None
        events.append((key, value, metadata))
    return events


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(mpi.LAUNCHER, marks=mpi.NEEDED),
        pytest.param("gloo", marks=[] if mpi.WHY_NOT else pytest.mark.nightly),
    ],
)
def test_smoke_from_images_to_a_clean_log(
    smoke_run: Callable[[str], Path], launcher: str
) -> None:
    folder = smoke_run(launcher)
    printed = (folder / "printed.txt").read_text()
    result = read_json(folder / "result.json")
    expected = {
        "status": "success",
        "ranks": 2,
        "global_batch_size": 20,
        "seed": 1,
        "config_sha256": load(folder / "config.yaml").sha256,
    }
    assert result.items() >= expected.items()
    assert 0.8 <= result["eval_accuracy"] < 1
    assert result["official_checker"]["verdict"] == "PASS"
    verdict = r"^RESULT success .*official_checker=PASS\(4\.0\.0\)"
    assert re.search(verdict, printed, re.M)
    assert re.search(r"epoch +\d.* images/s .* left$", printed, re.M)
    assert check_officially(folder / "result_0.txt", "4.0.0").messages == ()
    assert len(metrics(folder, "steps")) >= 10
    assert {"join ranks", "open connections", "epoch 1"} <= spans(folder).keys()
    # The five steps that were profiled, on both ranks: operators and Horovod's own.
    profiles = [folder / "profile" / name for name in ("rank_0", "rank_1")]
    for profile in profiles:
        assert "Convolution" in (profile / "mxnet.json").read_text()
    assert "allreduce.group" in (profiles[0] / "horovod.json").read_text()
    table = read_json(folder / "ranks.json")["ranks"]
    assert table["steps"] == [200, 200]
    assert len(set(table["host"])) == 1
    assert min(table["step_p50_ms"] + table["backward_p90_ms"]) > 0
    assert read_json(folder / "environment.json")["launcher"] == launcher
    assert read_json(folder / "origins.json")["seed"] == "command line"
    assert f"{result['eval_accuracy']:.4f}" in (folder / "report.html").read_text()
    assert not list(folder.glob("failure_*"))
    leave_nothing(folder)

    # Same events, values and order as the log kept in the repository, up to the clock. After an
    # intended change: copy the new result_0.txt over tests/golden/smoke_result_0.txt.
    events = shape(folder / "result_0.txt")
    golden = shape(GOLDEN_LOG)
    keys = [key for key, _, _ in golden]
    end = keys.index("block_stop") + 1
    assert events[:end] == golden[:end]
    assert events[-1] == golden[-1]


def spans(folder: Path) -> dict[str, dict[str, float]]:
    """The spans of rank 0's timeline, by name."""
    events = read_json(folder / "timeline.json")["traceEvents"]
    return {event["name"]: event for event in events if "dur" in event}


def body(name: str, out: Path, *overrides: str) -> list[str]:
    """The command of a rank that leaves its files in `out`."""
    config = out / "config.yaml"
    loaded = load("smoke", ["seed=1", *overrides])
    config.write_text(loaded.to_yaml())
    return [sys.executable, BODIES, name, str(config), "--out", str(out)]


def run_ranks(name: str, out: Path, *overrides: str) -> None:
    """Run ranks over Gloo, without what `rn50 launch` does before them and behind them."""
    command = body(name, out, *overrides)
    job, _ = build_job(load(out / "config.yaml").run, "gloo", command)
    run_job(job, "gloo", out)


def test_one_rank_with_twice_the_batch_trains_alike(
    small_data: Path, tmp_path: Path
) -> None:
    """The same images in every step, no batch norm: the loss curves agree.

    Tolerance 1e-3 of the loss at every one of 20 steps: only the order of float32 sums differs
    (measured: below 1e-5). A wrong share of the images or a wrong scale is off by 1e-1. Gradients
    are those of all ranks, also where their norms are recorded.
    """
    curves = []
    norms = []
    for ranks, batch in ((1, 20), (2, 10)):
        out = tmp_path / f"{ranks}"
        out.mkdir()
        run_ranks(
            "",
            out,
            f"system.ranks_per_node={ranks}",
            f"batch.per_rank={batch}",
            "model.norm=none",
            "optimizer.base_lr=0.004",
            "schedule.length=1 epochs",
            "eval.period=1",
            "eval.offset=0",
            "log.every=1 steps",
            "log.profile=norms",
            "schedule.warmup=10 steps",
            f"data.path={small_data}",
        )
        points = metrics(out, "train")
        curves.append([point["loss"] for point in points])
        first, *_ = metrics(out, "gradient_norm")
        norms.append(first["conv0_weight"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    of_one, of_two = curves
    assert len(of_one) == 20
    assert of_two == pytest.approx(of_one, abs=1e-3)
    assert (
        of_one[-1] < of_one[0] - 0.005
    )  # it learned: there was something to differ in


def test_nothing_is_on_another_device(tmp_path: Path, small_data: Path) -> None:
    """A run on cpu(1), which is not where arrays are made that name no device."""
    run_ranks(
        "OnSecondCpu",
        tmp_path,
        f"data.path={small_data}",
        "schedule.length=2 epochs",
        "eval.period=1",
        "eval.offset=0",
        "checkpoint.every=1 epochs",
        "eval.bn_stats=batch",
        "batch.changes=[{after_epoch: 1, per_rank: 10, active_ranks: 1}]",  # the second rank idles
        "model.loss_scale=dynamic",
        "optimizer.variant=nvidia",
        "comm.gradient_dtype=float16",
    )
    assert read_json(tmp_path / "result.json")["epochs"] == 2
    assert read_json(tmp_path / "ranks.json")["ranks"]["steps"] == [60, 20]
    assert list((tmp_path / "checkpoint").glob("step_*.ckpt"))


def test_a_stop_in_start_up_says_how_to_start_again(
    rn50: Rn50, small_data: Path
) -> None:
    process = rn50.start(
        "launch",
        "smoke",
        "seed=1",
        "--launcher",
        "gloo",
        f"data.path={small_data}",
        f"system.results={rn50.results}",
    )
    assert any(line.startswith("data: ") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    result = read_json(rn50.run_folder() / "result.json")
    assert result["reason"] == "stopped by Ctrl-C at step 0 (no checkpoint)"
    assert result["stopped"] == {"by": "Ctrl-C", "step": 0, "limit": None}
    assert result["next"]["verb"] == "launch"
    assert result["next"]["options"][:2] == ["--launcher", "gloo"]
    assert result["reason"] in err
    assert "Traceback" not in err


def test_a_signal_reaches_a_rank_that_is_blocked(
    tmp_path: Path, small_data: Path
) -> None:
    """Rank 0 logs run_stop aborted though its main thread never comes back."""
    alone = ("system.ranks_per_node=1", f"data.path={small_data}")
    command = body("Stops", tmp_path, *alone)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert any(line.startswith("hanging") for line in process.stdout or ())
    process.terminate()
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert stop_of(tmp_path) == "aborted"
