"""How far a run came, by its files, and what its next attempt trains again. Loads no framework."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..config.reading import read_file

_MOST_BYTES = 256 << 20
"""Of a file of a run: its metrics have 150 bytes a line."""


def steps_repeated(out: Path, step: int) -> int | None:
    """Steps after `step`, where the run in `out` goes on, that the last attempt had trained.

    Exact for an attempt that ended in order, as its result.json says; else from below, by its last
    log point. None: not known; a rank that was killed may have trained on after that point.

    Args:
        out: the run's folder; `attempt_<n>/` holds what earlier attempts left.
    """
    attempts = [path for path in out.glob("attempt_*") if path.name[8:].isdigit()]
    if not attempts:
        return None
    last = max(attempts, key=lambda path: int(path.name[8:]))
    stopped, reached = stopped_at(last), last_log_point(last)
    if stopped is not None:
        return max(0, stopped - step)
    return reached - step if reached is not None and reached > step else None


def stopped_at(folder: Path) -> int | None:
    """The step at which the run in `folder` stopped in order, as its result.json says."""
    said = read_object(folder / "result.json").get("stopped")
    found = re.search(r" at step (\d+)$", str(said))
    return int(found[1]) if found else None


def last_log_point(folder: Path) -> int | None:
    """The step of the last line of its metrics.jsonl that has one."""
    for line in reversed(read_text(folder / "metrics.jsonl").splitlines()):
        step = parse_object(line).get("step")
        if isinstance(step, int):
            return step
    return None


def read_text(path: Path) -> str:
    """The text of a file; nothing where it cannot be read or is no regular file of its kind."""
    try:
        return read_file(path, _MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is none."""
    return parse_object(read_text(path))


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object; an empty one where the text is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
