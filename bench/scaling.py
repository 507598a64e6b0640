"""`rn50 bench scaling`: networks x rank counts, weak and strong; throughput and efficiency.

Brookhaven's experiment. Weak: the batch of a rank is fixed; strong: the global batch is.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from ..config.errors import UserError
from ..config.load import Loaded
from ..config.names import nearest_name
from ..data.prepare import prepare
from .curves import LOW_LR, Case, Timing, measure_curves, time_rounds
from .harness import BenchJob, Outcome, bench, option, parse_counts

_PLAIN = (
    "model.width=64",
    "model.stem=imagenet",
    "model.zero_gamma=false",
    "model.depth=50",
)
MODELS: dict[str, tuple[str, ...]] = {
    "alexnet": ("model.network=alexnet", *_PLAIN),
    "googlenet": ("model.network=googlenet", *_PLAIN),
    "resnet50": ("model.network=resnet", *_PLAIN),
}
"""What makes each network of a config: the real ones, whatever its own is narrowed to."""


def time_on_images(out: Path, rounds: str, steps: str) -> list[float]:
    """One rank, on the config's images."""
    from .rank import started_trainer

    return time_rounds(started_trainer(out), rounds, steps)


@bench("scaling", rank=time_on_images, config="cpu_small")
def scaling(
    job: BenchJob,
    *,
    models: Annotated[
        str, option("alexnet, googlenet, resnet50.")
    ] = "alexnet,googlenet,resnet50",
    ranks: Annotated[str, option("Rising rank counts.")] = "1,2,4",
    passes: Annotated[int, option("Jobs of each case, in turn.", min=1)] = 3,
    rounds: Annotated[int, option("Rounds of a job.", min=1)] = 3,
    steps: Annotated[int, option("Steps of a round.", min=1)] = 4,
) -> Outcome:
    """Networks x rank counts, weak and strong: images/s, seconds per epoch, efficiency.

    The real trainer on the config's images, with networks of full width. Weak: a rank has
    `batch.per_rank` images; strong: all ranks together have as many at each count.

    Example: `rn50 bench scaling cpu_small --models resnet50 --ranks 1,2,4 --plot scaling.svg`
    """
    counts = parse_counts("--ranks", ranks)
    names = models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        hint = nearest_name(unknown[0], MODELS)
        raise UserError(
            f"--models: {', '.join(MODELS)} expected, found {unknown[0]}{hint}"
        )
    base = job.load(ranks=counts[0])
    batch = base.run.batch.per_rank
    total = batch * math.lcm(*counts)  # which every rank count divides
    curves = {}
    for name in names:
        curves[f"{name}, weak"] = [Case(name, count, batch) for count in counts]
        curves[f"{name}, strong"] = [
            Case(name, count, total // count) for count in counts
        ]
    prepare(base.run.data, job.track, base.origins)

    def load(case: Case) -> Loaded:
        settings = (*MODELS[case.model], LOW_LR, f"batch.per_rank={case.per_rank}")
        return job.load(*settings, ranks=case.ranks)

    return measure_curves(
        job,
        "scaling",
        curves,
        load,
        Timing(passes, rounds, steps),
    )
