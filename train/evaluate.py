"""Exact top-1 over the whole evaluation set: integer counts, every image once, padding excluded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mxnet import nd

from ..config.errors import UserError
from ..data.pipeline import Batch
from .comm import Communicator
from .resnet import ResNet


class Accuracy(NamedTuple):
    correct: int
    total: int

    @property
    def fraction(self) -> float:
        return self.correct / self.total


def average_bn_statistics(statistics: Sequence[Any], comm: Communicator) -> None:
    """Replace each running mean and variance by its mean over the ranks, in fp32.

    The caller has waited for all of training: MXNet writes the running statistics inside backward
    without telling its engine, and a reader gets old values before (106 of 106; stack.md 8).
    """
    comm.average_([p.data() for p in statistics], name="bn_statistics")


def evaluate(
    net: ResNet,
    next_batch: Callable[[], Batch],
    comm: Communicator,
    *,
    batches: int,
    samples: int,
) -> Accuracy:
    """Count hits over `batches` batches on every rank and add them up.

    Raises:
        UserError: the ranks together did not see exactly `samples` images.
    """
    hits: Any = 0
    seen: Any = 0
    for _ in range(batches):
        images, labels = next_batch()
        hits = (net(images).argmax(axis=1) == labels).sum() + hits
        seen = (labels >= 0).sum() + seen
    counts = comm.sum_counts(nd.concat(hits.reshape(1), seen.reshape(1), dim=0))
    correct, total = (int(count) for count in counts.asnumpy())
    if total != samples:
        raise UserError(f"evaluation: {samples} images expected, found {total}")
    return Accuracy(correct, total)
