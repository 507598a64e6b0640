"""`python -m tests.fuzz`: all kinds in turn until the time is over, or one case again.

python -m tests.fuzz --minutes 5
python -m tests.fuzz KIND SEED
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from tests.fuzz.kinds import KINDS, warm_up
from tests.fuzz.runner import run_case


def main() -> int:
    """Exit 0: nothing found; 1: something was, with the commands that show it again."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=sorted(KINDS))
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--minutes", type=float, default=5.0)
    given = parser.parse_args()
    if given.kind is None or given.seed is None:
        return _search(int(time.time()) * 1000, given.minutes)
    warm_up()
    failure = run_case(given.kind, KINDS[given.kind][0], given.seed)
    print(failure.text() if failure else f"{given.kind} {given.seed}: nothing wrong")
    return 1 if failure else 0


def _search(first: int, minutes: float) -> int:
    warm_up()
    kinds = list(KINDS)
    end_s, failures = time.monotonic() + 60 * minutes, 0
    for number in itertools.count():
        kind, seed = kinds[number % len(kinds)], first + number // len(kinds)
        if time.monotonic() > end_s:
            print(f"{number:,} cases, {failures} failures")
            return 1 if failures else 0
        if failure := run_case(kind, KINDS[kind][0], seed):
            failures += 1
            print(failure.text(), flush=True)
    raise AssertionError("count() has no end")


if __name__ == "__main__":
    sys.exit(main())
