"""`rn50 data bench`: images per CPU-second of the input pipeline, and the roofline of a machine."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.errors import UserError
from ..config.load import Loaded, load
from ..config.machine import System
from ..config.manifest import Counts
from ..config.plan import build_plan
from ..config.schema import Run, Synthetic
from ..data.dataset import load_table
from ..data.prepare import prepare
from ..scaling.machine import known_precisions
from ..scaling.step import build, step_time
from .harness import BenchJob, Outcome, bench, in_turn, ratio_spread, spread
from .jobs import measure_on_ranks

SIZES_PX = (224, 288, 352, 416, 480)
PUBLISHED_GPUS = 8
PUBLISHED_INPUT = {352: 9_800.0, 480: 4_900.0}
PUBLISHED_TRAINING = {"ResNet-18": 14_000.0, "ResNet-50": 6_000.0}
"""Images/s of a DGX-1 with eight V100: "I/O pipeline throughputs" by pixels a side, and training on
synthetic data, of which the slides say "more than" (NVIDIA, "Making DL training times shorter",
slides "Roofline analysis" and "Throughput comparison"). They have no rate of AlexNet."""
SEEDS = {"shuffle": 1, "augment": 2, "flip": 3, "operations": 4}
WARM_UP_BATCHES = 8
"""These fill all queues: from then on a batch out is a batch in."""


# --- one way in, in a process of its own ----------------------------------------------------------


def time_way(out: Path, kind: str, images: str) -> float:
    """Images per CPU-second (all threads of this process) of one way for images to come in."""
    run = load(str(out / "config.yaml")).run
    step = WAYS[kind](run)
    batches = max(1, int(images) // run.batch.per_rank)
    for _ in range(WARM_UP_BATCHES):
        step()
    began_s = _cpu_s()
    for _ in range(batches):
        step()
    return batches * run.batch.per_rank / (_cpu_s() - began_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _full(run: Run) -> Callable[[], Any]:
    """The pipeline of training."""
    from ..data.pipeline import build_train_source

    source = build_train_source(
        run.data, build_plan(run), rank=0, seeds=SEEDS, layout=run.model.layout
    )
    return lambda: source.next().images.wait_to_read()


def _decode(run: Run) -> Callable[[], Any]:
    """DALI decoding the windows that training would see, nothing else."""
    from nvidia.dali import fn

    from ..data import pipeline

    def graph(
        jpegs: Any, labels: Any, anchors: Any, shapes: Any, _: Any
    ) -> tuple[Any, Any]:
        return fn.decoders.image_slice(
            jpegs,
            anchors,
            shapes,
            axis_names="HW",
            device="cpu",
            adjust_orientation=False,
        ), labels

    source = pipeline.build_train_source(
        run.data, build_plan(run), rank=0, seeds=SEEDS, graph=graph
    )
    return source.run


WAYS: dict[str, Callable[[Run], Callable[[], Any]]] = {"decode": _decode, "full": _full}


# --- all ways in turn -----------------------------------------------------------------------------


@bench("input", rank=time_way, config="quick")
def bench_input(
    job: BenchJob, *, passes: int, images: int, sizes_px: Sequence[int] = ()
) -> Outcome:
    """Images per CPU-second of each way, in turn; decoders have one thread each. With drawn images
    of `sizes_px` the whole pipeline is timed besides."""
    loaded = job.load()
    if not loaded.run.data.augment:
        raise UserError("data.augment: true expected, found false")
    prepare(loaded.run.data, job.track, loaded.origins)
    ways = {kind: (kind, loaded) for kind in WAYS}
    with tempfile.TemporaryDirectory(prefix="rn50-bench-") as scratch:
        for px in sizes_px:
            ways[f"{px} px"] = "full", _drawn(job, Path(scratch) / f"{px}", px)
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for way in in_turn(
            tuple(ways), passes, job.track("timing ways in, in turn", ticks=True)
        ):
            kind, its = ways[way]
            rates[way].append(
                measure_on_ranks(its, job.launcher, "input", kind, images)
            )
    table = load_table(Path(loaded.run.data.path), "train")
    return Outcome(
        ratios={
            "whole pipeline / decoding": ratio_spread(rates["full"], rates["decode"])
        },
        figures={
            **{f"{way}: images per CPU-second": spread(r) for way, r in rates.items()},
            "kB an image (mean)": float(table["length"].mean()) / 1e3,
        },
        measurements={"images per CPU-second": rates},
    )


def _drawn(job: BenchJob, folder: Path, px: int) -> Loaded:
    """The job's config on images of `px` pixels a side, drawn into `folder`."""
    run = job.load().run
    drawn = Synthetic(
        train_samples=64,
        eval_samples=10,
        min_px=px,
        max_px=px,
    )
    more = {field: getattr(drawn, field) for field in Counts._fields}
    more |= {"path": str(folder), "synthetic": drawn, "shards": None}
    # of a batch that the set holds
    small = load("smoke", ["system.ranks_per_node=1"]).run
    data = run.data.model_copy(update=more)
    system = small.system.model_copy(update={"results": run.system.results})
    small = small.model_copy(update={"data": data, "system": system})
    prepare(small.data, job.track)
    return Loaded(small, {})


# --- what limits a GPU of a described machine -----------------------------------------------------


def with_roofline(outcome: Outcome, system: System) -> Outcome:
    """The same measurements beside what limits a GPU of a described machine.

    Input rates that a GPU has its cores for, against its training rate: the rate a core is that of
    the machine measured on, the training rate that of `rn50 predict` at the largest batch that the
    speed of `system` is known for, in float16 where it is. Raises UserError: it is not known.
    """
    figures = outcome.figures
    known = known_precisions(system.performance) if system.performance else []
    model = build(system.name, system, known[0] if known else "fp16")
    batch = max(point.batch for point in model.points)
    train = batch / step_time(model, 1, batch).total_s
    cores = system.cores_per_rank
    read_bytes_per_s = model.performance.read_bytes_per_s / system.ranks_per_node
    rate = {
        way: figures[f"{way}: images per CPU-second"]["median"]
        for way in ("decode", "full", *(f"{px} px" for px in SIZES_PX))
    }
    inputs = {
        "read": read_bytes_per_s / (figures["kB an image (mean)"] * 1e3),
        f"decode on {cores} cores": rate["decode"] * cores,
        f"decode and augment on {cores} cores": rate["full"] * cores,
    }
    lowest = min(inputs, key=lambda line: inputs[line])
    limit = lowest if inputs[lowest] < train else "training"
    by_px = {
        f"input at {px} px on {cores} cores": rate[f"{px} px"] * cores
        for px in SIZES_PX
    }
    lines = inputs | {f"training, batch {batch}": train} | by_px
    return replace(
        outcome,
        figures={
            **figures,
            **{f"{line}: images/s a GPU": value for line, value in lines.items()},
            "limit": f"{limit} is the limit, input has {inputs[lowest] / train:.2f} of what "
            "training needs",
        },
        draw=lambda path: _draw_roofline(system, lines, rate, path),
    )


def _draw_roofline(
    system: System, lines: Mapping[str, float], rate: Mapping[str, float], path: Path
) -> None:
    """Input and training rates of a GPU: left against its cores, right against the image size,
    beside what is published of a DGX-1's GPU."""
    from ..report.charts import INK, finish, new_panels, save

    def level(axes: Any, name: str, value: float, x: float) -> None:
        """A line at a rate that the axis does not change, its name above it at `x`."""
        axes.axhline(value, ls="--", color=INK, lw=1)
        axes.annotate(name, (x, value), (0, 3), textcoords="offset points")

    figure, (by_cores, by_size) = new_panels(2, 6.4)
    cores = range(1, 2 * system.cores_per_rank + 1)
    for way in ("decode", "full"):
        by_cores.plot(cores, [rate[way] * count for count in cores], label=way)
    by_cores.axvline(system.cores_per_rank, color=INK, ls=":", lw=1)
    by_cores.set(xlabel="cores a GPU")
    measured = [rate[f"{px} px"] * system.cores_per_rank for px in SIZES_PX]
    by_size.plot(
        SIZES_PX, measured, marker="o", label=f"full, {system.cores_per_rank} cores"
    )
    published = [total / PUBLISHED_GPUS for total in PUBLISHED_INPUT.values()]
    by_size.plot(
        [*PUBLISHED_INPUT], published, "kD", label="input, DGX-1 (NVIDIA's slides)"
    )
    for network, total in PUBLISHED_TRAINING.items():
        of_dgx1 = f"training {network}, DGX-1, at least"
        level(by_size, of_dgx1, total / PUBLISHED_GPUS, SIZES_PX[0])
    by_size.set(xlabel="pixels a side, as stored")
    for axes, x in ((by_cores, 1), (by_size, SIZES_PX[0])):
        for name, value in lines.items():
            if " cores" not in name and not (axes is by_size and name == "read"):
                level(axes, name, value, x)
        axes.set(ylabel="images/s a GPU", title=f"{system.name}: input, training")
        finish(axes)
    save(figure, path)
