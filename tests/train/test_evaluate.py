"""Counting hits over an evaluation set, and what an accuracy exactly at the target means."""

import math
import re
from unittest.mock import MagicMock, Mock

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd

from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.config.schema import Run
from rn50.data.pipeline import NOT_COUNTED, Batch
from rn50.train import run
from rn50.train.checkpoint.state import TrainState
from rn50.train.communication.communicator import LoneCommunicator
from rn50.train.evaluate import Accuracy, evaluate, warn_of_far_statistics
from tests.conftest import refused
from tests.train.emulated import CPU

ALONE = LoneCommunicator(CPU, Mock(rows=()))


def evaluating(samples: int, per_batch: int) -> Run:
    sizes = [f"data.eval_samples={samples}", f"eval.batch_per_rank={per_batch}"]
    return load("smoke", sizes).run


@pytest.mark.parametrize(
    ("classes", "dtype"), [(3000, "float16"), (4, "float16"), (7, "float32")]
)
def test_hits_are_counted_exactly(classes: int, dtype: str) -> None:
    """2,500 images in three batches, the last filled up. float16 has no whole number from 2,049 to
    4,096 that is odd. The image of class c with logits ranked by rank p is a hit where p = 0."""
    samples = 2500
    per_batch = 900
    rng = np.random.default_rng(1)
    labels = np.full(3 * per_batch, NOT_COUNTED)
    labels[:samples] = rng.integers(classes, size=samples)
    label_ranks = rng.choice([0, 0, 0, 1, 4, 5], size=samples)
    label_ranks = label_ranks.clip(max=classes - 1)
    logits = np.zeros((len(labels), classes), dtype)
    for row, label, label_rank in zip(logits, labels, label_ranks, strict=False):
        other_classes = rng.permutation(classes)[:7]
        order = np.insert(other_classes[other_classes != label][:5], label_rank, label)
        row[order] = np.arange(len(order), 0, -1)
    batches = []
    for first in range(0, len(labels), per_batch):
        batch_rows = slice(first, first + per_batch)
        scores = nd.array(logits[batch_rows], dtype=dtype)
        of_images = nd.array(labels[batch_rows])
        batches.append(Batch(scores, of_images))
    run = evaluating(samples, per_batch)
    accuracy = evaluate(lambda images: images, iter(batches).__next__, ALONE, run)
    assert accuracy == (sum(label_ranks == 0), samples, sum(label_ranks < 5))


@pytest.mark.parametrize("samples", [2, 4])
def test_an_evaluation_of_other_images_than_all_is_none(samples: int) -> None:
    labels = nd.array([0, 1, 2, NOT_COUNTED])
    batch = Batch(nd.zeros((4, 3)), labels)
    run = evaluating(samples, 4)
    with refused(f"{samples} images expected, found 3"):
        evaluate(lambda images: images, lambda: batch, ALONE, run)


@pytest.mark.parametrize(("epoch", "active_ranks"), [(1, 2), (2, 1)])
def test_statistics_are_those_of_the_ranks_that_trained_and_weights_are_compared_before(
    epoch: int, active_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = "batch.changes=[{after_epoch: 1, per_rank: 20, active_ranks: 1}]"
    trainer = MagicMock(run=load("smoke", [changes]).run)
    trainer.plan = build_plan(trainer.run)
    for name in ("replica_digest", "copy_parameters", "evaluate"):
        monkeypatch.setattr(run, name, getattr(trainer, name))
    monkeypatch.setattr(run, "sync_bn_statistics", trainer.sync)
    run.evaluate_epoch(trainer, epoch)
    assert trainer.sync.call_args.kwargs["active_ranks"] == active_ranks
    calls = [name for name, *_ in trainer.mock_calls]
    order = ("comm.check_replicas", "sync", "copy_parameters", "evaluate")
    assert tuple(name for name in calls if name in order) == order


@pytest.mark.parametrize(("correct", "reached"), [(37_950, True), (37_949, False)])
def test_the_target_itself_is_success(
    correct: int, reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["eval.target=0.759", "limits.min_accuracy_by=9 epochs"]
    trainer = Mock(run=load("smoke", overrides).run)
    trainer.plan = build_plan(trainer.run)
    trainer.context.state = TrainState()
    accuracy = Accuracy(correct, 50_000, 0)
    monkeypatch.setattr(run, "train_epoch", Mock())
    monkeypatch.setattr(run, "evaluate_epoch", Mock(return_value=accuracy))
    assert run.train_blocks(trainer, Mock()) == reached


HEALTHY = [[0.5, 0.2], [0.3, 4.0]]
"""The largest means and variances of two layers."""


@pytest.mark.parametrize(
    ("ranks", "rank", "value", "accused"),
    [
        (3, 1, 100.5, "1"),
        (3, 0, math.nan, "0"),
        (3, 2, math.inf, "2"),
        (4, 3, 2.0, ""),  # no larger than the deviation is
        (2, 0, 100.5, "01"),  # either of two
        (2, 1, 100.5, "01"),
    ],
)
def test_statistics_far_from_the_other_ranks_are_warned_of(
    ranks: int,
    rank: int,
    value: float,
    accused: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    comm = Mock(rank=0)
    sizes = np.array([HEALTHY] * (ranks + 1), np.float32)
    sizes *= np.linspace(0.8, 1.25, ranks + 1)[:, None, None]
    sizes[ranks] = 1e9  # without a share of the batch
    sizes[rank, 0, 0] = value
    comm.gather_bytes.return_value = [row.tobytes() for row in sizes]
    comm.gather_names.return_value = [f"rank {n} on h" for n in range(ranks + 1)]
    arrays = [mx.nd.array([size]) for size in sizes[0].ravel()]
    warn_of_far_statistics(comm, arrays[:2], arrays[2:], ranks)
    said = capsys.readouterr().err
    assert "".join(re.findall(r"rank (\d) on h", said)) == accused
    assert ("cannot be told" in said) == (len(accused) == 2)
