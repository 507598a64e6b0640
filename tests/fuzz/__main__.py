"""`python -m tests.fuzz`: all kinds in turn for half of the time, then interrupted runs; or so many
interruptions (a full proof: 200), or one case again.

python -m tests.fuzz --minutes 5
python -m tests.fuzz --interruptions 200
python -m tests.fuzz KIND SEED
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import interruptions
from tests.fuzz.kinds import KINDS, warm_up
from tests.fuzz.runner import run_case


def main() -> int:
    """Exit 0: nothing found; 1: something was, with the commands that show it again."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "kind",
        nargs="?",
        choices=[*sorted(KINDS), interruptions.KIND],
    )
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--interruptions", type=int, metavar="N")
    given = parser.parse_args()
    first = int(time.time()) * 1000
    if given.interruptions is not None:
        return _interrupt(first, math.inf, given.interruptions)
    if given.kind is None or given.seed is None:
        failures = _search(first, given.minutes / 2)
        return failures | _interrupt(first, given.minutes / 2, math.inf)
    if given.kind == interruptions.KIND:
        return _interrupt(given.seed, math.inf, 0)
    warm_up()
    failure = run_case(given.kind, KINDS[given.kind][0], given.seed)
    print(failure.text() if failure else f"{given.kind} {given.seed}: nothing wrong")
    return 1 if failure else 0


def _interrupt(first: int, minutes: float, most: float) -> int:
    """Runs with seeds from `first` on, until the time is over or there were `most` interruptions;
    one at least."""
    end_s = time.monotonic() + 60 * minutes
    count = failures = 0
    with tempfile.TemporaryDirectory(prefix="rn50-fuzz-") as folder:
        lab = interruptions.Lab(Path(folder))
        for seed in itertools.count(first):
            failure, struck = interruptions.run_case(lab, seed)
            count += struck
            failures += failure is not None
            print(
                failure.text() if failure else f"{seed}: {struck} interruptions",
                flush=True,
            )
            if count >= most or time.monotonic() > end_s:
                break
    print(f"{count} interruptions, {failures} failures")
    return 1 if failures else 0


def _search(first: int, minutes: float) -> int:
    warm_up()
    kinds = list(KINDS)
    end_s = time.monotonic() + 60 * minutes
    failures = 0
    for number in itertools.count():
        kind = kinds[number % len(kinds)]
        seed = first + number // len(kinds)
        if time.monotonic() > end_s:
            print(f"{number:,} cases, {failures} failures")
            return 1 if failures else 0
        if failure := run_case(kind, KINDS[kind][0], seed):
            failures += 1
            print(failure.text(), flush=True)
    raise AssertionError("count() has no end")


if __name__ == "__main__":
    sys.exit(main())
