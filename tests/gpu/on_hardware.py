"""The day a GPU is there: what it does and how fast, in 15 minutes at most, as a page for
docs/notebook/gpu.md.

    python -m tests.gpu.on_hardware page.md
    python -m tests.gpu.on_hardware page.md --config dgx1_8 --batches 32,104,208

Each part is a process of its own (hardware_body.py) with a limit of time. It is in the page as soon
as it has ended; one that fails says so, and the rest goes on.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from tests.gpu.hardware_body import DEFAULTS, Options, row

ROOT = Path(__file__).parents[2]
ROUTES = ("graphs", "eager", "operators")


class Part(NamedTuple):
    """A process: its words for hardware_body.py, and how long it may take."""

    words: tuple[str, ...]
    patience_s: int


class Section(NamedTuple):
    title: str
    header: tuple[str, ...]
    parts: tuple[Part, ...]


def sections(batches: Sequence[str]) -> Iterator[Section]:
    """All of the page."""
    middle = batches[len(batches) // 2]
    rates = [(route, batch) for route in ROUTES for batch in batches]
    yield Section(
        "Machine",
        ("what", "found"),
        (Part(("machine",), 30),),
    )
    yield Section(
        "Doctor",
        ("check", "outcome", "found"),
        (Part(("doctor",), 180),),
    )
    yield Section(
        "Losses of 20 steps of a small network",
        ("step", "CPU", "GPU, float32", "GPU, float16"),
        (Part(("losses",), 90),),
    )
    yield Section(
        "Images a second, by the plan with graphs and without, by MXNet's operators",
        ("route and batch", "median", "lowest", "highest", "ms a step", "GB in use"),
        tuple(Part(("rate", *words), 450 // len(rates)) for words in rates),
    )
    yield Section(
        f"Kinds of calls, each between two events, batch {middle}",
        ("kind", "calls", "MB an image", "ms", "GB/s"),
        (Part(("calls", middle), 90),),
    )
    yield Section(
        "NCCL, one rank",
        ("sum", "ms"),
        (Part(("nccl",), 60),),
    )


def outcome(
    part: Part, options: Options = DEFAULTS, *, patience: float = 1
) -> tuple[str, bool]:
    """The rows of a part's table, and whether it came to its end.

    Args:
        patience: factor of the part's limit of time.
    """
    limit_s = patience * part.patience_s
    command = [
        sys.executable,
        "-m",
        "tests.gpu.hardware_body",
        json.dumps(options._asdict()),
        *part.words,
    ]
    failure = ""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            rows, errors = process.communicate(timeout=limit_s)
            if process.returncode:  # minus the number of a signal
                last = (errors.strip().splitlines() or [""])[-1]
                failure = f"exit code {process.returncode}: {last[:300]}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # those that it started too
            rows, _ = process.communicate()
            failure = f"no end within {limit_s:g} s"
    if failure:
        rows += row(" ".join(part.words), f"**failed**: {failure}") + "\n"
    return rows, not failure


def main(words: Sequence[str] | None = None) -> int:
    """Write the page; 1 where a part failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument(
        "--config", default=DEFAULTS.config, help="whose network and optimizer"
    )
    parser.add_argument(
        "--batches",
        default="32,208,400",
        help="images a step, rising",
    )
    parser.add_argument("--rounds", default=DEFAULTS.rounds, type=int)
    parser.add_argument(
        "--steps",
        default=DEFAULTS.steps,
        type=int,
        help="of a round",
    )
    parser.add_argument(
        "--patience", default=1, type=float, help="factor of all limits of time"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        help="key=value of the config",
    )
    given = parser.parse_intermixed_args(words)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    options = Options(
        given.config,
        given.overrides,
        given.rounds,
        given.steps,
    )
    all_ended = True
    given.page.parent.mkdir(parents=True, exist_ok=True)
    with given.page.open("w") as page:
        today = datetime.now(tz=timezone.utc).date()
        print(f"## On hardware: {given.config}, {today}", file=page)
        for section in sections(given.batches.split(",")):
            line = row(*("---" for _ in section.header))
            print(
                f"\n### {section.title}\n\n{row(*section.header)}\n{line}",
                file=page,
                flush=True,
            )
            for part in section.parts:
                print(*part.words, file=sys.stderr)
                rows, ended = outcome(
                    part,
                    options,
                    patience=given.patience,
                )
                all_ended = all_ended and ended
                print(
                    rows,
                    end="",
                    file=page,
                    flush=True,
                )
    return 0 if all_ended else 1


if __name__ == "__main__":
    sys.exit(main())
