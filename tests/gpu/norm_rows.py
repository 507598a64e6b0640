"""Rows for the table of norms (train/gpu/norms.py) from the page's CSV:
`python -m tests.gpu.norm_rows results/gpu`."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

Times = dict[int, dict[str, float]]
"""Median ms by batch and way."""


def read_times(folder: Path) -> dict[str, Times]:
    """The times of a page's CSV by compute capability."""
    capabilities: dict[str, Times] = {}
    with (folder / "ways.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if not row["median ms"]:
                continue
            times = capabilities.setdefault(row["capability"], {})
            times_ms = times.setdefault(int(row["batch"]), {})
            times_ms[row["way"]] = float(row["median ms"])
    return capabilities


def rows(folder: Path) -> Iterator[str]:
    """Up to each batch the way of the shortest steps there; the last one's goes on."""
    for capability, times in read_times(folder).items():
        chosen: list[tuple[str, str]] = []
        for batch in sorted(times):
            times_ms = times[batch]
            fastest = min(times_ms, key=times_ms.__getitem__)
            if chosen and chosen[-1][1] == fastest:
                chosen.pop()
            chosen.append((str(batch), fastest))
            measured = [f"{norm} {ms:.2f}" for norm, ms in times_ms.items()]
            yield f"# {batch}: {', '.join(measured)} ms"
        chosen[-1] = ("ANY", chosen[-1][1])
        cells = [f"Row({limit}, Norms.{norm})" for limit, norm in chosen]
        yield f"({capability.replace('.', ', ')}): ({', '.join(cells)},)"


if __name__ == "__main__":
    for line in rows(Path(sys.argv[1])):
        print(line)
