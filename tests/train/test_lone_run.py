"""Whole runs of one rank in this process: what they leave, and that one which stopped goes on bit
for bit. Those of several ranks: tests/ranks and tests/faults."""

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import Any

import horovod.mxnet as hvd
import pytest

from rn50.config.load import load
from rn50.data import pipeline
from rn50.launch.resume import begin_attempt
from rn50.logging.clock import Clock
from rn50.logging.parse import read_events
from rn50.logging.run_folder import RunFolder
from rn50.logging.run_time import run_time
from rn50.predict.work import training_flops
from rn50.train import trainer
from rn50.train.checkpoint.file import read_checkpoint, step_of
from rn50.train.checkpoint.folder import checkpoints_in
from rn50.train.communication import communicator as comm
from rn50.train.context import RunContext
from rn50.train.process_info import ProcessInfo
from rn50.train.run import train_and_evaluate
from rn50.train.run_log import RunLog
from rn50.train.step_times import PHASES
from rn50.train.update import loss_scale
from tests.conftest import (
    flip_bit,
    logged_keys,
    made_once,
    metrics,
    of_training,
    packed,
    read_json,
    refused,
    stop_of,
)

CONFIG = (
    "seed=1",
    "system.ranks_per_node=1",
    "optimizer.variant=nvidia",
    "model.loss_scale=dynamic",
    "schedule.length=4 epochs",
    "schedule.warmup=1 epochs",
    "eval.period=2",
    "eval.offset=1",
    "eval.target=0.999",
    "eval.batch_per_rank=8",
    "limits.min_accuracy_by=9 epochs",
    "batch.changes=[{after_epoch: 2, per_rank: 20}]",
    "batch.follow=momentum",
    "log.every=3 steps",
    "checkpoint.every=3 steps",
    "checkpoint.keep=9",
)
"""Epochs of 4, 4, 2 and 2 steps, evaluated after the second and the fourth."""
STEPS_OF_POINTS = ((1, 2, 3), (5, 6), (9,), (11, 12))
EPOCHS = ("first_epoch_num", "epoch_count", "epoch_num")
"""What the log's events may tell."""
BLOCKS = """\
block_start 1 2
epoch_start 1
epoch_stop 1
epoch_start 2
epoch_stop 2
eval_start 2
eval_stop 2
eval_accuracy 2
block_stop 1
block_start 3 2
global_batch_size_change 3
epoch_start 3
epoch_stop 3
epoch_start 4
epoch_stop 4
eval_start 4
eval_stop 4
eval_accuracy 4
block_stop 3
run_stop
"""
SAMPLES = "{train_samples: 40, eval_samples: 20}"
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(shared: Path, over_gloo: pytest.MonkeyPatch) -> Train:
    """`train(FOLDER, *OVERRIDES)`: begins the run in a folder, or goes on with it."""
    image_set = made_once(shared / "forty", lambda folder: packed(folder, SAMPLES))
    data = (f"data.path={image_set}", f"data.synthetic={SAMPLES}")

    def run_one(folder: Path, *overrides: str) -> Path:
        folder.mkdir(exist_ok=True)
        loaded = load("smoke", [*CONFIG, *data, *overrides])
        resumed = begin_attempt(RunFolder(folder)) if any(folder.iterdir()) else None
        process = ProcessInfo(0, 1, 0, "here")
        context = RunContext(loaded, folder, process, resumed)
        context.prepare()
        context.begin_connecting()
        train_and_evaluate(context)
        return folder

    over_gloo.setattr(loss_scale, "DOUBLE_AFTER_STEPS", 2)
    return run_one


@pytest.fixture(scope="module")
def uninterrupted(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("lone") / "whole")


def result(folder: Path) -> dict[str, Any]:
    return read_json(folder / "result.json")


def saved(folder: Path) -> list[int]:
    return list(map(step_of, checkpoints_in(folder / "checkpoint")))


def test_what_a_run_leaves(uninterrupted: Path) -> None:
    record = result(uninterrupted)
    config = load("smoke", list(CONFIG)).run
    image_flops = training_flops(config.model, config.data)
    assert image_flops
    evaluations = metrics(uninterrupted, "eval")
    positions = [(e["epoch"], e["step"], e["total"]) for e in evaluations]
    assert positions == [(2, 8, 20), (4, 12, 20)]
    expected = {
        "status": "aborted",
        "target": 0.999,
        "epochs": 4,
        "ranks": 1,
        "seed": 1,
        "global_batch_size": 10,
        "eval_accuracy": evaluations[-1]["correct"] / 20,
        "flops": 160 * image_flops,
        "allreduce_bytes": 0,
    }
    assert record.items() >= expected.items()
    assert "stopped" not in record
    assert record["storage_read_bytes"] >= 0
    points = metrics(uninterrupted, "train")
    assert [p["step"] for p in points] == [3, 6, 9, 12]
    assert len({p["loss_scale"] for p in points}) > 2
    assert [p["global_batch_size"] for p in points] == [10, 10, 20, 20]
    assert [p["momentum"] for p in points] == pytest.approx([0.9, 0.9, 0.95, 0.95])
    table = read_json(uninterrupted / "ranks.json")["ranks"]
    assert table["host"] == ["here"]
    assert table["steps"] == [12]
    lines = []
    for key, _, metadata in of_training(uninterrupted):
        epochs = [str(metadata[name]) for name in EPOCHS if name in metadata]
        lines.append(" ".join([key, *epochs]))
    assert lines[lines.index("block_start 1 2") :] == BLOCKS.splitlines()
    spans = read_json(uninterrupted / "timeline.json")["traceEvents"]
    names = {span["name"] for span in spans}
    assert {"warm up network", "epoch 4", "evaluate 4", "checkpoint"} <= names
    assert saved(uninterrupted) == [
        3,
        6,
        8,
        12,
    ]  # 8: the first evaluation is the best so far
    best = max(evaluations, key=itemgetter("accuracy"))  # the first of those
    checkpoint = read_checkpoint(uninterrupted / "checkpoint" / "best.ckpt")
    assert checkpoint.meta.step == best["step"]


def test_an_epoch_lasts_as_long_as_the_device_needs_for_its_steps(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host is up to two steps ahead, which is a whole epoch here, with a checkpoint after each
    of a block."""
    steps_ms = []
    gather_ranks = RunLog.gather_ranks

    def gather(log: RunLog, comm: Any, phases_ms: Any) -> Any:
        in_phases = phases_ms[
            :, 1 : len(PHASES)
        ]  # without what the host did between two steps
        steps_ms.extend(in_phases.sum(axis=1))
        return gather_ranks(log, comm, phases_ms)

    monkeypatch.setattr(RunLog, "gather_ranks", gather)
    folder = train(tmp_path / "run", "batch.per_rank=20", "checkpoint.every=2 steps")
    time = run_time(read_events(folder / "result_0.txt"))
    assert len(time.epochs) == 4
    assert len(time.saves) == 4
    for epoch in time.epochs:
        needed_s = sum(steps_ms[:2]) / 1000
        del steps_ms[:2]
        assert epoch.duration_s > 0.95 * needed_s
    shares = time.shares(read_json(folder / "ranks.json")["elapsed_s"])
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(read_json(folder / "ranks.json")["elapsed_s"])


STOPS = (
    ("limits.time_s=0.001", 3),
    ("limits.epochs=1", 4),
    ("limits.epochs=1", 4),
    ("limits.epochs=2", 8),
    ("limits.epochs=1", 8),
)
"""Stops within an epoch, between two of a block, and after an evaluation; a spent budget stops
again."""


def test_a_run_that_stopped_again_and_again_goes_on_bit_for_bit(
    train: Train, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stop is before the first step. In the end it logs every step, with norms: a
    point's loss is the mean over its steps, whichever they are."""
    start_clock = RunContext.start_clock

    def stop_at_once(context: RunContext, tensors: Sequence[str]) -> None:
        start_clock(context, tensors)
        stop = context.stop
        stop.stop_after(stop.hold(), "asked")

    with monkeypatch.context() as patch:
        patch.setattr(RunContext, "start_clock", stop_at_once)
        folder = train(tmp_path / "run")
    assert result(folder)["stopped"] == {"by": "asked", "step": 0, "limit": None}
    assert "images_per_s" not in result(folder)
    last_step = 0
    for limit, step in STOPS:
        train(folder, limit)
        stopped = {"by": "", "step": step, "limit": limit.partition("=")[0]}
        assert result(folder)["stopped"] == stopped
        assert result(folder)["resumed_after_step"] == last_step
        assert saved(folder)[-1] == step
        assert stop_of(folder) == "aborted"
        last_step = step
    train(folder, "limits.epochs=4", "log.every=1 steps", "log.profile=norms")
    assert "stopped" not in result(folder)
    assert result(folder)["resumed_after_step"] == last_step
    for quantity in ("weight_norm", "gradient_norm", "norm_ratio", "trust_ratio"):
        measured = [record["step"] for record in metrics(folder, quantity)]
        assert measured == list(range(last_step + 1, 13))
    assert not metrics(uninterrupted, "weight_norm")
    for key in ("weights_digest", "eval_accuracy", "epochs", "global_batch_size"):
        assert result(folder)[key] == result(uninterrupted)[key]
    assert of_training(folder) == of_training(uninterrupted)
    points = {point["step"]: point for point in metrics(folder, "train")}
    expected = metrics(uninterrupted, "train")
    for point, steps in zip(expected, STEPS_OF_POINTS, strict=True):
        for key in ("epoch", "lr", "momentum", "global_batch_size", "loss_scale"):
            assert points[point["step"]][key] == point[key]
        if steps[0] <= last_step:
            steps = steps[-1:]
        loss = mean(points[step]["loss"] for step in steps)
        assert point["loss"] == pytest.approx(loss, rel=1e-6)


def test_a_damaged_checkpoint_and_a_wall_clock_set_back_cost_time_not_bits(
    train: Train, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train(tmp_path / "run", "limits.epochs=2")
    log = folder / "result_0.txt"

    def hour_ahead(ms: re.Match[str]) -> str:
        return str(int(ms[0]) + 3_600_000)

    log.write_text(re.sub(r'(?<="time_ms": )\d+', hour_ahead, log.read_text()))
    last_ms = max(event.time_ms for event in read_events(log))
    newest = checkpoints_in(folder / "checkpoint")[-1]
    flip_bit(newest, -1)
    monkeypatch.setattr(Clock, "look", lambda _: -7.5)
    train(folder)
    jump, *_ = metrics(folder, "wall_clock_jump")
    assert (jump["step"], jump["by_s"]) == (9, -7.5)
    assert "wall_clock_jump" in logged_keys(folder)
    assert result(folder)["resumed_after_step"] == 6
    assert result(folder)["weights_digest"] == result(uninterrupted)["weights_digest"]
    stamps = [event.time_ms for event in read_events(log)]
    assert stamps == sorted(stamps)
    assert last_ms < stamps[-1] < last_ms + 600_000


def test_two_states_a_weight_go_on_bit_for_bit(train: Train, tmp_path: Path) -> None:
    uninterrupted = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    akiba = "optimizer.variant=akiba"
    train(uninterrupted, akiba, "limits.epochs=2")
    for epochs in (1, 2):
        train(resumed, akiba, f"limits.epochs={epochs}")
    assert result(resumed)["resumed_after_step"] == 4
    assert result(resumed)["weights_digest"] == result(uninterrupted)["weights_digest"]


def test_reading_before_the_clock_is_refused(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_sources = trainer.build_sources

    def early(*arguments: Any) -> Any:
        sources = build_sources(*arguments)
        sources.train.next()
        return sources

    monkeypatch.setattr(trainer, "build_sources", early)
    with refused(r"^data set read before run_start: train\.rec opened"):
        train(tmp_path / "run")
    assert "run_start" not in logged_keys(tmp_path / "run")


def test_no_rank_reads_before_the_clock_of_rank_0_and_none_leaves_before_the_others(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    for owner, name in (
        (RunContext, "start_clock"),
        (comm.LoneCommunicator, "barrier"),
        (pipeline.Source, "next"),
        (hvd, "shutdown"),
    ):
        action = getattr(owner, name)

        def noted(*arguments: Any, name: str = name, action: Any = action) -> Any:
            order.append(name)
            return action(*arguments)

        monkeypatch.setattr(owner, name, noted)
    train(tmp_path / "run", "limits.time_s=0.001")
    assert order == ["start_clock", "barrier", *["next"] * 3, "barrier", "shutdown"]
