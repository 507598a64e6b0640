"""Which round's rules a log is held to: given, else from its surroundings, else from its dates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ..config import benchmark
from ..config.errors import UserError
from ..config.finding import shown
from .events import MLL, CannotRead, Log
from .places import config_of

_ROUND_FOLDER = re.compile(r"(?:training_results_)?v(\d\.\d)(?:\.0)?")
_CONFIG_LINE = re.compile(rb"^ruleset: *['\"]?(v?\d[\d.]*)", re.MULTILINE)
_CONFIG_BYTES = 1 << 16


class Ruleset(NamedTuple):
    """A ruleset and how it was found."""

    name: str
    source: str


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
    if log is not None and log.dialect == MLL:
        return Ruleset("0.6.0", "format")
    for name, source in (
        (_from_config(path), _config_source(path)),
        (_from_path(path), "path"),
        (log.ruleset if log is not None else None, "dates in the log"),
    ):
        if name is not None and (log is None or name != "0.6.0"):
            return Ruleset(name, source)
    return Ruleset(benchmark.RULESETS[-1], "newest with ResNet, the log has no dates")


def _from_config(path: Path) -> str | None:
    """Of a run of this harness: its resolved config lies beside the log or in the job's folder."""
    try:
        with config_of(path.parent).open("rb") as file:
            match = _CONFIG_LINE.search(file.read(_CONFIG_BYTES))
    except OSError:
        return None
    return benchmark.ruleset_name(match[1].decode()) if match else None


def _config_source(path: Path) -> str:
    beside = config_of(path.parent).parent == path.parent
    return "config.yaml beside it" if beside else "config.yaml of the job"


def _from_path(path: Path) -> str | None:
    """Of published results: a folder named after the round."""
    for part in reversed(path.absolute().parts[:-1]):
        match = _ROUND_FOLDER.fullmatch(part)
        if match is not None and f"{match[1]}.0" in benchmark.RULESETS:
            return f"{match[1]}.0"
    return None
