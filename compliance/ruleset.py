"""Which round's rules a log is held to: given, else from the log and its folder.

A file beside a log decides nothing that the log itself or its place in the published results says:
its format, then its dates and the folder of a round. A folder of an earlier round than the dates
does not count; dates before the folder's round are usual (145 published logs stand in the folders
of later rounds too). Of several folders named after rounds the one that holds a round's results
(training_results_v4.0) counts, else the outermost.
"""

import re
from pathlib import Path
from typing import NamedTuple

from ..config import benchmark
from ..config.errors import UserError
from ..config.finding import NOTE, shown
from ..config.reading import open_file
from ..logging.events import MLL, CannotRead, Log
from ..logging.places import config_of
from .rule import Violation

_ROUND_FOLDER = re.compile(r"(training_results_)?v(\d\.\d)(?:\.0)?")
_CONFIG_LINE = re.compile(rb"^ruleset: *['\"]?(v?\d[\d.]*)", re.MULTILINE)
_CONFIG_BYTES = 1 << 16
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
_FIRST_MS, _LATEST_MS = 1_514_764_800_000, 4_102_444_800_000
"""2018, before which there was no MLPerf, to the end of 2099."""


class Ruleset(NamedTuple):
    """A ruleset, how it was found, and what contradicts it."""

    name: str
    source: str
    doubts: tuple[Violation, ...] = ()


def parse_ruleset(text: str) -> str:
    """A ruleset as people write it: 4.0.0, 4.0, v4.0. Raises UserError for one without ResNet."""
    name = benchmark.ruleset_name(text)
    if name is None:
        raise UserError(
            f"--ruleset: no ResNet rules in {shown(text)[1:-1]}; rulesets with ResNet: "
            f"{', '.join(benchmark.RULESETS)}"
        )
    return name


def find_ruleset(path: Path, log: Log | None, given: str | None) -> Ruleset:
    """The ruleset of a log. Raises CannotRead where `given` expects another format."""
    if given is not None:
        wanted = parse_ruleset(given)
        if log is not None and (log.dialect == MLL) != (wanted == "0.6.0"):
            expected = ":::MLL" if wanted == "0.6.0" else ":::MLLOG"
            rounds = "0.6" if log.dialect == MLL else "0.7 and later"
            raise CannotRead(
                path, f"this is the format of {rounds}; ruleset {wanted} expects {expected}"
            )
        return Ruleset(wanted, "given")
    folders, written = _from_path(path), _from_config(path)
    folder = folders[0] if folders else None
    found = _found(log, folder, written, path)
    doubts: list[Violation] = []

    def doubt(message: str, expected: str, actual: str, severity: str | None = None) -> None:
        doubts.append(
            Violation(
                message=message,
                expected=expected,
                actual=actual,
                advice="--ruleset decides",
                severity=severity,
            )
        )

    config = _config_source(path)
    if log is not None and found.source == config:
        message = f"nothing but {config} has the ruleset: the log has no stamps"
        doubt(message, "dates in the log", "none", NOTE)
    other = next((name for name in folders if name != folder), None)
    if other is not None:
        message = f"folders of the path are of {folder} and {other}: judged by {found.name}"
        doubt(message, "one round", f"{folder} and {other}")
    if found.source != "path" and folder is not None and folder != found.name:
        message = f"the folder is of {folder}, {found.source} of {found.name}: judged by it"
        doubt(message, found.name, folder)
    if written is not None and written != found.name:
        message = f"{config} has {written}, {found.source} {found.name}, which holds"
        doubt(message, found.name, written, NOTE)
    return found._replace(doubts=tuple(doubts))


def _dated(log: Log) -> str | None:
    """The round by the date of the run; None where no record has a date."""
    dated = [event for event in log.events if _FIRST_MS <= event.time_ms < _LATEST_MS]
    if not dated:
        return None
    start = next((event for event in dated if event.key == "run_start"), dated[0]).time_ms
    return next((name for name, first_ms in _ROUND_FROM_MS if start >= first_ms), "0.7.0")


def _found(log: Log | None, folder: str | None, written: str | None, path: Path) -> Ruleset:
    if log is not None and log.dialect == MLL:
        return Ruleset("0.6.0", "format")
    dated = _dated(log) if log is not None else None
    if log is not None:  # this is the format of 0.7 and later
        folder, written = (None if name == "0.6.0" else name for name in (folder, written))
        if any(event.time_ms for event in log.events):
            written = None
    if dated is not None and (folder is None or not benchmark.at_least(folder, dated)):
        return Ruleset(dated, "dates in the log")
    if folder is not None:
        return Ruleset(folder, "path")
    if written is not None:
        return Ruleset(written, _config_source(path))
    return Ruleset(benchmark.RULESETS[-1], "newest with ResNet, the log has no dates")


def _from_config(path: Path) -> str | None:
    """Of a run of this harness: its resolved config lies beside the log or in the job's folder."""
    config = config_of(path.parent)
    try:
        with open_file(config, within=config.parent) as file:
            match = _CONFIG_LINE.search(file.read(_CONFIG_BYTES))
    except OSError:
        return None
    return benchmark.ruleset_name(match[1].decode()) if match else None


def _config_source(path: Path) -> str:
    beside = config_of(path.parent).parent == path.parent
    return "config.yaml beside it" if beside else "config.yaml of the job"


def _from_path(path: Path) -> list[str]:
    """Of published results: rounds that folders are named after, the one that counts first."""
    matches = [_ROUND_FOLDER.fullmatch(part) for part in path.absolute().parts[:-1]]
    known = [m for m in matches if m is not None and f"{m[2]}.0" in benchmark.RULESETS]
    return [f"{m[2]}.0" for m in sorted(known, key=lambda m: m[1] is None)]
