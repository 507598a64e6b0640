"""How far a run came, by its files, and what its next attempt trains again. Loads no framework."""

from __future__ import annotations

import re
from pathlib import Path

from ..config.reading import read_object
from ..logging.metrics_read import newest_records

_ATTEMPT = re.compile(r"attempt_([0-9]{1,9})")


def steps_repeated(out: Path, step: int) -> int | None:
    """Steps after `step`, where the run in `out` goes on, that the last attempt had trained.

    Exact for an attempt that ended in order, by its result.json; else from below, by its last
    log point. None: not known; a rank that was killed may have trained on after that point. `out`:
    the run's folder; `attempt_<n>/` holds what earlier attempts left."""
    attempts = {
        int(found[1]): path
        for path in out.glob("attempt_*")
        if (found := _ATTEMPT.fullmatch(path.name))
    }
    if not attempts:
        return None
    last = attempts[max(attempts)]
    stopped, reached = stopped_at(last), last_log_point(last)
    if stopped is not None:
        return max(0, stopped - step)
    return reached - step if reached is not None and reached > step else None


def stopped_at(folder: Path) -> int | None:
    """The step at which the run in `folder` stopped in order, by its result.json."""
    stopped = read_object(folder / "result.json").get("stopped")
    found = re.search(r" at step ([0-9]{1,15})$", stopped) if isinstance(stopped, str) else None
    return int(found[1]) if found else None


def last_log_point(folder: Path) -> int | None:
    """The newest step that its metrics.jsonl has."""
    last = newest_records(folder / "metrics.jsonl", "train", "eval")
    steps = [record.get("step") for record in last.values()]
    return max((step for step in steps if type(step) is int and step >= 0), default=None)
