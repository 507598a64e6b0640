"""Accuracy against global batch for SGD and LARS: `python -m rn50.cli.large_batch`.

The shape of You et al.'s Figure 1 at our scale. Every run is a real `rn50 launch smoke` on one
rank, the same number of epochs at every batch. A row in the CSV is a run done: it is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import math
import shlex
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..config.errors import UserError
from ..launch.ending import GO_ON, Ending, interrupt
from ..launch.run import launch, load_for_launch
from ..report.charts import finish, new_figure, save
from .console import EXIT_STOPPED, EXIT_USAGE

BATCHES = (20, 50, 125, 250, 500)
SEEDS = (1, 2, 3)
EPOCHS, WARMUP_EPOCHS = 8, 2
FIRST_LR = 0.05
"""Base LR of every curve at the smallest batch; it drives batch norm and biases in LARS too."""
LARS_ETA = 0.4


class Curve(NamedTuple):
    """One line of the plot: base LR = FIRST_LR (B / smallest B) ** power."""

    variant: str
    power: float
    eta: float | None
    label: str


CURVES = {
    "sgd": Curve("sgd", 1.0, None, "SGD, linear scaling"),
    "sgd_sqrt": Curve("sgd", 0.5, None, "SGD, square-root scaling (control)"),
    "lars": Curve("nvidia", 0.5, LARS_ETA, "LARS, square-root scaling"),
}


class Case(NamedTuple):
    """One run to do."""

    curve: str
    batch: int
    seed: int


class Row(NamedTuple):
    """One run done: a line of the CSV."""

    curve: str
    batch: int
    seed: int
    base_lr: float
    eta: float | None
    epochs: int
    accuracy: float
    seconds: float


def base_lr(curve: Curve, batch: int) -> float:
    """The learning rate after warm-up at `batch`, by the curve's scaling rule."""
    return FIRST_LR * math.pow(batch / BATCHES[0], curve.power)


def overrides(case: Case, results: str) -> list[str]:
    """What differs from `smoke` in one run; it is evaluated once, after its last epoch."""
    curve = CURVES[case.curve]
    settings = [
        f"seed={case.seed}",
        f"batch.per_rank={case.batch}",
        f"optimizer.variant={curve.variant}",
        f"optimizer.base_lr={base_lr(curve, case.batch)!r}",
        f"schedule.length={EPOCHS} epochs",
        f"schedule.warmup={WARMUP_EPOCHS} epochs",
        f"eval.period={EPOCHS}",
        f"eval.offset={EPOCHS - 1}",
        "eval.target=0.999",
        "log.every=1000 steps",
        f"system.results={results}",
    ]
    return settings if curve.eta is None else [*settings, f"optimizer.eta={curve.eta!r}"]


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV; none where there is no file. Raises UserError for one of another shape."""
    if not path.exists():
        return []
    if not path.is_file():
        raise UserError(f"{path}: a CSV file expected, to which each run adds a row")
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    if not lines or tuple(lines[0]) != Row._fields:
        raise UserError(f"{path}: header {','.join(Row._fields)} expected")
    return [_parse(path, number, cells) for number, cells in enumerate(lines[1:], 2)]


def _parse(path: Path, number: int, cells: Sequence[str]) -> Row:
    try:
        curve, batch, seed, lr, eta, epochs, accuracy, seconds = cells
        return Row(
            curve,
            int(batch),
            int(seed),
            float(lr),
            float(eta) if eta else None,
            int(epochs),
            float(accuracy),
            float(seconds),
        )
    except ValueError:
        raise UserError(
            f"{path}:{number}: a row of {','.join(Row._fields)} expected, found {','.join(cells)}"
        ) from None


def append_row(path: Path, row: Row) -> None:
    """Add one row; a new file gets its header first."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(Row._fields)
        writer.writerow(row)


def is_current(row: Row) -> bool:
    """Whether `row` comes from today's settings; others neither count as done nor are drawn."""
    curve = CURVES.get(row.curve)
    return (
        curve is not None
        and row.eta == curve.eta
        and row.epochs == EPOCHS
        and math.isclose(row.base_lr, base_lr(curve, row.batch), rel_tol=1e-6)
    )


def missing(rows: Iterable[Row], curves: Iterable[str]) -> list[Case]:
    """The runs that `rows` lack, seed by seed, so that a part of them is already a whole plot."""
    done = {Case(row.curve, row.batch, row.seed) for row in rows if is_current(row)}
    wanted = (Case(c, b, s) for s in SEEDS for b in BATCHES for c in curves)
    return [case for case in wanted if case not in done]


def run_case(case: Case, results: str, launcher: str | None) -> Row:
    """Train once; the accuracy is that after the last epoch."""
    loaded = load_for_launch("smoke", overrides(case, results), 1)
    result = launch(loaded, launcher, lambda name: lambda done, total: None)
    return Row(
        *case,
        loaded.run.optimizer.base_lr,
        CURVES[case.curve].eta,
        result["epochs"],
        result["eval_accuracy"],
        round(result["time_to_train_s"], 3),
    )


class Point(NamedTuple):
    """Accuracy of one curve at one batch over its seeds."""

    batch: int
    mean: float
    low: float
    high: float
    n: int


def summarise(rows: Iterable[Row], curve: str) -> list[Point]:
    """The points of one curve in rising order of batch."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row.curve == curve and is_current(row):
            found.setdefault(row.batch, []).append(row.accuracy)
    return [
        Point(batch, statistics.fmean(values), min(values), max(values), len(values))
        for batch, values in sorted(found.items())
    ]


def table(rows: Sequence[Row]) -> str:
    """The summary as Markdown: mean (min to max) of each batch and curve."""
    cells = {(c, p.batch): p for c in CURVES for p in summarise(rows, c)}
    text = ["| batch | " + " | ".join(c.label for c in CURVES.values()) + " |"]
    text.append("|---" * (len(CURVES) + 1) + "|")
    for batch in sorted({batch for _, batch in cells}):
        points = [cells.get((name, batch)) for name in CURVES]
        shown = [f"{p.mean:.3f} ({p.low:.3f} to {p.high:.3f})" if p else "-" for p in points]
        text.append(f"| {batch} | " + " | ".join(shown) + " |")
    return "\n".join(text)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the plot as SVG, byte for byte the same from the same rows."""
    figure = new_figure(7.0, 4.2)
    axes = figure.subplots()
    for name, curve in CURVES.items():
        points = summarise(rows, name)
        if not points:
            continue
        batches = [p.batch for p in points]
        style = "--" if name == "sgd_sqrt" else "-"
        (line,) = axes.plot(batches, [p.mean for p in points], f"o{style}", label=curve.label)
        lows, highs = [p.low for p in points], [p.high for p in points]
        axes.fill_between(batches, lows, highs, color=line.get_color(), alpha=0.18, linewidth=0)
    axes.axhline(0.25, color="grey", linewidth=0.8, linestyle=":", label="guessing (4 classes)")
    axes.set_xscale("log", base=2)
    axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("global batch")
    axes.set_ylabel(f"top-1 accuracy after {EPOCHS} epochs")
    axes.set_title("smoke: mean, and smallest to largest, over the seeds", fontsize=10)
    finish(axes)
    save(figure, path)


def sweep(
    path: Path,
    curves: Sequence[str],
    train: Callable[[Case], Row],
) -> list[Row]:
    """Do the missing runs, writing each row as soon as it is there; returns all rows."""
    rows = read_rows(path)
    cases = missing(rows, curves)
    print(f"{path}: {len(rows)} rows, {len(cases)} runs to do", flush=True)
    for number, case in enumerate(cases, 1):
        row = train(case)
        append_row(path, row)
        rows.append(row)
        print(
            f"[{number}/{len(cases)}] {case.curve} batch {case.batch} seed {case.seed}: "
            f"accuracy {row.accuracy:.4f} in {row.seconds:.1f} s",
            flush=True,
        )
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Runs, then table and plot; user errors are one line and exit code 2, a stop exit code 130."""
    parser = argparse.ArgumentParser(prog="python -m rn50.cli.large_batch", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/large_batch.csv"), help="the CSV")
    parser.add_argument("--results", default="results", help="folder of the runs' files")
    parser.add_argument("--launcher", help="mpirun or gloo; default: mpirun where there is one")
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES))
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        rows = sweep(
            options.out,
            options.curves,
            lambda case: run_case(case, options.results, options.launcher),
        )
        print(table(rows))
        draw(rows, options.out.with_suffix(".svg"))
    except UserError as error:
        print(f"large_batch: error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        done = len(read_rows(options.out))
        again = shlex.join(["python", "-m", "rn50.cli.large_batch", *(arguments or sys.argv[1:])])
        ending = Ending(f"stopped; rows kept: {done}", str(options.out), GO_ON, again)
        print(f"large_batch: {ending.line}", file=sys.stderr)
        sys.exit(EXIT_STOPPED)
    print(f"{options.out.with_suffix('.svg')}: drawn")


if __name__ == "__main__":
    main()
