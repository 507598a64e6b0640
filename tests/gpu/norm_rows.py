"""Rows for the table of norms from the page's CSV: `python -m tests.gpu.norm_rows results/gpu`."""

import csv
import sys
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path


def rows(folder: Path) -> Iterator[str]:
    """For each capability and batch the way of the shortest steps, with all medians in ms."""
    with (folder / "ways.csv").open(newline="") as file:
        timed = [row for row in csv.DictReader(file) if row["median ms"]]
    place = itemgetter("capability", "batch")
    timed.sort(key=lambda row: (float(row["capability"]), int(row["batch"])))
    for (capability, batch), ways in groupby(timed, place):
        ms = {row["way"]: float(row["median ms"]) for row in ways}
        fastest = min(ms, key=ms.__getitem__)
        measured = ", ".join(f"{way} {value:.2f}" for way, value in ms.items())
        key = f"({capability.replace('.', ', ')}), {batch}"
        yield f'({key}, "{fastest}"),  # {measured} ms'


if __name__ == "__main__":
    print("\n".join(rows(Path(sys.argv[1]))))
