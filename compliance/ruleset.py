"""Which round's rules a log is held to: given, else from the log and its folder.

What counts is the format, then the dates in the log and the folder of a round. A folder of an
earlier round than the dates does not count; dates before the folder's round are usual (145
published logs stand in the folders of later rounds too). Of several folders named after rounds the
one that holds a round's results (training_results_v4.0) counts, else the outermost.
"""

import re
from pathlib import Path
from typing import NamedTuple

from ..config import benchmark
from ..host.errors import UserError
from ..host.finding import shown
from ..logging.events import MLL, CannotRead, Log

# training_results_v4.0, v4.0 or v4.0.0
_ROUND_FOLDER = re.compile(r"(training_results_)?v(\d\.\d)(?:\.0)?")
_ROUND_FROM_MS = (
    ("4.0.0", 1_706_745_600_000),  # 2024-02
    ("3.1.0", 1_690_848_000_000),  # 2023-08
    ("3.0.0", 1_675_209_600_000),  # 2023-02
    ("2.1.0", 1_659_312_000_000),  # 2022-08
    ("2.0.0", 1_643_673_600_000),  # 2022-02
    ("1.1.0", 1_627_776_000_000),  # 2021-08
    ("1.0.0", 1_609_459_200_000),  # 2021-01
)
"""First month whose logs belong to a round: its checker appeared about then (mlcommons/logging tags
0.7 2020-06, 1.0 2021-05, 1.1 2021-10, 2.0 2022-05, 2.1 2022-10, 3.0 2023-05, 3.1 2023-09, 4.0
2024-05), and logs are written in the three months before the results are due."""
FIRST_MS = 1_514_764_800_000
"""The begin of 2018: there was no MLPerf before."""
LATEST_MS = 4_102_444_800_000
"""The end of 2099. What is later is no time, but microseconds or nanoseconds."""


class Ruleset(NamedTuple):
    """A ruleset and how it was found."""

    name: str
    source: str


def parse_ruleset(written: str) -> str:
    """A ruleset as people write it: 4.0.0, 4.0, v4.0. Raises UserError for one without ResNet."""
    name = benchmark.ruleset_name(written)
    if name is None:
        raise UserError(
            f"--ruleset: no ResNet rules in {shown(written)[1:-1]}; rulesets with ResNet: "
            f"{', '.join(benchmark.RULESETS)}"
        )
    return name


def find_ruleset(path: Path, log: Log | None, requested: str | None) -> Ruleset:
    """The ruleset of a log. Raises CannotRead where `requested` expects another format."""
    if requested is not None:
        name = parse_ruleset(requested)
        if log and (log.dialect == MLL) != (name == "0.6.0"):
            expected = ":::MLL" if name == "0.6.0" else ":::MLLOG"
            raise CannotRead(
                path,
                f"{expected} records expected for ruleset {name}, found :::{log.dialect}",
            )
        return Ruleset(name, "given")
    if log and log.dialect == MLL:
        return Ruleset("0.6.0", "format")
    folder = _from_path(path)
    dated = None
    if log:
        dated = _dated(log)
        if folder == "0.6.0":  # its format is that of 0.7 and later
            folder = None
    if dated and (folder is None or not benchmark.at_least(folder, dated)):
        return Ruleset(dated, "dates in the log")
    if folder:
        return Ruleset(folder, "path")
    return Ruleset(benchmark.RULESETS[-1], "newest with ResNet, the log has no dates")


def _dated(log: Log) -> str | None:
    """The round by the date of the run; None where no record has a date."""
    dated = [event for event in log.events if FIRST_MS <= event.time_ms < LATEST_MS]
    if not dated:
        return None
    # the run's own date, else that of the first record that has one
    start = next(
        (event for event in dated if event.key == "run_start"), dated[0]
    ).time_ms
    return next(
        (name for name, first_ms in _ROUND_FROM_MS if start >= first_ms), "0.7.0"
    )


def _from_path(path: Path) -> str | None:
    """The round that a folder of published results is named after."""
    matches = [_ROUND_FOLDER.fullmatch(part) for part in path.absolute().parts[:-1]]
    rounds = [m for m in matches if m and f"{m[2]}.0" in benchmark.RULESETS]
    # first those that say "training_results", as False sorts before True
    return next((f"{m[2]}.0" for m in sorted(rounds, key=lambda m: m[1] is None)), None)
