"""`rn50 bench throughput`: ranks x batches on one random batch for each rank; no images on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..config import benchmark
from ..config.load import Loaded
from .curves import LOW_LR, Case, Timing, measure_curves, time_rounds
from .harness import Job, Outcome, bench, option, parse_counts

if TYPE_CHECKING:
    import mxnet as mx

    from ..data.pipeline import Batch
    from ..train.context import RunContext
    from ..train.trainer import Sources

_PLAIN = (
    *("batch.changes=[]", "batch.active_ranks=null", LOW_LR),
    f"data.train_samples={benchmark.IMAGENET_TRAIN_SAMPLES}",  # steps enough for any batch
    "data.eval_resize_px=1024",  # above any data.crop_px; nothing is evaluated
)


class RandomBatch:
    """The same images and labels for every step, on the device from the start."""

    def __init__(self, context: RunContext, ctx: mx.Context) -> None:
        import numpy as np
        from mxnet import nd

        from ..data.pipeline import Batch

        run = context.run
        draw = np.random.default_rng(context.process.rank)
        side, images = run.data.crop_px, run.batch.per_rank
        shape = (images, side, side, 3) if run.model.layout == "NHWC" else (images, 3, side, side)
        pixels = draw.standard_normal(shape, np.float32)
        labels = draw.integers(run.data.classes, size=images)
        self._batch = Batch(nd.array(pixels, ctx), nd.array(labels, ctx, "float32"))
        self.device_id = ctx.device_id

    def next(self) -> Batch:
        return self._batch


def random_sources(context: RunContext, ctx: mx.Context) -> Sources:
    """In the place of the pipelines from disk."""
    from ..train.trainer import Sources

    source = RandomBatch(context, ctx)
    return Sources(source, source)


def time_on_random(out: Path, rounds: str, steps: str) -> list[float]:
    """One rank, on its random batch."""
    from .rank import started_trainer

    return time_rounds(started_trainer(out, random_sources), rounds, steps)


@bench(
    "throughput",
    rank=time_on_random,
    config="quick",
)
def throughput(
    job: Job,
    *,
    ranks: Annotated[str, option("Rank counts on this machine.")] = "1,2",
    batch: Annotated[
        str | None, option("Images of a rank in a step; default: the config's.")
    ] = None,
    passes: Annotated[int, option("Jobs of each case, in turn.", min=1)] = 2,
    rounds: Annotated[int, option("Rounds of a job, after one that warms up.", min=1)] = 3,
    steps: Annotated[int, option("Steps of a round.", min=1)] = 10,
) -> Outcome:
    """Ranks x batches without a data set: images/s of all ranks and of one, and how they scale.

    The trainer's loop, gradient reduction and update on one random batch for each rank, which is on
    the device from the start: `data.classes` and `data.crop_px` may be any. Efficiency is against
    the fewest ranks at the same batch; s/epoch is of ImageNet.

    Example: `rn50 bench throughput quick --ranks 1,2 --batch 32,64 --plot throughput.svg`

    Example: `rn50 bench throughput cpu_small data.classes=1000 data.crop_px=224 --batch 4`
    """
    counts = parse_counts("--ranks", ranks)
    base = job.load(*_PLAIN, ranks=counts[0])
    batches = parse_counts("--batch", batch) if batch else [base.run.batch.per_rank]
    curves = {
        f"batch {images}": [Case(base.run.name, count, images) for count in counts]
        for images in batches
    }

    def load(case: Case) -> Loaded:
        own = (f"batch.per_rank={case.per_rank}", f"eval.batch_per_rank={case.per_rank}")
        return job.load(*_PLAIN, *own, ranks=case.ranks)

    return measure_curves(job, "throughput", curves, load, Timing(passes, rounds, steps))
