"""`python -m tests.fuzz`: all kinds in turn until the time is over, or one case again.

python -m tests.fuzz --minutes 5 --jobs 1 [--kinds logs,configs] [--from SEED]
python -m tests.fuzz KIND SEED [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.kinds import BATCH, GENERATORS, warm_up
from tests.fuzz.runner import Failure, Job, run_jobs

_TELL_S = 15.0
_MOST_FAILURES = 200


def main() -> int:
    """Exit 0: nothing found; 1: something was, with the commands that show it again."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=sorted(GENERATORS))
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--keep", type=Path, help="write the case's files there and run nothing")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--kinds", default=",".join(GENERATORS), help="of them, with commas")
    parser.add_argument("--from", dest="first", type=int, help="first seed; default: of the clock")
    parser.add_argument("--save", type=Path, default=Path("fuzz_failures.txt"))
    given = parser.parse_args()
    if given.kind is not None and given.seed is not None:
        return _again(given.kind, given.seed, given.keep)
    kinds = [given.kind] if given.kind else given.kinds.split(",")
    first = int(time.time()) * 1000 if given.first is None else given.first
    return _search(kinds, given.minutes * 60, given.jobs, first, given.save)


def _again(kind: str, seed: int, keep: Path | None) -> int:
    """One case, its files kept or its steps run."""
    if keep is not None:
        keep.mkdir(parents=True)
        os.chdir(keep)
        made = GENERATORS[kind](seed, keep.absolute())
        print(made.description, *map(str, made.steps), sep="\n")
        return 0
    warm_up()
    found: list[Failure | None] = []
    run_jobs(GENERATORS, iter([Job(kind, (seed,))]), told=lambda *said: found.append(said[2]))
    print(found[0].text() if found[0] else f"{kind} {seed}: nothing wrong")
    return 1 if found[0] else 0


def _search(kinds: list[str], seconds: float, jobs: int, first: int, save: Path) -> int:
    warm_up()
    end_s = time.monotonic() + seconds
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    told_s = time.monotonic()

    def told(kind: str, seed: int, failure: Failure | None) -> None:
        nonlocal told_s
        counts[kind] += 1
        if failure is not None:
            failures.append(failure)
            print(failure.text(), flush=True)
            with save.open("a") as file:
                file.write(failure.text() + "\n\n")
        if time.monotonic() > told_s + _TELL_S:
            told_s = time.monotonic()
            left = max(0.0, end_s - told_s) / 60
            print(f"{_in_words(counts)}; {len(failures)} failures; {left:.1f} min left", flush=True)

    def wanted() -> Iterator[Job]:
        for number in itertools.count():
            for kind in kinds:
                if time.monotonic() > end_s or len(failures) >= _MOST_FAILURES:
                    return
                start = first + number * BATCH[kind]
                yield Job(kind, tuple(range(start, start + BATCH[kind])))

    run_jobs(GENERATORS, wanted(), jobs, told)
    print(f"{_in_words(counts)}; {len(failures)} failures", flush=True)
    if failures:
        print(f"{save}: what failed, and how to see it again")
    return 1 if failures else 0


def _in_words(counts: Counter[str]) -> str:
    return f"{sum(counts.values()):,} cases: " + ", ".join(f"{k} {n:,}" for k, n in counts.items())


if __name__ == "__main__":
    sys.exit(main())
