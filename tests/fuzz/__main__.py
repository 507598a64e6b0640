"""`python -m tests.fuzz`: interrupted runs with new seeds for so many minutes, or so many
interruptions (a full proof: 200), or one case again.

python -m tests.fuzz --minutes 5
python -m tests.fuzz --interruptions 200
python -m tests.fuzz --seed SEED
"""

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import interruptions


def main() -> int:
    """Exit 0: nothing found; 1: something was, with the commands that show it again."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    limit = parser.add_mutually_exclusive_group(required=True)
    limit.add_argument("--minutes", type=float)
    limit.add_argument("--interruptions", type=int, metavar="N")
    limit.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    most_s = 60 * (arguments.minutes or 0)
    most_interruptions = arguments.interruptions or 0
    first = arguments.seed or int(time.time()) * 1000
    begun_s = time.monotonic()
    count = 0
    failures = 0
    with tempfile.TemporaryDirectory(prefix="rn50-fuzz-") as folder:
        lab = interruptions.Lab(Path(folder))
        for seed in itertools.count(first):
            problem, interrupted = interruptions.run_case(lab, seed)
            count += interrupted
            failures += problem is not None
            print(problem or f"{seed}: {interrupted} interruptions", flush=True)
            if count >= most_interruptions and time.monotonic() - begun_s >= most_s:
                break
    print(f"{count} interruptions, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
