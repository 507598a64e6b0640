"""Real ranks through the real command: end to end and repeatable. Ends: tests/faults."""

from __future__ import annotations

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
from rn50.launch.run import load_for_launch
from rn50.launch.supervisor import run_job
from rn50.logging.parse import Event, read_events
from tests.conftest import RUN, Rn50, metrics, read_json
from tests.mpi import EVERY_LAUNCHER
from tests.waiting import leave_nothing

pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parent.parent / "golden" / "smoke_result_0.txt"
BODIES = str(Path(__file__).with_name("rank_bodies.py"))


def shape(events: list[Event]) -> list[tuple[str, object, dict[str, object]]]:
    """Events without what a clock, a machine or an edit changes."""
    volatile = ("file", "lineno")
    return [
        (
            event.key,
            None if event.key == "eval_accuracy" else event.value,
            {k: v for k, v in event.metadata.items() if k not in volatile},
        )
        for event in events
    ]


@pytest.mark.parametrize("launcher", EVERY_LAUNCHER)
def test_smoke_from_images_to_a_clean_log(
    smoke_run: Callable[[str], Path], launcher: str
) -> None:
    folder = smoke_run(launcher)
    printed = (folder / "printed.txt").read_text()
    result = read_json(folder / "result.json")
    assert result["status"] == "success"
    assert 0.8 <= result["eval_accuracy"] < 1
    assert result["ranks"] == 2
    assert result["global_batch_size"] == 20
    assert result["seed"] == 1
    assert result["official_checker"]["verdict"] == "PASS"
    assert result["config_sha256"] == load(folder / "config.yaml").sha256
    assert re.search(
        r"^RESULT success .*official_checker=PASS\(4\.0\.0\)", printed, re.M
    )
    assert re.search(r"epoch +\d.* images/s .* left$", printed, re.M)
    assert check_officially(folder / "result_0.txt", "4.0.0").messages == ()
    for kind, count in (("train", 10), ("steps", 10), ("eval", 1)):
        assert len(metrics(folder, kind)) >= count
    events = read_json(folder / "timeline.json")["traceEvents"]
    names = {event["name"] for event in events}
    assert {"join ranks", "open connections", "build network", "epoch 1"} <= names
    # The five steps that were profiled, on both ranks: operators and Horovod's own.
    profiles = [folder / "profile" / name for name in ("rank_0", "rank_1")]
    assert all("Convolution" in (one / "mxnet.json").read_text() for one in profiles)
    assert "allreduce.group" in (profiles[0] / "horovod.json").read_text()
    table = read_json(folder / "ranks.json")["ranks"]
    assert table["steps"] == [200, 200]
    assert len(set(table["host"])) == 1
    assert all(
        0 < ms < 60_000 for ms in (*table["step_p50_ms"], *table["backward_p90_ms"])
    )
    assert read_json(folder / "environment.json")["launcher"] == launcher
    assert read_json(folder / "origins.json")["seed"] == "command line"
    assert f"{result['eval_accuracy']:.4f}" in (folder / "report.html").read_text()
    assert not list(folder.glob("failure_*"))
    leave_nothing(folder)

    # Same events, values and order as the log kept in the repository, up to the clock. After an
    # intended change: copy the new result_0.txt over tests/golden/smoke_result_0.txt.
    found, golden = (
        shape(read_events(path)) for path in (folder / "result_0.txt", GOLDEN)
    )
    first_block = [key for key, _, _ in golden].index("block_stop")
    assert found[: first_block + 1] == golden[: first_block + 1]
    assert found[-1] == golden[-1]


def joined_while_loading(folder: Path) -> bool:
    spans = read_json(folder / "timeline.json")["traceEvents"]
    times = {
        span["name"]: (span["ts"], span["ts"] + span["dur"])
        for span in spans
        if "dur" in span
    }
    return times["join ranks"][0] < times["load MXNet and Horovod"][1]


def test_same_seed_same_weights_bit_for_bit(
    rn50: Rn50, small_data: Path, whole: Path
) -> None:
    """However it starts up: overlapped or serial, weights seeded or broadcast."""
    rn50(
        "launch",
        *RUN,
        "startup={serial: true, weights: broadcast}",
        f"data.path={small_data}",
        f"system.results={rn50.results}",
    )
    serial = rn50.run_folder()
    for key in ("weights_digest", "eval_accuracy"):
        one, other = (read_json(f / "result.json")[key] for f in (whole, serial))
        assert one == other
    assert [joined_while_loading(folder) for folder in (whole, serial)] == [True, False]


def test_batch_control_with_a_rank_that_drops_out(rn50: Rn50, smoke_data: Path) -> None:
    """Per-rank batch and share change in the middle; logs follow, and the target is reached."""
    out = rn50.output(
        "launch",
        "smoke",
        "seed=1",
        "optimizer.variant=nvidia",
        "batch.follow=momentum",
        "model.loss_scale=dynamic",  # the rank without a share has to see the same gradients
        "batch.changes=[{after_epoch: 1, per_rank: 20}, {after_epoch: 2, per_rank: 32, "
        "active_ranks: 1}]",
        f"data.path={smoke_data}",
        f"system.results={rn50.results}",
        "log.every=5 steps",
        "log.profile=81-82",
    )
    assert "epoch 2: global batch 40" in out
    assert "epoch 3: global batch 32" in out
    folder = rn50.run_folder()
    lines = metrics(folder, "train")
    batches = {line["global_batch_size"]: line["momentum"] for line in lines}
    assert batches == pytest.approx({20: 0.9, 40: 0.95, 32: 0.9375})
    changes = [
        e for e in read_events(folder / "result_0.txt") if "batch_size_change" in e.key
    ]
    assert [(e.value, e.metadata["epoch_num"]) for e in changes] == [(40, 2), (32, 3)]
    steps = read_json(folder / "ranks.json")["ranks"]["steps"]
    assert steps[0] > steps[1] == 50 + 25
    assert len(list(folder.glob("profile/rank_*/mxnet.json"))) == 2


def test_one_rank_with_twice_the_batch_trains_alike(
    rn50: Rn50, small_data: Path
) -> None:
    """The same images in every step, no batch norm: the loss curves agree.

    Tolerance 1e-3 of the loss at every one of 20 steps: only the order of float32 sums differs
    (measured: below 1e-5). A wrong share of the images or a wrong scale is off by 1e-1.
    """
    curves = []
    for ranks, batch in ((1, 20), (2, 10)):
        rn50(
            "launch",
            "smoke",
            "--ranks",
            str(ranks),
            f"batch.per_rank={batch}",
            "seed=3",
            "model.norm=none",
            "optimizer.base_lr=0.004",
            "schedule.length=1 epochs",
            "eval.period=1",
            "eval.offset=0",
            "log.every=1 steps",
            "schedule.warmup=10 steps",
            f"data.path={small_data}",
            f"system.results={rn50.results}",
        )
        curves.append([line["loss"] for line in metrics(rn50.run_folder(), "train")])
    one, two = curves
    assert len(one) == len(two) == 20
    assert max(abs(a - b) for a, b in zip(one, two, strict=True)) < 1e-3
    assert one[-1] < one[0] - 0.005  # it did learn, so there was something to differ in


def config_of(out: Path, ranks: int | None, *overrides: str) -> Path:
    """The config of a run in the new folder `out`."""
    loaded = load_for_launch("smoke", ["seed=1", *overrides], ranks)
    out.mkdir()
    (out / "config.yaml").write_text(loaded.to_yaml())
    return out / "config.yaml"


def test_nothing_is_on_another_device(tmp_path: Path, small_data: Path) -> None:
    """A run on cpu(1), which is not where arrays are made that name no device."""
    config = config_of(
        tmp_path / "run",
        None,
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
    out = config.parent
    command = [sys.executable, BODIES, "OnSecondCpu", str(config), "--out", str(out)]
    job, _ = build_job(load(config).run, "gloo", command)
    run_job(job, "gloo", out)
    assert read_json(out / "result.json")["epochs"] == 2
    assert list((out / "checkpoint").glob("step_*.ckpt"))


def test_a_stop_in_start_up_says_how_to_start_again(
    rn50: Rn50, small_data: Path
) -> None:
    words = (
        "launch",
        "smoke",
        "seed=1",
        "--launcher",
        "gloo",
        f"data.path={small_data}",
    )
    process = rn50.start(*words, f"system.results={rn50.results}")
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
    config = config_of(tmp_path / "run", 1, f"data.path={small_data}")
    out = config.parent
    command = [sys.executable, BODIES, "Stops", str(config), "--out", str(out)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("hanging"):
            break
    process.terminate()
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert read_events(out / "result_0.txt")[-1].metadata["status"] == "aborted"
