"""`rn50 data bench`: how fast images come in a core, against MXNet's reader and bare decoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.errors import UserError
from ..config.load import Loaded, load
from ..config.machine import System
from ..config.manifest import Counts
from ..config.progress import Tracker
from ..config.schema import Run, Synthetic
from ..data.dataset import load_table
from ..data.prepare import prepare
from ..launch.supervisor import StopSignals
from ..report.charts import INK, finish, new_panels, save
from ..scaling.machine import Machine, known_precisions
from ..scaling.step import build, step_time
from .harness import Outcome, in_turn, ratio_spread, spread

KINDS = ("read", "decode", "full", "mxnet", "jpeg")
SIZES_PX = (224, 288, 352, 416, 480)
PUBLISHED_GPUS = 8
PUBLISHED_INPUT = {352: 9_800.0, 480: 4_900.0}
PUBLISHED_TRAINING = {"ResNet-18": 14_000.0, "ResNet-50": 6_000.0}
"""Images/s of a DGX-1 with eight V100: "I/O pipeline throughputs" by pixels a side, and training on
synthetic data, of which the slides say "more than" (NVIDIA, "Making DL training times shorter",
slides "Roofline analysis" and "Throughput comparison"). They have no rate of AlexNet."""


def bench_input(
    loaded: Loaded, *, passes: int, images: int, track: Tracker, sizes_px: Sequence[int] = ()
) -> Outcome:
    """Images per CPU-second of each kind, passes in turn; decoders have one thread each. With
    drawn images of `sizes_px` the whole pipeline is timed besides."""
    prepare(loaded.run.data, track, loaded.origins)
    if not loaded.run.data.augment:
        raise UserError("data.augment: true expected, found false")
    ways = {kind: (kind, loaded) for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="rn50-bench-") as scratch:
        for px in sizes_px:
            ways[f"{px} px"] = "full", _drawn(loaded.run, Path(scratch) / f"{px}", px, track)
        rates: dict[str, list[float]] = {way: [] for way in ways}
        progress = track("timing ways in, in turn")
        workers: dict[str, subprocess.Popen[str]] = {}
        try:
            with StopSignals() as stop:  # a signal within Popen would leave a worker running
                for way, (kind, its) in ways.items():
                    config = Path(scratch) / f"{way}.yaml"
                    config.write_text(its.to_yaml())
                    workers[way] = _start(config, kind, images)
            if stop.name:
                raise KeyboardInterrupt(stop.name)
            for way in in_turn(tuple(ways), passes, progress):
                seconds = _ask(workers[way], way)
                rates[way].append(seconds["images"] / seconds["cpu_s"])
        finally:
            for worker in workers.values():
                worker.kill()
                worker.communicate()
    table = load_table(Path(loaded.run.data.path), "train")
    return Outcome(
        ratios={
            "our pipeline / mx.io.ImageRecordIter": ratio_spread(rates["full"], rates["mxnet"]),
            "our pipeline / bare JPEG decoding": ratio_spread(rates["full"], rates["jpeg"]),
        },
        figures={
            **{f"{way}: images per CPU-second": spread(r) for way, r in rates.items()},
            "augment: CPU ms an image (full less decode)": spread(
                [1e3 / a - 1e3 / b for a, b in zip(rates["full"], rates["decode"], strict=True)]
            ),
            "kB an image (mean)": float(table["length"].mean()) / 1e3,
            "pixels a side (mean)": float((table["height"] + table["width"]).mean()) / 2,
            "crop px": loaded.run.data.crop_px,
        },
        measurements={"images per CPU-second": rates},
    )


def _drawn(run: Run, folder: Path, px: int, track: Tracker) -> Loaded:
    """A config that trains as `run` on images of `px` pixels a side, drawn into `folder`."""
    drawn = Synthetic(train_samples=64, eval_samples=10, min_px=px, max_px=px)
    more = {field: getattr(drawn, field) for field in Counts._fields}
    more |= {"path": str(folder), "synthetic": drawn, "shards": None}
    small = load("smoke").run  # of a batch that the set holds
    small = small.model_copy(update={"data": run.data.model_copy(update=more)})
    prepare(small.data, track)
    return Loaded(small, {})


def largest_batch(system: System) -> int:
    """The largest batch of a GPU that the speed of `system` is known for. Raises UserError: a
    machine whose speed is not known."""
    return max(point.batch for point in _model(system).points)


def _model(system: System) -> Machine:
    """In float16 where its speed is known."""
    known = known_precisions(system.performance) if system.performance else []
    return build(system.name, system, known[0] if known else "fp16")


def with_roofline(outcome: Outcome, system: System, batch: int) -> Outcome:
    """The same measurements beside what limits a GPU of a described machine.

    Input rates that a GPU has its cores for, against its training rate: the rate a core is that of
    the machine measured on, the training rate that of `rn50 predict`.
    """
    figures = outcome.figures
    model = _model(system)
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
    share = f"{inputs[lowest] / train:.2f} of what"
    limit = f"{lowest} is the limit, {share} training needs"
    if train <= inputs[lowest]:
        limit = f"training is the limit, input has {share} it needs"
    by_px = {f"input at {px} px on {cores} cores": rate[f"{px} px"] * cores for px in SIZES_PX}
    lines = inputs | {f"training, batch {batch}": train} | by_px
    return replace(
        outcome,
        figures={
            **figures,
            **{f"{line}: images/s a GPU": value for line, value in lines.items()},
            "limit": limit,
        },
        draw=lambda path: _draw_roofline(system, lines, rate, path),
    )


def _draw_roofline(
    system: System, lines: Mapping[str, float], rate: Mapping[str, float], path: Path
) -> None:
    """Input and training rates of a GPU: left against its cores, right against the image size,
    beside what is published of a DGX-1's GPU."""
    figure, (by_cores, by_size) = new_panels(2, 6.4)
    cores = range(1, 2 * system.cores_per_rank + 1)
    for way in ("decode", "full"):
        by_cores.plot(cores, [rate[way] * count for count in cores], label=way)
    by_cores.axvline(system.cores_per_rank, color=INK, ls=":", lw=1)
    by_cores.set(xlabel="cores a GPU")
    measured = [rate[f"{px} px"] * system.cores_per_rank for px in SIZES_PX]
    by_size.plot(SIZES_PX, measured, marker="o", label=f"full, {system.cores_per_rank} cores")
    published = [total / PUBLISHED_GPUS for total in PUBLISHED_INPUT.values()]
    by_size.plot([*PUBLISHED_INPUT], published, "kD", label="input, DGX-1 (NVIDIA's slides)")
    for network, total in PUBLISHED_TRAINING.items():
        of_dgx1 = f"training {network}, DGX-1, at least"
        _level(by_size, of_dgx1, total / PUBLISHED_GPUS, x=SIZES_PX[0])
    by_size.set(xlabel="pixels a side, as stored")
    for axes, x in ((by_cores, 1), (by_size, SIZES_PX[0])):
        for name, value in lines.items():
            if " cores" not in name and not (axes is by_size and name == "read"):
                _level(axes, name, value, x=x)
        axes.set(ylabel="images/s a GPU", title=f"{system.name}: input, training")
        finish(axes)
    save(figure, path)


def _level(axes: Any, name: str, value: float, *, x: float) -> None:
    """A line at a rate that the axis does not change, its name above it at `x`."""
    axes.axhline(value, ls="--", color=INK, lw=1)
    axes.annotate(name, (x, value), (0, 3), textcoords="offset points")


def _start(config: Path, kind: str, images: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rn50.bench.input_worker", str(config), kind, str(images)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ask(worker: subprocess.Popen[str], kind: str) -> dict[str, float]:
    assert worker.stdin is not None and worker.stdout is not None and worker.stderr is not None
    try:
        worker.stdin.write("go\n")
        worker.stdin.flush()
        while (line := worker.stdout.readline()) and not line.startswith("{"):
            pass
        return json.loads(line)
    except (OSError, ValueError):
        lines = worker.stderr.read().strip().splitlines() or ["no word of it"]
        raise UserError(f"data bench: {kind}: {lines[-1]}") from None
