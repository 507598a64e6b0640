"""Which batch, gradient groups and algorithm train fastest on a machine of a given size. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from ..config.benchmark import IMAGENET_TRAIN_SAMPLES
from ..config.errors import UserError
from ..config.machine import System
from .predict import Prediction, job_of_system, predict

BATCHES = sorted(
    size * power // 4 for power in (4, 8, 16, 32, 64, 128, 256) for size in (4, 5, 6, 7)
)
"""Images a GPU: four in each octave, from 4 to 448."""
LARGEST_GLOBAL_BATCH = 81_920
"""Of one batch for the whole run: Sony went to 119K images by batch-size control alone."""
GROUPS = ("single", "equal_bytes(2)", "equal_bytes(4)", "equal_bytes(8)", "halving(4)", "cubic(3)")
ALGORITHMS = {
    "gpu": ("ring", "double_tree"),
    "cpu": ("ring", "recursive_halving_doubling", "recursive_doubling"),
}
BETWEEN_NODES = ("torus_2d", "hierarchical")
"""What Horovod takes for several nodes alone."""


def best_of_each_batch(name: str, system: System, gpus: int, **given: Any) -> list[Prediction]:
    """The groups and the algorithm with the least time to train, for each batch that the machine's
    memory and the published recipes allow; the fastest batch first.

    Args:
        name: of the machine.
        system: the machine.
        gpus: accelerators.
        given: fields of `Job` that are not to be searched, such as `algorithm`.

    Raises UserError: no batch is possible.
    """
    found, refused = [], ""
    for batch in BATCHES:
        if batch * gpus > min(LARGEST_GLOBAL_BATCH, IMAGENET_TRAIN_SAMPLES):
            break
        try:
            found.append(min(_ways(name, system, gpus, batch, given), key=_time_s))
        except UserError as error:
            refused = refused or str(error)
    if not found:
        images = f"{gpus * BATCHES[0]:,} images a step"
        why = refused or f"{images} are beyond every published run of one batch"
        raise UserError(f"--gpus: a batch that trains expected for {gpus} on {name}, {why}")
    return sorted(found, key=_time_s)


def _ways(
    name: str, system: System, gpus: int, batch: int, given: dict[str, Any]
) -> Iterator[Prediction]:
    """Predictions of all groups and algorithms. Raises UserError: the batch is not possible."""
    yield predict(job_of_system(name, system, gpus, batch, **given))
    many = BETWEEN_NODES if gpus > system.ranks_per_node else ()
    choices = {"groups": GROUPS, "algorithm": (*ALGORITHMS[system.device], *many)}
    free = {key: values for key, values in choices.items() if key not in given}
    for values in product(*free.values()):
        chosen = dict(zip(free, values, strict=True))
        try:
            yield predict(job_of_system(name, system, gpus, batch, **given, **chosen))
        except UserError:  # such as a torus on one node
            continue


def _time_s(answer: Prediction) -> float:
    return answer.run.total_s
