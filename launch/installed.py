"""Which packages of this environment have lost files, as on a scratch folder that is purged by age.

`scripts/setup.sh` runs this file by its path, when any package may be gone: it imports nothing but
Python's own library.

    python -I launch/installed.py record    writes the names of what is installed to packages.txt
    python -I launch/installed.py check     exit code 1 where a file is gone, with a line a package
"""

from __future__ import annotations

import csv
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
NAMES = Path(sys.prefix) / "packages.txt"


def folders(site: Path) -> dict[str, Path]:
    """The `.dist-info` of every package in `site`, by its name without its version."""
    return {path.name.split("-")[0].lower(): path for path in site.glob("*.dist-info")}


def losses(site: Path, expected: set[str]) -> Iterator[tuple[str, str]]:
    """Each package of which something is gone from `site`, with the first such file.

    `expected`: names of packages that have to be there. Compiled files are not looked for, since
    Python writes them again. 64 ms for 25,000 files.
    """
    present = folders(site)
    for name in sorted(expected | set(present)):
        if name not in present:
            yield name, "all of it"
            continue
        record = present[name] / "RECORD"
        if not record.is_file():
            yield name, f"{record.parent.name}/RECORD"
            continue
        with record.open(newline="") as rows:
            for file, *_ in csv.reader(rows):
                if not file.endswith(".pyc") and not (site / file).exists():
                    yield name, file
                    break


def losses_here() -> list[tuple[str, str]]:
    """Those of the Python that runs this; without packages.txt, of the packages that it can see."""
    expected = set()
    if NAMES.is_file():
        expected.update(NAMES.read_text().split())
    return list(losses(SITE, expected))


def main(task: str) -> int:
    """The task of the command line; returns the exit code."""
    if task == "record":
        names = sorted(folders(SITE))
        NAMES.write_text("".join(f"{name}\n" for name in names))
        return 0
    gone = losses_here()
    for name, file in gone:
        print(f"{name}: {file} is gone")
    return bool(gone)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
