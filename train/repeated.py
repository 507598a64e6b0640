"""How many steps of an interrupted run its next attempt trains once more. Loads no framework."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


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
    stopped = re.search(
        r" at step (\d+)$", str(_parsed(_text(last / "result.json")).get("stopped"))
    )
    if stopped:
        return max(0, int(stopped[1]) - step)
    for line in reversed(_text(last / "metrics.jsonl").splitlines()):
        reached = _parsed(line).get("step")
        if isinstance(reached, int):
            return reached - step if reached > step else None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
