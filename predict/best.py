"""Which batch, gradient groups and algorithm train fastest on a machine of a given size. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from ..config.communication import offered_plans
from ..host.errors import UserError
from .predictor import PredictedJob, Prediction, predict

BATCHES = [quarters << octave for octave in range(7) for quarters in (4, 5, 6, 7)]
"""Images a GPU: four in each octave, from 4 to 448."""
LARGEST_GLOBAL_BATCH = 81_920
"""The largest batch of a whole run: Sony went to 119K images by batch-size control alone."""
GROUPS = (
    "single",
    "equal_bytes(2)",
    "equal_bytes(4)",
    "equal_bytes(8)",
    "halving(4)",
    "cubic(3)",
)


def best_of_each_batch(
    job_of: Callable[[int], PredictedJob], fixed: Collection[str]
) -> list[Prediction]:
    """The groups and the algorithm with the least time to train, for each batch that the machine's
    memory and the published recipes allow; the fastest batch first.

    Args:
        job_of: the job with so many images on each accelerator.
        fixed: what is not to be searched, of algorithm and groups.

    Raises UserError: no batch is possible.
    """
    best = []
    refused = ""
    for batch in BATCHES:
        try:
            job = job_of(batch)
            images = batch * job.gpus
            # the batches rise: the ones behind are larger still
            if images > LARGEST_GLOBAL_BATCH:
                beyond = f"{images:,} images a step are beyond every published run of one batch"
                refused = refused or beyond
                break
            best.append(min(_ways(job, fixed), key=_time_s))
        except UserError as error:
            refused = refused or str(error)
    if not best:
        raise UserError(f"--best: a batch that trains expected, {refused}")
    return sorted(best, key=_time_s)


def _ways(job: PredictedJob, fixed: Collection[str]) -> Iterator[Prediction]:
    """Predictions of all groups, the job's among them, with all algorithms that `rn50 launch`
    takes, the engine's own choice among them."""
    plans = [job.plan]
    if "algorithm" not in fixed:
        plans = list(offered_plans(job.plan, job.system, job.gpus))
    for plan in plans:
        for groups in dict.fromkeys((plan.groups, *GROUPS)):
            if groups == plan.groups:
                yield predict(replace(job, plan=plan))
            elif "groups" not in fixed:
                searched = replace(plan, groups=groups, groups_by="search")
                yield predict(replace(job, plan=searched))


def _time_s(answer: Prediction) -> float:
    return answer.run.total_s
