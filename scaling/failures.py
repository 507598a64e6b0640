"""Failures at scale: expected time, checkpoint interval, restart. Pure.

Failures are a Poisson process over the nodes that a run has; one of them ends the run, which goes
on from its last checkpoint on disk once it has been detected and started again. Of such a stretch
between two checkpoints the expected time is M exp(R/M) (exp(L/M) - 1) for a length L, a restart R
that may fail as well, and a mean M between failures (Daly 2006, without approximation).

A checkpoint here stops training while arrays are copied to the host, and counts once a thread has
written them. Until then a failure goes back to the one before, so that the first try at a stretch
and those after a failure differ in length: `Stretch`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..config.benchmark import RESNET50_PARAMETERS
from ..config.machine import Performance
from ..config.schema import Watchdog
from .predict import Prediction

HOUR_S = 3600.0
CHECKPOINT_BYTES = 2 * 4 * RESNET50_PARAMETERS
"""Weights and velocities in float32; batch-norm statistics are 0.1 % more."""
COPY_BYTES_PER_S = 3e9
"""From the GPU to pageable host memory, in the calling thread; assumed."""
WRITE_BYTES_PER_S = 0.4e9
"""Digest, write and fsync in rank 0's thread: 0.52 s for ResNet-50 (docs/scaling.md)."""
_MOST_CHECKPOINTS = 10_000
_FEW_CHECKPOINTS = 100
"""All counts are tried up to here: the time is not convex where writing takes as long as the work
between two (18 s of work, 9 s of writing)."""
END_S = 2.1
"""From the discovery of a lost rank to the launcher's end, by tests/lab/control_plane.py at 16 and
64 ranks (docs/notebook/control_plane.md)."""
LAUNCH_S, LAUNCH_RANK_S = 1.0, 0.5e-3
"""Serial work of a launch, by the same: CPU time of the launcher before its ranks, and of its
watchdog for eight messages of each rank, of 60 us each, until it trains."""


class Study(NamedTuple):
    """What a cluster study found: hours of one GPU, with its share of node and network, between
    two failures that ended jobs."""

    name: str
    gpu_hours: float
    source: str


PUBLISHED = (
    Study(
        "Meta RSC-2, A100",
        8 * 24 * 1000 / 2.34,
        "2.34 failures per 1,000 node-days of 8 GPUs: Kokolis et al., arXiv:2410.21680",
    ),
    Study(
        "Meta Llama 3, H100",
        16_384 * 54 * 24 / 419,
        "419 unexpected interruptions of 16,384 GPUs in 54 days: arXiv:2407.21783, section 3.3.4",
    ),
    Study(
        "Meta RSC-1, A100",
        8 * 24 * 1000 / 6.50,
        "6.50 failures per 1,000 node-days of 8 GPUs: Kokolis et al., arXiv:2410.21680",
    ),
    Study(
        "Meta RSC-1, 1,024 GPUs",
        1024 * 7.9,
        "7.9 h between failures of jobs of 1,024 GPUs, observed: Kokolis et al., arXiv:2410.21680",
    ),
)
"""From the rarest failures to the most frequent."""
USUAL = PUBLISHED[2]
"""The higher of the two fitted rates of GPUs that MXNet 1.9.1 runs on."""


class Stretch(NamedTuple):
    """From one checkpoint on disk to the next one there, or to the end."""

    first_s: float
    """From the moment that the one before has been written."""
    again_s: float
    """From the state that it holds: after a failure."""


def stretches(
    work_s: float, checkpoints_s: Sequence[float], blocking_s: float, write_s: float
) -> list[Stretch]:
    """Of a run of `work_s` with checkpoints when so much of it is done."""
    taken = [at_s + (n + 1) * blocking_s for n, at_s in enumerate(checkpoints_s)]
    states = [0.0, *taken]
    written = [0.0, *(at_s + write_s for at_s in taken)]
    end_s = work_s + len(taken) * blocking_s
    ends = [min(at_s, end_s) for at_s in (*written[1:], end_s)]
    return [
        Stretch(max(0.0, end - begin), end - state)
        for begin, state, end in zip(written, states, ends, strict=True)
    ]


def expected_s(run: Sequence[Stretch], mtbf_s: float, restart_s: float) -> float:
    """Expected time of a run whose failures are `mtbf_s` apart; inf: it practically never ends."""
    try:
        return math.fsum(
            mtbf_s * math.exp((restart_s + again_s) / mtbf_s) * -math.expm1(-first_s / mtbf_s)
            for first_s, again_s in run
        )
    except OverflowError:
        return math.inf


def best_count(
    work_s: float, blocking_s: float, write_s: float, mtbf_s: float, restart_s: float
) -> int:
    """How many evenly spaced checkpoints give the least expected time. None is taken while the one
    before is being written, which is the most there can be."""

    def time_s(count: int) -> float:
        even = [work_s * n / (count + 1) for n in range(1, count + 1)]
        return expected_s(stretches(work_s, even, blocking_s, write_s), mtbf_s, restart_s)

    low, high = 0, min(_MOST_CHECKPOINTS, int(work_s / max(write_s, blocking_s)))
    if high <= _FEW_CHECKPOINTS:
        return min(range(high + 1), key=time_s)
    while low < high:  # convex in the count
        middle = (low + high) // 2
        if time_s(middle) <= time_s(middle + 1):
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True)
class Outlook:
    """A predicted run on nodes that fail."""

    node_mtbf_h: float
    run_mtbf_h: float
    no_failure: float
    """Probability that the run ends without one."""
    undisturbed_s: float
    """Time to train without failures and without checkpoints."""
    expected_s: float
    blocking_s: float
    write_s: float
    restart_s: float
    redone_s: float
    """Work that a failure costs on average, with the config's checkpoints."""
    checkpoints: int
    every_epochs: float
    best_checkpoints: int
    best_every_epochs: float
    best_every_steps: int
    best_expected_s: float

    def to_dict(self) -> dict[str, Any]:
        """For `rn50 predict --json`: null for a time without end."""
        finite = {k: round(v, 6) for k, v in asdict(self).items() if math.isfinite(v)}
        return dict.fromkeys(asdict(self)) | finite


def restart_s(ranks: int, about: Performance) -> float:
    """From a rank's failure until all `ranks` train again: found as silent, ended, launched, and
    the machine's own start-up."""
    control_s = Watchdog().silence_s + END_S + LAUNCH_S + ranks * LAUNCH_RANK_S
    return control_s + about.init_s + about.startup_s


def usual_outlooks(answer: Prediction) -> tuple[Outlook, list[tuple[Study, Outlook]]]:
    """`answer` on nodes that fail at the usual rate, and at each published one."""
    per_node = answer.job.system.ranks_per_node
    studies = [(study, outlook(answer, study.gpu_hours / per_node)) for study in PUBLISHED]
    return outlook(answer, USUAL.gpu_hours / per_node), studies


def outlook(answer: Prediction, node_mtbf_h: float) -> Outlook:
    """`answer` on nodes of which each fails once in `node_mtbf_h` hours on average."""
    job, about, work_s = answer.job, answer.machine.performance, answer.run.total_s
    per_node = job.system.ranks_per_node
    mtbf_s = node_mtbf_h * HOUR_S / math.ceil(job.gpus / per_node)
    blocking_s = CHECKPOINT_BYTES / COPY_BYTES_PER_S
    write_s = CHECKPOINT_BYTES / WRITE_BYTES_PER_S
    again_s = restart_s(job.gpus, about)
    at_s = checkpoint_times_s(answer)
    ours = stretches(work_s, at_s, blocking_s, write_s)
    costs = {"mtbf_s": mtbf_s, "restart_s": again_s}
    best = best_count(work_s, blocking_s, write_s, **costs)
    even = [work_s * n / (best + 1) for n in range(1, best + 1)]
    length_s = math.fsum(stretch.first_s for stretch in ours)
    steps = math.fsum(phase.epochs * phase.steps_per_epoch for phase in answer.phases)
    return Outlook(
        node_mtbf_h=node_mtbf_h,
        run_mtbf_h=mtbf_s / HOUR_S,
        no_failure=math.exp(-length_s / mtbf_s),
        undisturbed_s=work_s,
        expected_s=expected_s(ours, **costs),
        blocking_s=blocking_s,
        write_s=write_s,
        restart_s=again_s,
        redone_s=math.fsum(s.first_s * (s.again_s - s.first_s / 2) for s in ours) / length_s,
        checkpoints=len(at_s),
        every_epochs=answer.epochs / (len(at_s) + 1),
        best_checkpoints=best,
        best_every_epochs=answer.epochs / (best + 1),
        best_every_steps=round(steps / (best + 1)),
        best_expected_s=expected_s(stretches(work_s, even, blocking_s, write_s), **costs),
    )


def checkpoint_times_s(answer: Prediction) -> list[float]:
    """When a run takes its checkpoints: once `checkpoint.every` is over, at the end of an epoch if
    it is that long, and after each evaluation, which is as a rule the best so far."""
    return [_time_s(answer, epoch) for epoch in _checkpoint_epochs(answer)]


def _checkpoint_epochs(answer: Prediction) -> Iterator[float]:
    job, epochs = answer.job, math.ceil(answer.epochs)
    every = 0.1 * answer.epochs if job.checkpoint_epochs is None else job.checkpoint_epochs
    if math.isinf(every):
        return
    first = (epochs - 1) % job.period if job.offset is None else job.offset
    last = 0.0
    for epoch in range(1, epochs + 1):
        if every < 1:
            while last + every < min(epoch, answer.epochs):
                yield (last := last + every)
        is_evaluated = (epoch - 1) % job.period == first % job.period
        if epoch < answer.epochs and (epoch >= last + max(every, 1) or is_evaluated):
            yield (last := float(epoch))


def _time_s(answer: Prediction, epoch: float) -> float:
    """How much of the whole run's time is over after so many epochs, evaluations and all."""
    spent_s, left = 0.0, epoch
    for phase in answer.phases:
        spent_s += min(left, phase.epochs) * phase.steps_per_epoch * phase.step_s
        left = max(0.0, left - phase.epochs)
    return answer.run.total_s * spent_s / answer.run.training_s
