"""The minutes with a GPU: what it does and how fast, the most valuable part first, within 600 s.

    python -m tests.gpu.on_hardware results/gpu.md
    python -m tests.gpu.on_hardware results/gpu.md --config dgx1_8 --batches 32,104,208

Writes a page for docs/notebook/gpu.md, and each table as CSV into the folder of its name: here
results/gpu. Each part is a process of its own (hardware_body.py) with a limit of time. Its rows are
there as soon as it has ended; if it fails the page says so, and the rest goes on.
"""

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from rn50.train.cuda.driver import read_gpus
from tests.gpu.hardware_body import DEFAULTS, Options

ROOT = Path(__file__).parents[2]
ALL_S = 600.0
Row = list[Any]
DRAWN = (
    "data.synthetic.classes=100",
    "data.synthetic.train_samples=3200",
    "data.synthetic.eval_samples=400",
    "data.synthetic.min_px=350",
    "data.synthetic.max_px=500",
    "data.classes=100",
    "log.every=8 steps",
    "limits.min_accuracy_by=off",
    "checkpoint.enabled=false",
    "division=open",
    "optimizer.base_lr=2.0",
)
"""JPEG files of 100 KB: eight steps of 400 images an epoch on one rank."""


DECODING = ((12, 0.0), (8, 0.0), (6, 0.0), (6, 0.3), (6, 0.5))
"""Threads, and the share of the GPU's decoder."""


class Part(NamedTuple):
    """A process: its arguments for hardware_body.py, how long it may take, overrides of the config,
    and whether it sees one GPU alone."""

    arguments: tuple[str, ...]
    patience_s: int
    overrides: tuple[str, ...] = ()
    alone: bool = True


class Section(NamedTuple):
    """A table: the name of its CSV. `header`: empty where the first row is it. `fold`: all of it
    for the page."""

    name: str
    title: str
    header: tuple[str, ...]
    parts: Sequence[Part]
    fold: Callable[[list[Row]], list[Row]] = list


RUNS = ("run", "exit", "images/s", "ms a step", "input", "exposed", "result")


def sections(
    batches: Sequence[str], config: str, folder: Path, gpus: int
) -> Iterator[Section]:
    """All of the page."""
    small, large = batches[0], batches[-1]
    middle = batches[len(batches) // 2]
    base = (config, *DRAWN, f"data.path={folder / 'images'}")
    if gpus > 1:
        yield from of_several(base, gpus)
    yield Section(
        "machine", "Machine", ("what", "found"), [Part(("machine", middle), 25)]
    )
    yield Section(
        "calls",
        "Kinds of calls, each between two events",
        ("kind", "batch", "layer", "call", "us", "bytes", "FLOP"),
        [Part(("calls", batch), 20) for batch in batches],
        kinds,
    )
    for name, title, patience_s, fold in (
        (
            "engines",
            "Fused graphs and plain convolutions, the fastest engine",
            90,
            fastest,
        ),
        ("norms", "Norms of our own", 45, list),
    ):
        part = Part(("of_module", f"hardware_{name}", middle), patience_s)
        yield Section(name, f"{title}, batch {middle}", (), [part], fold)
    yield Section(
        "ways",
        "Steps with each way of batch norm",
        ("way", "batch", "capability", "median ms", "lowest", "highest"),
        [Part(("ways", batch), 15 + 7 * n) for n, batch in enumerate(batches)],
    )
    yield Section(
        "spin",
        "Steps while kernels of 1 ms take multiprocessors from backward",
        ("kernels a step", "batch", "median ms", "lowest", "highest"),
        [Part(("spin", middle), 25)],
    )
    yield Section(
        "steps",
        "Steps of one rank",
        ("way", "batch", "cycle ms", "median ms", "lowest", "highest", "images/s"),
        [
            Part(("steps", large), 25, ("comm.cycle_ms=0.1",)),
            Part(("steps", small), 15, ("comm.cycle_ms=0.1",)),
            Part(("steps", small), 15, ("comm.cycle_ms=1.0",)),
        ],
    )
    yield Section(
        "memory",
        "Memory in use, by CUDA_MODULE_LOADING",
        ("loading", "after", "GB"),
        [Part(("memory", loading, large), 15) for loading in ("LAZY", "EAGER")],
    )
    yield Section(
        "jpeg",
        "One rank of `rn50 launch`, from JPEG files",
        RUNS,
        [
            Part(("launch", *arguments), patience_s)
            for arguments, patience_s in from_jpeg(base)
        ],
    )
    yield Section(
        "deterministic",
        "float16, `deterministic`: digests of two processes",
        ("what", "batch", "digest"),
        [Part(("digests", small), 15, ("deterministic=true",))] * 2,
    )
    yield Section(
        "doctor",
        "Doctor",
        ("check", "outcome", "found"),
        [Part(("doctor",), 60, (), alone=False)],
    )


def of_several(base: Sequence[str], gpus: int) -> Iterator[Section]:
    """What one GPU cannot say."""
    yield Section(
        "nccl",
        "NCCL",
        ("check", "outcome", "found"),
        [Part(("nccl",), 40, (), alone=False)],
    )
    arguments = (*base, *on_one_node(gpus))
    rules = ("single", "equal_bytes(8)")
    runs = [
        (f"{rule}, {gpus} GPUs", *arguments, f"comm.groups={rule}") for rule in rules
    ]
    yield Section(
        "groups",
        "Groups of gradients",
        RUNS,
        [Part(("launch", *run), 50, (), alone=False) for run in runs],
    )
    yield Section(
        "resume",
        "An epoch of `quick`, a stop and a resume",
        RUNS,
        [Part(("stop_and_resume", str(gpus)), 60, (), alone=False)],
    )


def on_one_node(ranks: int) -> tuple[str, ...]:
    """Overrides for so many ranks: as many steps as one rank, and an evaluation at the end."""
    epochs = 6 * ranks
    return (
        "system.nodes=1",
        f"system.ranks_per_node={ranks}",
        f"schedule.length={epochs} epochs",
        f"eval.period={epochs}",
        f"eval.offset={epochs - 1}",
    )


def from_jpeg(base: Sequence[str]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Label, config and overrides of runs of one rank, and seconds; the first draws the images."""
    one_rank = (*base, *on_one_node(1))
    for threads, load in DECODING:
        decoder = (f"data.decode_threads={threads}", f"data.hw_decoder_load={load}")
        label = f"{threads} threads, hw_decoder_load {load}"
        yield (label, *one_rank, *decoder), 40 if threads == 12 else 15


def kinds(rows: list[Row]) -> list[Row]:
    """Sums over calls, by batch and kind."""
    header: Row = ["kind", "batch", "calls", "MB an image", "ms", "GB/s", "TFLOP/s"]
    sums: dict[tuple[str, int], list[float]] = {}
    for kind, batch, _, _, us, moved, work in rows[1:]:
        for name in (kind, "all"):
            if name == "all" and kind.startswith("update"):
                continue
            total = sums.setdefault((name, batch), [0, 0, 0, 0])
            for column, value in enumerate((1, us, moved, work)):
                total[column] += value
    folded = [header]
    for (kind, batch), (count, us, moved, work) in sums.items():
        rates = [f"{moved / us / 1e3:,.0f}", f"{work / us / 1e6:,.0f}"]
        mb = f"{moved / batch / 1e6:.1f}"
        folded.append([kind, batch, int(count), mb, f"{us / 1e3:.2f}", *rates])
    return folded


def fastest(rows: list[Row]) -> list[Row]:
    """The one of the shortest time among rows that are alike up to their engine."""
    header, *measured = rows
    if "engine" not in header:
        return rows
    first = header.index("engine")
    time = header.index("us")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in measured:
        groups.setdefault(tuple(row[:first]), []).append(row)
    folded = [[*header[:first], "engines", *header[first:]]]
    for names, group in groups.items():
        best = min(group, key=lambda row: float(row[time] or "inf"))
        folded.append([*names, len(group), *best[first:]])
    return folded


def outcome(
    part: Part, options: Options = DEFAULTS, *, limit_s: float | None = None
) -> tuple[list[Row], str]:
    """The rows of a part's table, and why it did not come to its end within its limit of time."""
    limit_s = part.patience_s if limit_s is None else limit_s
    if limit_s <= 0:
        return [], "no time left"
    options = options._replace(
        overrides=[*options.overrides, *part.overrides], patience_s=0.9 * limit_s
    )
    command = [sys.executable, "-m", "tests.gpu.hardware_body"]
    environment = dict(os.environ)
    if part.alone:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        environment["CUDA_VISIBLE_DEVICES"] = visible.partition(",")[0]
    failure = ""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, json.dumps(options._asdict()), *part.arguments],
        cwd=ROOT,
        env=environment,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, errors = process.communicate(timeout=limit_s)
            if process.returncode:  # minus the number of a signal
                last = (errors.strip().splitlines() or [""])[-1]
                failure = f"exit code {process.returncode}: {last[:300]}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # those that it started too
            printed, _ = process.communicate()
            failure = f"no end within {limit_s:.0f} s"
    return [*map(json.loads, re.findall(r"^\[.*\]$", printed, re.M))], failure


def markdown(rows: Sequence[Row]) -> str:
    """A table; the first row is its header."""
    lines = []
    for cells in [rows[0], ["---"] * len(rows[0]), *rows[1:]]:
        row = " | ".join(str(cell).replace("|", "/") for cell in cells)
        lines.append(f"| {row} |\n")
    return "".join(lines)


def write_section(
    section: Section, page: Path, outcomes: Iterator[tuple[Part, list[Row], str]]
) -> bool:
    """A table of the page, and its CSV, which grows part by part; whether all parts ended."""
    rows: list[Row] = [[*section.header]] if section.header else []
    failures = []
    table = page.with_suffix("") / f"{section.name}.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows(rows)
        for part, part_rows, failure in outcomes:
            writer.writerows(part_rows)
            file.flush()
            rows += part_rows
            if failure:
                failures.append(
                    [" ".join(part.arguments)[:100], f"**failed**: {failure}"]
                )
    table_rows = section.fold(rows or [["part", "outcome"]])
    with page.open("a") as out:
        out.write(f"\n### {section.title}\n\n{markdown([*table_rows, *failures])}")
    return not failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and the tables; 1 where a part failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument(
        "--config", default=DEFAULTS.config, help="whose network and optimizer"
    )
    parser.add_argument("--batches", default="32,208,400", help="images a step, rising")
    parser.add_argument("--rounds", default=DEFAULTS.rounds, type=int)
    parser.add_argument("--steps", default=DEFAULTS.steps, type=int, help="of a round")
    parser.add_argument(
        "--patience", default=1, type=float, help="factor of all limits of time"
    )
    parser.add_argument("--parts", help="names of tables, with commas; default: all")
    parser.add_argument("overrides", nargs="*", help="key=value of the config")
    parsed = parser.parse_intermixed_args(arguments)
    page: Path = parsed.page
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(
        parsed.config, parsed.overrides, parsed.rounds, parsed.steps, str(folder)
    )
    gpus = read_gpus()
    batches = parsed.batches.split(",")
    until_s = time.monotonic() + ALL_S * parsed.patience

    def outcomes(section: Section) -> Iterator[tuple[Part, list[Row], str]]:
        for part in section.parts:
            print(*part.arguments, file=sys.stderr)
            limit_s = min(part.patience_s * parsed.patience, until_s - time.monotonic())
            yield part, *outcome(part, options, limit_s=limit_s)

    page.write_text(
        f"## On hardware: {parsed.config}, {datetime.now(tz=timezone.utc).date()}\n"
    )
    count = len(gpus.devices) if gpus else 0
    all_ended = True
    for section in sections(batches, parsed.config, folder, count):
        if parsed.parts is None or section.name in parsed.parts.split(","):
            ended = write_section(section, page, outcomes(section))
            all_ended = all_ended and ended
    return 0 if all_ended else 1


if __name__ == "__main__":
    sys.exit(main())
