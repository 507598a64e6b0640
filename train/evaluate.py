"""Exact top-1 and top-5 over the whole evaluation set: integer counts, every image once, padding
excluded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mxnet import nd

from ..config.schema import Run
from ..data.pipeline import Batch
from ..data.sampling import eval_batches
from ..host.errors import UserError
from . import host_reads
from .communication.communicator import Communicator
from .communication.identity import divide
from .network.build import bn_statistics
from .warning import warn

FAR = 4.0
"""Largest means and deviations of a rank beside the others'. Of healthy runs at most 1.2, and 1.6
with `batch` (smoke with 2 to 10 images a rank, quick; 2 and 4 ranks, 6 seeds)."""
_LEAST = 1e-6


class Accuracy(NamedTuple):
    correct: int
    total: int
    correct_top5: int
    """Images whose class is among the five highest scores."""

    @property
    def fraction(self) -> float:
        """The share of images that were classified correctly."""
        return self.correct / self.total


def sync_bn_statistics(
    net: Any, comm: Communicator, *, mode: str, active_ranks: int
) -> None:
    """Make the batch-norm statistics of all ranks one, in fp32.

    "average" takes the mean of the running means and variances (NVIDIA from v1.1). "batch" is
    Sony's and Akiba's "batch norm without moving average": the net keeps the statistics of the last
    batch (momentum 0), and means and mean squares are averaged over the ranks, which gives the
    variance of all their images. "local" leaves them.

    The caller has waited for all of training: MXNet writes the running statistics inside backward
    without telling its engine, and a reader gets old values before (106 of 106).

    Args:
        net: whose statistics they are.
        comm: the ranks.
        mode: `eval.bn_stats`.
        active_ranks: how many of the first ranks have a share of the batch.
    """
    statistics = bn_statistics(net)
    means = [p.data() for p in statistics if p.name.endswith("mean")]
    variances = [p.data() for p in statistics if p.name.endswith("var")]
    warn_of_far_statistics(comm, means, variances, active_ranks)
    if mode == "local":
        return

    def add_squares(sign: int) -> None:
        """Turn variances into mean squares (1) or back (-1), where the mode is `batch`."""
        if mode == "batch":
            for variance, mean in zip(variances, means, strict=True):
                comm.operators.add_square(variance, mean, sign)

    add_squares(1)
    comm.average_([*means, *variances], active_ranks)
    add_squares(-1)


def warn_of_far_statistics(
    comm: Communicator,
    means: Sequence[nd.NDArray],
    variances: Sequence[nd.NDArray],
    active_ranks: int,
) -> None:
    """Name the ranks whose batch-norm statistics are far from the others' or not finite. They are
    each rank's own, so that no comparison of replicas sees a fault of memory in them. 106 small
    reads for ResNet-50, and 0.4 kB of each rank.

    Args:
        comm: the ranks.
        means: this rank's running means, layer by layer.
        variances: its running variances.
        active_ranks: how many of the first ranks have a share of the batch.
    """
    if active_ranks < 2 or not means:
        return
    largest = [np.abs(array.asnumpy()).max() for array in (*means, *variances)]
    rows = comm.gather_bytes(np.array(largest, np.float32).tobytes(), "magnitudes")
    sizes = np.frombuffer(b"".join(rows[:active_ranks]), np.float32)
    far = far_from_others(sizes.reshape(active_ranks, 2, -1))
    if not far.any():
        return
    names = comm.gather_names()
    if comm.rank == 0:
        division = divide(far.tolist())
        named = division.named(
            names[:active_ranks], f"values over {FAR:g} times the others'"
        )
        warn(f"batch norm's statistics: {named}; a fault of memory or node")


def far_from_others(sizes: Any) -> Any:
    """Whether each rank's statistics are far from the others' or not finite. The measure is the
    lower median of the ranks, and for means no less than the deviation. `sizes`: (rank, largest
    mean and variance, layer)."""
    sizes = sizes.astype(np.float64)
    sizes[:, 1] = np.sqrt(sizes[:, 1])
    usual = np.sort(sizes, axis=0)[(len(sizes) - 1) // 2]
    usual[0] = np.maximum(*usual)
    is_near = sizes <= FAR * np.maximum(usual, _LEAST)
    return ~is_near.all(axis=(1, 2))


def evaluate(
    score: Callable[[nd.NDArray], nd.NDArray],
    next_batch: Callable[[], Batch],
    comm: Communicator,
    run: Run,
) -> Accuracy:
    """Count hits over the evaluation set of `run`, each rank over its share, and add them up.

    Args:
        next_batch: gives images and labels of this rank.
        comm: the ranks.
        run: the config.
        score: answers images with an array (image, class), of any float type.

    Raises:
        UserError: the ranks together did not see exactly its images.
    """
    samples = run.data.eval_samples
    batches = eval_batches(samples, comm.world_size, run.eval.batch_per_rank)
    total: Any = None
    limit_run_ahead = host_reads.RunAheadLimiter()
    for _ in range(batches):
        images, labels = next_batch()
        total = comm.operators.add_hits(score(images), labels, total)
        limit_run_ahead(total, images)
    comm.operators.finish()  # no rank reads a sum to which a failed call contributed
    counts = comm.add_up(total, "counts")
    correct, correct_top5, seen = host_reads.counts(counts)
    if seen != samples:
        raise UserError(f"evaluation: {samples} images expected, found {seen}")
    return Accuracy(correct, seen, correct_top5)
