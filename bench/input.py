"""`rn50 data bench`: images per CPU-second of the input pipeline, and the roofline of a machine."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..config.load import Loaded, load, load_system
from ..config.machine import System
from ..config.manifest import Counts
from ..config.plan import build_plan
from ..config.schema import Run, Synthetic
from ..data.dataset import load_table
from ..data.prepare import prepare
from ..host.errors import UserError
from ..predict.fit import build
from ..predict.hardware import Machine, known_precisions
from ..predict.step import step_time
from .harness import BenchJob, Outcome, Samples, in_turn, ratio_spread, repeated, spread
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


def time_variant(out: Path, variant: str, images: int) -> float:
    """Images per CPU-second (all threads of this process) of one way for images to come in."""
    run = load(str(out / "config.yaml")).run
    step = VARIANTS[variant](run)
    batch = run.batch.per_rank
    batches = max(1, images // batch)
    repeated(step, WARM_UP_BATCHES)()
    began_s = _cpu_s()
    repeated(step, batches)()
    return batches * batch / (_cpu_s() - began_s)


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

    def graph(jpegs: Any, anchors: Any, shapes: Any, _: Any) -> Any:
        """The decoded windows alone."""
        return fn.decoders.image_slice(
            jpegs,
            anchors,
            shapes,
            axis_names="HW",
            device="cpu",
            adjust_orientation=False,
        )

    source = pipeline.build_train_source(
        run.data, build_plan(run), rank=0, seeds=SEEDS, graph=graph
    )
    return source.run


VARIANTS = {"decode": _decode, "full": _full}


# --- all ways in turn -----------------------------------------------------------------------------


def bench_input(
    job: BenchJob, *, passes: int, images: int, sizes_px: Sequence[int]
) -> Outcome:
    """Images per CPU-second of each way, in turn; decoders have one thread each. With drawn images
    of `sizes_px` the whole pipeline is timed besides."""
    loaded = job.load()
    if not loaded.run.data.augment:
        raise UserError("data.augment: true expected, found false")
    prepare(loaded.run.data, job.track, loaded.origins)
    contenders = {variant: (variant, loaded) for variant in VARIANTS}
    with tempfile.TemporaryDirectory(prefix="rn50-bench-") as scratch:
        for px in sizes_px:
            synthetic_config = _drawn(job, Path(scratch) / f"{px}", px)
            contenders[f"{px} px"] = ("full", synthetic_config)
        rates: Samples = {name: [] for name in contenders}
        for name in in_turn(job, "timing ways in, in turn", contenders, passes):
            variant, config = contenders[name]
            rate = measure_on_ranks(job, config, time_variant, variant, images)
            rates[name].append(rate)
    figures: dict[str, Any] = {
        f"{name}: images per CPU-second": spread(values)
        for name, values in rates.items()
    }
    table = load_table(Path(loaded.run.data.path), "train")
    figures["kB an image (mean)"] = float(table["length"].mean()) / 1e3
    ratio = ratio_spread(rates["full"], rates["decode"])
    return Outcome(
        ratios={"whole pipeline / decoding": ratio},
        figures=figures,
        measurements={"images per CPU-second": rates},
    )


def _drawn(job: BenchJob, folder: Path, px: int) -> Loaded:
    """The job's config on images of `px` pixels a side, drawn into `folder`."""
    run = job.load().run
    synthetic = Synthetic(train_samples=64, eval_samples=10, min_px=px, max_px=px)
    counts = synthetic.model_dump(include=set(Counts._fields))
    location = {"path": str(folder), "synthetic": synthetic, "shards": None}
    data = run.data.model_copy(update=counts | location)
    # of a batch that the set holds
    small = load("smoke", ["system.ranks_per_node=1"]).run
    system = small.system.model_copy(update={"results": run.system.results})
    prepare(data, job.track)
    return Loaded(small.model_copy(update={"data": data, "system": system}), {})


# --- what limits a GPU of a described machine -----------------------------------------------------


def trained_machine(name: str) -> tuple[Machine, int]:
    """The model of a described machine and the largest batch that its speed is known for, in
    float16 where it is. Raises UserError: no such machine, or its speed is not known."""
    system = load_system(name)
    precisions = known_precisions(system.performance) if system.performance else []
    model = build(name, system, *precisions[:1])
    batches = [point.batch for point in model.points]
    if not batches:
        raise UserError(
            f"{name}: a measured step in its performance section expected, found none: name a "
            "machine with points (`--system dgxa100`)"
        )
    return model, max(batches)


def with_roofline(outcome: Outcome, model: Machine, batch: int) -> Outcome:
    """The same measurements beside what limits a GPU of a described machine.

    Input rates that a GPU has its cores for, against its training rate: the rate a core is that of
    the machine measured on, the training rate that of `rn50 predict` at `batch` images.
    """
    figures = dict(outcome.figures)
    system = model.system
    train = batch / step_time(model, 1, batch).total_s
    cores = system.cores_per_rank
    read_bytes_per_s = model.performance.read_bytes_per_s / system.ranks_per_node
    # by all cores of a GPU
    variants = (*VARIANTS, *(f"{px} px" for px in SIZES_PX))
    rates = {
        variant: figures[f"{variant}: images per CPU-second"]["median"] * cores
        for variant in variants
    }
    inputs = {
        "read": read_bytes_per_s / (figures["kB an image (mean)"] * 1e3),
        f"decode on {cores} cores": rates["decode"],
        f"decode and augment on {cores} cores": rates["full"],
    }
    lowest = min(inputs, key=inputs.__getitem__)
    limit = lowest if inputs[lowest] < train else "training"
    training = {f"training, batch {batch}": train}
    lines = inputs | training
    for px in SIZES_PX:
        lines[f"input at {px} px on {cores} cores"] = rates[f"{px} px"]
    for line, rate in lines.items():
        figures[f"{line}: images/s a GPU"] = rate
    share = inputs[lowest] / train
    figures["limit"] = (
        f"{limit} is the limit, input has {share:.2f} of what training needs"
    )

    read_rate = {"read": inputs["read"]}
    draw = partial(_draw_roofline, system, rates, read_rate | training, training)
    return replace(outcome, figures=figures, draw=draw)


def _draw_roofline(
    system: System,
    rates: Mapping[str, float],
    limits: dict[str, float],
    training: dict[str, float],
    path: Path,
) -> None:
    """Input and training rates of a GPU: left against its cores, with what else limits it, right
    against the image size, beside what is published of a DGX-1's GPU.

    Args:
        system: the machine.
        rates: input by all cores of a GPU.
        limits: reading and training.
        training: the rate of training.
        path: the file to draw to.
    """
    from ..report.charts import INK, finish, new_panels, save

    figure, (by_cores, by_size) = new_panels(2, 6.4)
    cores = system.cores_per_rank
    counts = range(1, 2 * cores + 1)
    for variant in ("decode", "full"):
        a_core = rates[variant] / cores
        by_cores.plot(counts, [a_core * count for count in counts], label=variant)
    by_cores.axvline(cores, color=INK, ls=":", lw=1)
    by_cores.set(xlabel="cores a GPU")
    measured = [rates[f"{px} px"] for px in SIZES_PX]
    by_size.plot(SIZES_PX, measured, marker="o", label=f"full, {cores} cores")
    published = [total / PUBLISHED_GPUS for total in PUBLISHED_INPUT.values()]
    name = "input, DGX-1 (NVIDIA's slides)"
    by_size.plot(list(PUBLISHED_INPUT), published, "kD", label=name)
    by_size.set(xlabel="pixels a side, as stored")
    of_dgx1 = {
        f"training {network}, DGX-1, at least": total / PUBLISHED_GPUS
        for network, total in PUBLISHED_TRAINING.items()
    }
    for axes, label_x, levels in (
        (by_cores, 1, limits),
        (by_size, SIZES_PX[0], of_dgx1 | training),
    ):
        # lines that the axis does not change, each name above its line
        for name, rate in levels.items():
            axes.axhline(rate, ls="--", color=INK, lw=1)
            axes.annotate(name, (label_x, rate), (0, 3), textcoords="offset points")
        axes.set(ylabel="images/s a GPU", title=f"{system.name}: input, training")
        finish(axes)
    save(figure, path)
