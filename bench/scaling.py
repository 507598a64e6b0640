"""`rn50 bench scaling`: networks x batches x ranks, weak and strong; throughput and efficiency.

Brookhaven's experiment, images/s and seconds an epoch over ranks, both ways: weak, the batch of a
rank is fixed; strong, the global batch is (Fujitsu's words).
"""

from __future__ import annotations

import io
import math
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from ..config import benchmark
from ..config.load import Loaded, load_system
from ..config.names import nearest_name
from ..host.atomic import check_output, write_file
from ..host.errors import UserError, failing_as
from .curves import Case, Timing, measure_curves
from .harness import BenchJob, Outcome, parse_counts

_WHOLE = (
    "model.width=64",
    "model.stem=imagenet",
    "model.zero_gamma=false",
    "model.depth=50",
)
MODELS = {
    "alexnet": ("model.network=alexnet", *_WHOLE),
    "googlenet": ("model.network=googlenet", *_WHOLE),
    "resnet50": ("model.network=resnet", *_WHOLE),
}
"""What makes each network of a config: the real ones, whatever its own is narrowed to."""

_PLAIN = (
    "batch.changes=[]",
    "batch.active_ranks=null",
    "optimizer.base_lr=0.001",  # at which every network stays finite
    f"data.train_samples={benchmark.IMAGENET_TRAIN_SAMPLES}",  # steps enough for any batch
    "data.eval_resize_px=1024",  # above any data.crop_px; nothing is evaluated
)


def measure(
    job: BenchJob, timing: Timing, *, models: str | None, ranks: str, batch: str | None
) -> Outcome:
    """Networks x batches x ranks without a data set: images/s, seconds an epoch, efficiency.

    Args:
        job: what the command line gives.
        timing: how often and how long.
        models: the networks, with commas; None: the config's own.
        ranks: the rank counts, with commas.
        batch: images of a rank, with commas; None: the config's own.
    """
    counts = parse_counts("--ranks", ranks)
    run = job.load(*_PLAIN, ranks=counts[0]).run
    names = models.split(",") if models else [run.name]
    for name in names:
        if models and name not in MODELS:
            hint = nearest_name(name, MODELS)
            raise UserError(
                f"--models: {', '.join(MODELS)} expected, found {name}{hint}"
            )
    batches = parse_counts("--batch", batch) if batch else [run.batch.per_rank]
    return measure_curves(
        job,
        plan_curves(names, batches, counts),
        lambda case: _load(job, case, case.ranks),
        timing,
    )


def plan_curves(
    names: list[str], batches: list[int], counts: list[int]
) -> dict[str, list[Case]]:
    """The jobs of each curve; a single rank count has no strong one."""
    curves: dict[str, list[Case]] = defaultdict(list)
    for name, per_rank, ranks in product(names, batches, counts):
        label = f"{name}, batch {per_rank}"
        curves[label].append(Case(name, ranks, per_rank))
        if len(counts) > 1:
            images = per_rank * math.lcm(*counts)  # which every rank count divides
            strong = f"{name}, {images} images"
            curves[strong].append(Case(name, ranks, images // ranks))
    return curves


def _load(job: BenchJob, case: Case, ranks: int | None) -> Loaded:
    """The config of a case, with all ranks on this machine; None: on the nodes of the config."""
    return job.load(
        *MODELS.get(case.model, ()),
        *_PLAIN,
        f"batch.per_rank={case.per_rank}",
        f"eval.batch_per_rank={case.per_rank}",
        ranks=ranks,
    )


def measure_reference(
    job: BenchJob, timing: Timing, save: Path | None, *, check: bool
) -> Outcome:
    """The config on its own nodes and ranks, as a run has it: its median rate is kept in the
    machine's file `save`, or judged by the rate that is there (`check`)."""
    if save is not None:
        # before minutes of measuring; a path, never a name
        load_system(str(save.resolve()))
        check_output(save)
    run = job.load(*_PLAIN).run
    name = run.name
    references = run.system.references
    if check and name not in references:
        names = ", ".join(references) or "none"
        raise UserError(
            f"system.references: one of {name} expected (--save), found {names}"
        )
    case = Case(name, run.system.world_size, run.batch.per_rank)
    outcome = measure_curves(
        job, {name: [case]}, lambda case: _load(job, case, None), timing
    )
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
        content = io.StringIO()
        yaml.dump(tree, content)
        write_file(machine, content.getvalue())
