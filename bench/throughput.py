"""`rn50 bench throughput`: ranks x batches on one random batch for each rank; no images on disk."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ruamel.yaml import YAML

from ..config import benchmark
from ..config.load import Loaded, load_system
from ..host.atomic import check_output, write_file
from ..host.errors import UserError, failing_as
from .curves import LOW_LR, Case, Timing, measure_curves, time_rounds
from .harness import BenchJob, Outcome, bench, count, option, parse_counts

if TYPE_CHECKING:
    import mxnet as mx

    from ..data.pipeline import Batch
    from ..train.context import RunContext
    from ..train.trainer import Sources

_PLAIN = (
    "batch.changes=[]",
    "batch.active_ranks=null",
    LOW_LR,
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
        images = run.batch.per_rank
        sizes = {"N": images, "H": run.data.crop_px, "W": run.data.crop_px, "C": 3}
        shape = [sizes[axis] for axis in run.model.layout]
        pixels = draw.standard_normal(shape, np.float32)
        labels = draw.integers(run.data.classes, size=images)
        self._batch = Batch(nd.array(pixels, ctx), nd.array(labels, ctx, "float32"))
        self.device_id = ctx.device_id

    def next(self) -> Batch:
        return self._batch


def random_sources(context: RunContext, ctx: mx.Context) -> Sources:
    """Batches in the place of the pipelines from disk."""
    from ..train.trainer import Sources

    source = RandomBatch(context, ctx)
    return Sources(source, source)


def time_on_random(out: Path, rounds: int, steps: int) -> list[float]:
    """One rank, on its random batch."""
    from .rank import started_trainer

    return time_rounds(started_trainer(out, random_sources), rounds, steps)


@bench("throughput", config="quick")
def throughput(
    job: BenchJob,
    *,
    ranks: Annotated[str, option("Rank counts on this machine.")] = "1,2",
    batch: Annotated[
        str | None, option("Images of a rank in a step; default: the config's.")
    ] = None,
    passes: Annotated[int, count("Jobs of each case, in turn.")] = 2,
    rounds: Annotated[int, count("Rounds of a job, after one that warms up.")] = 3,
    steps: Annotated[int, count("Steps of a round.")] = 10,
    save: Annotated[
        Path | None,
        option(
            "Write the rate, on the config's own ranks and batch, into this machine's YAML."
        ),
    ] = None,
    check: Annotated[
        bool,
        option(
            "Compare this rate with the machine's `references`; exit 1 if it is lower."
        ),
    ] = False,
) -> Outcome:
    """Ranks x batches without a data set: images/s of all ranks and of one, and how they scale.

    The trainer's loop, gradient reduction and update on one random batch for each rank, which is on
    the device from the start: `data.classes` and `data.crop_px` may be any. Efficiency is against
    the fewest ranks at the same batch; s/epoch is of ImageNet.

    Example: `rn50 bench throughput quick --ranks 1,2 --batch 32,64 --plot throughput.svg`

    Example: `rn50 bench throughput cpu_small data.classes=1000 data.crop_px=224 --batch 4`

    Example: `rn50 bench throughput quick --system mine.yaml --check`
    """
    timing = Timing(passes, rounds, steps)
    if save is not None or check:
        return _against_reference(job, save, timing, check=check)
    counts = parse_counts("--ranks", ranks)
    run = job.load(*_PLAIN, ranks=counts[0]).run
    batches = [run.batch.per_rank]
    if batch:
        batches = parse_counts("--batch", batch)
    curves: dict[str, list[Case]] = {}
    for images in batches:
        curves[f"batch {images}"] = [Case(run.name, n, images) for n in counts]
    load = partial(_load, job, here=True)
    return measure_curves(job, time_on_random, curves, load, timing)


def _load(job: BenchJob, case: Case, *, here: bool) -> Loaded:
    """`here`: all ranks on this machine; else on the nodes of the config."""
    return job.load(
        *_PLAIN,
        f"batch.per_rank={case.per_rank}",
        f"eval.batch_per_rank={case.per_rank}",
        ranks=case.ranks if here else None,
    )


def _against_reference(
    job: BenchJob, save: Path | None, timing: Timing, *, check: bool
) -> Outcome:
    """The config on its own nodes and ranks, as a run has it: its median rate is kept or judged."""
    if save is not None:
        # before minutes of measuring; a path, never a name
        load_system(str(save.resolve()))
        check_output(save)
    run = job.load(*_PLAIN).run
    name = run.name
    system = run.system
    references = system.references
    if check and name not in references:
        known = ", ".join(references) or "none"
        raise UserError(
            f"system.references: one of {name} expected (--save), found {known}"
        )
    case = Case(name, system.world_size, run.batch.per_rank)

    load = partial(_load, job, here=False)
    outcome = measure_curves(job, time_on_random, {name: [case]}, load, timing)
    rate = outcome.rows[0]["images_per_s"]["median"]
    notes = [*outcome.notes]
    passes = True
    if check:
        notes.append(references[name].line(name, rate))
        passes = references[name].passes(rate)
    if save is not None:
        save_reference(save, name, rate)
        notes.append(f"{save}: {name}: {rate:.4g} images/s")
    return replace(outcome, notes=notes, passes=passes)


def save_reference(machine: Path, config: str, images_per_s: float) -> None:
    """Write a rate into the machine's file, whose comments and other keys stay. Raises UserError:
    it cannot be written."""
    yaml = YAML()
    with failing_as(f"{machine}: cannot write"):
        tree: Any = yaml.load(machine.read_text()) or {}
        reference = tree.setdefault("references", {}).setdefault(config, {})
        reference["images_per_s"] = float(f"{images_per_s:.4g}")
        text = io.StringIO()
        yaml.dump(tree, text)
        write_file(machine, text.getvalue())
