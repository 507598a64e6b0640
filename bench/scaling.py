"""`rn50 bench scaling`: networks x rank counts, weak and strong; throughput and efficiency.

Brookhaven's experiment, images/s and seconds an epoch over ranks, both ways: weak, the batch of a
rank is fixed; strong, the global batch is (Fujitsu's words).
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Annotated

from ..config.load import Loaded
from ..config.names import nearest_name
from ..data.prepare import prepare
from ..host.errors import UserError
from .curves import LOW_LR, Case, Timing, measure_curves, time_rounds
from .harness import BenchJob, Outcome, bench, count, option, parse_counts

_PLAIN = (
    "model.width=64",
    "model.stem=imagenet",
    "model.zero_gamma=false",
    "model.depth=50",
)
MODELS = {
    "alexnet": ("model.network=alexnet", *_PLAIN),
    "googlenet": ("model.network=googlenet", *_PLAIN),
    "resnet50": ("model.network=resnet", *_PLAIN),
}
"""What makes each network of a config: the real ones, whatever its own is narrowed to."""


def time_on_images(out: Path, rounds: int, steps: int) -> list[float]:
    """One rank, on the config's images."""
    from .rank import started_trainer

    return time_rounds(started_trainer(out), rounds, steps)


@bench("scaling", config="cpu_small")
def scaling(
    job: BenchJob,
    *,
    models: Annotated[
        str, option("alexnet, googlenet, resnet50.")
    ] = "alexnet,googlenet,resnet50",
    ranks: Annotated[str, option("Rising rank counts.")] = "1,2,4",
    passes: Annotated[int, count("Jobs of each case, in turn.")] = 3,
    rounds: Annotated[int, count("Rounds of a job.")] = 3,
    steps: Annotated[int, count("Steps of a round.")] = 4,
) -> Outcome:
    """Networks x rank counts, weak and strong: images/s, seconds per epoch, efficiency.

    The real trainer on the config's images, with networks of full width. Weak: a rank has
    `batch.per_rank` images; strong: all ranks together have as many at each count.

    Example: `rn50 bench scaling cpu_small --models resnet50 --ranks 1,2,4 --plot scaling.svg`
    """
    counts = parse_counts("--ranks", ranks)
    names = models.split(",")
    for name in names:
        if name not in MODELS:
            hint = nearest_name(name, MODELS)
            raise UserError(
                f"--models: {', '.join(MODELS)} expected, found {name}{hint}"
            )
    base = job.load(ranks=counts[0])
    batch = base.run.batch.per_rank
    total = batch * math.lcm(*counts)  # which every rank count divides
    curves: dict[str, list[Case]] = defaultdict(list)
    for name, on_ranks in product(names, counts):
        strong_batch = total // on_ranks
        curves[f"{name}, weak"].append(Case(name, on_ranks, batch))
        curves[f"{name}, strong"].append(Case(name, on_ranks, strong_batch))
    prepare(base.run.data, job.track, base.origins)

    def load(case: Case) -> Loaded:
        return job.load(
            *MODELS[case.model],
            LOW_LR,
            f"batch.per_rank={case.per_rank}",
            ranks=case.ranks,
        )

    timing = Timing(passes, rounds, steps)
    return measure_curves(job, time_on_images, curves, load, timing)
