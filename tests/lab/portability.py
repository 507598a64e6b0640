"""The table of tests/lab/portability_test.sh, from what each root left in its folder of logs.

python3 -m tests.lab.portability FOLDER NAME ...
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

COLUMNS = (
    *("root", "date", "commit", "Debian", "Python", "NumPy", "compiler", "MPI"),
    *("digest of `smoke seed=1`", "set-up", "`smoke` with set-up", "tests"),
)


def row_of(logs: Path) -> tuple[dict[str, str], list[str]]:
    """The row of the root `logs.name`, and what was wrong; what it did not get to is a `?`."""
    record = json.loads((logs / "record.json").read_text())
    log = (logs / "log.txt").read_text(errors="replace")
    environment, result = (_json(logs / f"{name}.json") for name in ("environment", "result"))
    compiler = re.search(r"^\[setup +\d+ s\] Python \S+, (g\+\+\S* \S+),", log, re.M)
    ready = re.search(r"^\[setup +(\d+) s\] ready", log, re.M)
    built = "Horovod built" if "building Horovod" in log else "kept wheel of Horovod"
    debian = logs / "debian_version"
    digest = result.get("weights_digest")
    tests, failed = _tests(logs / "tests.xml")
    problems = []
    if record["smoke"] or not digest:
        problems.append(f"smoke: exit code 0 and a digest expected, found {record['smoke']}")
    elif record["tests"] or failed or tests == "?":
        problems.append(f"make test: exit code 0 expected, found {record['tests']}; {tests}")
    cells = (
        *(logs.name, record["date"], f"`{record['commit']}`"),
        debian.read_text().strip() if debian.is_file() else "?",
        environment.get("python", "?"),
        environment.get("packages", {}).get("numpy", "?"),
        compiler[1] if compiler else "?",
        (environment.get("mpi") or "?").partition(",")[0],  # Open MPI adds who built it, and when
        f"`{digest}`" if digest else "?",
        f"{ready[1]} s, {built}" if ready else "?",
        f"{record['smoke_s']} s",
        f"{tests}, {record['tests_s']} s",
    )
    return dict(zip(COLUMNS, cells, strict=True)), [f"{logs.name}: {p}" for p in problems]


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _tests(path: Path) -> tuple[str, int]:
    """The outcome of a suite in words, and how many tests failed."""
    if not path.is_file():
        return "?", 0
    count = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ElementTree.parse(path).iter("testsuite"):
        for name in count:
            count[name] += int(suite.get(name, 0))
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    return f"{passed} passed, {failed} failed, {count['skipped']} skipped", failed


def main(folder: Path, names: list[str]) -> int:
    """Print the table; 1 where a root failed or trained other weights than the others."""
    found = [row_of(folder / name) for name in names]
    problems = [problem for _, more in found for problem in more]
    digests = {row["digest of `smoke seed=1`"] for row, _ in found} - {"?"}
    if len(digests) > 1:
        problems.append(f"smoke seed=1: one digest expected, found {', '.join(sorted(digests))}")
    for cells in (COLUMNS, ("---",) * len(COLUMNS), *(row.values() for row, _ in found)):
        print("| " + " | ".join(cells) + " |")
    for problem in problems:
        print(f"portability_test: error: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
