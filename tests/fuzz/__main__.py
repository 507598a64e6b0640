"""`python -m tests.fuzz`: all kinds in turn for half of the time, then interrupted runs; or so many
interruptions (a full proof: 200), or one case again.

python -m tests.fuzz --minutes 5
python -m tests.fuzz --interruptions 200
python -m tests.fuzz KIND SEED
"""

import argparse
import itertools
import math
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import interruptions
from tests.fuzz.cases import CASES
from tests.fuzz.runner import run_case


def main() -> int:
    """Exit 0: nothing found; 1: something was, with the commands that show it again."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=[*CASES, interruptions.KIND])
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
    problem = run_case(given.kind, given.seed)
    print(problem or "nothing wrong")
    return int(problem is not None)


def _search(first: int, minutes: float) -> int:
    end_s = time.monotonic() + 60 * minutes
    failures = 0
    for seed in itertools.count(first):
        if time.monotonic() > end_s:
            break
        for kind in CASES:
            if problem := run_case(kind, seed):
                failures += 1
                print(problem, flush=True)
    print(f"{len(CASES) * (seed - first):,} cases, {failures} failures")
    return int(failures > 0)


def _interrupt(first: int, minutes: float, most: float) -> int:
    """Runs with seeds from `first` on, until the time is over or there were `most` interruptions;
    one at least."""
    end_s = time.monotonic() + 60 * minutes
    count = 0
    failures = 0
    with tempfile.TemporaryDirectory(prefix="rn50-fuzz-") as folder:
        lab = interruptions.Lab(Path(folder))
        for seed in itertools.count(first):
            problem, struck = interruptions.run_case(lab, seed)
            count += struck
            failures += problem is not None
            print(problem or f"{seed}: {struck} interruptions", flush=True)
            if count >= most or time.monotonic() > end_s:
                break
    print(f"{count} interruptions, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
