"""Which batch, gradient groups and algorithm train fastest on a machine of a given size. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from ..config.errors import UserError
from .predict import PredictedJob, Prediction, predict

BATCHES = [quarters << octave for octave in range(7) for quarters in (4, 5, 6, 7)]
"""Images a GPU: four in each octave, from 4 to 448."""
LARGEST_GLOBAL_BATCH = 81_920
"""Of one batch for the whole run: Sony went to 119K images by batch-size control alone."""
GROUPS = (
    "single",
    "equal_bytes(2)",
    "equal_bytes(4)",
    "equal_bytes(8)",
    "halving(4)",
    "cubic(3)",
)
ALGORITHMS = {
    "gpu": ("ring", "double_tree"),
    "cpu": ("ring", "recursive_halving_doubling", "recursive_doubling"),
}
BETWEEN_NODES = ("torus_2d", "hierarchical")
"""What Horovod takes for several nodes alone."""


def best_of_each_batch(
    at: Callable[[int], PredictedJob],
    given: Collection[str],
) -> list[Prediction]:
    """The groups and the algorithm with the least time to train, for each batch that the machine's
    memory and the published recipes allow; the fastest batch first.

    Args:
        at: the job with so many images on each accelerator.
        given: fields of `PredictedJob` that are not to be searched, such as `algorithm`.

    Raises UserError: no batch is possible.
    """
    best = []
    refused = ""
    for batch in BATCHES:
        try:
            job = at(batch)
            images = batch * job.gpus
            if images > LARGEST_GLOBAL_BATCH:
                beyond = f"{images:,} images a step are beyond every published run of one batch"
                refused = refused or beyond
                break
            best.append(min(_ways(job, given), key=_time_s))
        except UserError as error:
            refused = refused or str(error)
    if not best:
        raise UserError(f"--best: a batch that trains expected, {refused}")
    return sorted(best, key=_time_s)


def _ways(
    job: PredictedJob,
    given: Collection[str],
) -> Iterator[Prediction]:
    """Predictions of the job's own groups and algorithm, and of all others that are possible."""
    yield predict(job)
    algorithms = ALGORITHMS[job.system.device]
    if job.gpus > job.system.ranks_per_node:
        algorithms += BETWEEN_NODES
    choices = {"groups": GROUPS, "algorithm": algorithms}
    free = {name: values for name, values in choices.items() if name not in given}
    for values in product(*free.values()):
        chosen: dict[str, Any] = dict(zip(free, values, strict=True))
        yield predict(replace(job, **chosen))


def _time_s(answer: Prediction) -> float:
    return answer.run.total_s
