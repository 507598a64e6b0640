"""The table of scripts/portability_test.sh, from what each root left in its folder of logs.

python3 -m tests.portability.results FOLDER NAME ... [--write docs/portability.md]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

BEGIN, END = "<!-- roots: begin -->", "<!-- roots: end -->"
ORDER = ("bookworm", "trixie", "mpich")
COLUMNS = (
    *("root", "date", "commit", "Debian", "Python", "NumPy", "compiler", "MPI"),
    *("digest of `smoke seed=1`", "set-up", "`smoke` with set-up", "tests"),
)
DIGEST = COLUMNS.index("digest of `smoke seed=1`")


class Root(NamedTuple):
    """A row of the table, and what was wrong."""

    cells: tuple[str, ...]
    problems: tuple[str, ...]


def read_root(logs: Path) -> Root:
    """What the run in the root `logs.name` left; what it did not get to is a question mark."""
    record = json.loads((logs / "record.json").read_text())
    log = (logs / "log.txt").read_text(errors="replace")
    environment, result = (_json(logs / f"{name}.json") for name in ("environment", "result"))
    debian = logs / "debian_version"
    problems = []
    if record["smoke"]:
        problems.append(f"./run_and_time.sh smoke: exit code 0 expected, found {record['smoke']}")
    elif not result.get("weights_digest"):
        problems.append("smoke: a weights_digest in result.json expected, found none")
    tests = "not run"
    if not record["smoke"]:
        counts = _counts(logs / "tests.xml")
        tests = f"{counts['passed']} passed, {counts['failed']} failed"
        if counts["skipped"]:
            tests += f", {counts['skipped']} skipped"
        tests += f", {record['tests_s']} s"
        if record["tests"] or counts["failed"] or not counts["passed"]:
            problems.append(f"make test: exit code 0 expected, found {record['tests']}; {tests}")
    cells = (
        *(logs.name, record["date"], f"`{record['commit']}`"),
        debian.read_text().strip() if debian.is_file() else "?",
        environment.get("python") or "?",
        environment.get("packages", {}).get("numpy") or "?",
        compiler_of(log),
        (environment.get("mpi") or "?").partition(",")[0],  # Open MPI adds who built it, and when
        f"`{result['weights_digest']}`" if result.get("weights_digest") else "?",
        set_up_of(log),
        f"{record['smoke_s']} s",
        tests,
    )
    return Root(cells, tuple(f"{logs.name}: {problem}" for problem in problems))


def compiler_of(log: str) -> str:
    """The compiler that scripts/setup.sh named in its log."""
    found = re.search(r"^\[setup +\d+ s\] Python \S+, (g\+\+\S*) (\S+),", log, re.M)
    return f"{found[1]} ({found[2]})" if found else "?"


def set_up_of(log: str) -> str:
    """Seconds of scripts/setup.sh, and if Horovod was built in them."""
    found = re.search(r"^\[setup +(\d+) s\] ready", log, re.M)
    built = "Horovod built" if "building Horovod" in log else "kept wheel of Horovod"
    return f"{found[1]} s, {built}" if found else "?"


def different_digests(rows: Sequence[Sequence[str]]) -> list[str]:
    """A sentence where the roots did not all train the same weights."""
    digests = {row[0]: row[DIGEST] for row in rows if row[DIGEST] != "?"}
    if len(set(digests.values())) < 2:
        return []
    found = ", ".join(f"{digest.strip('`')} ({name})" for name, digest in digests.items())
    return [f"smoke seed=1: one digest over all roots expected, found {found}"]


def rows_of(page: str) -> dict[str, tuple[str, ...]]:
    """Root -> cells of the table that `page` has."""
    inside = page.partition(BEGIN)[2].partition(END)[0]
    lines = (line for line in inside.splitlines() if line.startswith("| "))
    rows = (tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines)
    return {row[0]: row for row in rows if row[0] in ORDER and len(row) == len(COLUMNS)}


def table(rows: Mapping[str, Sequence[str]]) -> str:
    """Markdown, in the order of ORDER."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(rows[name] for name in ORDER if name in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_table(page: str, text: str) -> str:
    """`page` with `text` between its markers."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _counts(path: Path) -> dict[str, int]:
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    suites = ElementTree.parse(path).iter("testsuite") if path.is_file() else ()
    for suite in suites:
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        counts["failed"] += failed
        counts["skipped"] += skipped
        counts["passed"] += int(suite.get("tests", 0)) - failed - skipped
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", type=Path, help="folder with a folder of logs for each root")
    parser.add_argument("names", nargs="+", choices=ORDER, metavar="NAME")
    parser.add_argument("--write", type=Path, help="page whose table gets these rows")
    options = parser.parse_args(arguments)
    roots = [read_root(options.logs / name) for name in options.names]
    rows = {root.cells[0]: root.cells for root in roots}
    if options.write:  # rows of other roots stay, with their dates, and have to agree
        page = options.write.read_text()
        rows = rows_of(page) | rows
        options.write.write_text(with_table(page, table(rows)))
    problems = [problem for root in roots for problem in root.problems]
    problems += different_digests(list(rows.values()))
    print(table(rows))
    for problem in problems:
        print(f"portability_test: error: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
