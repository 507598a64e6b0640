"""The trainer on one random batch for each rank, which is on the device from the start: nothing is
read from disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .rank import alternate_on_ranks, next_steps, started_trainer

if TYPE_CHECKING:
    import mxnet as mx

    from ..data.pipeline import Batch
    from ..train.context import RunContext
    from ..train.trainer import Sources


class RandomBatch:
    """The same images and labels for every step."""

    def __init__(self, context: RunContext, ctx: mx.Context) -> None:
        import numpy as np
        from mxnet import nd

        from ..data.pipeline import Batch

        run = context.run
        generator = np.random.default_rng(context.process.rank)
        images = run.batch.per_rank
        sizes = {"N": images, "H": run.data.crop_px, "W": run.data.crop_px, "C": 3}
        shape = [sizes[axis] for axis in run.model.layout]
        pixels = generator.standard_normal(shape, np.float32)
        labels = generator.integers(run.data.classes, size=images)
        self._batch = Batch(nd.array(pixels, ctx), nd.array(labels, ctx, "float32"))
        self.device_id = ctx.device_id

    def next(self) -> Batch:
        """The batch of the next step."""
        return self._batch


def random_sources(context: RunContext, ctx: mx.Context) -> Sources:
    """Batches in the place of the pipelines from disk."""
    from ..train.trainer import Sources

    source = RandomBatch(context, ctx)
    return Sources(source, source)


def time_rounds(out: Path, rounds: int, steps: int) -> list[float]:
    """Train on one rank, round after round, each until the last rank has finished: wall seconds a
    step."""
    with started_trainer(out, random_sources) as trainer:
        contenders = {"steps": next_steps(trainer, steps)}
        seconds = alternate_on_ranks(trainer, contenders, rounds, pieces=steps)
        return seconds["steps"]
