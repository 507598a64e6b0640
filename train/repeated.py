"""How far a run came, by its files, and what its next attempt trains again. Loads no framework."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ..config.reading import open_file, read_file

_MOST_BYTES = 16 << 20
"""Of a JSON object in a run's folder: result.json has some kB."""
_END_BYTES = 1 << 20
"""Of either end of a log: 7,000 lines of metrics.jsonl."""
_PIECE_BYTES = 1 << 20
_ATTEMPT = re.compile(r"attempt_([0-9]{1,9})")


def steps_repeated(out: Path, step: int) -> int | None:
    """Steps after `step`, where the run in `out` goes on, that the last attempt had trained.

    Exact for an attempt that ended in order, as its result.json says; else from below, by its last
    log point. None: not known; a rank that was killed may have trained on after that point.

    Args:
        out: the run's folder; `attempt_<n>/` holds what earlier attempts left.
    """
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
    """The step at which the run in `folder` stopped in order, as its result.json says."""
    said = read_object(folder / "result.json").get("stopped")
    found = re.search(r" at step ([0-9]{1,15})$", said) if isinstance(said, str) else None
    return int(found[1]) if found else None


def last_log_point(folder: Path) -> int | None:
    """The step of the last line of its metrics.jsonl that has one."""
    for line in reversed(read_ends(folder / "metrics.jsonl").splitlines()):
        step = parse_object(line).get("step")
        if type(step) is int and step >= 0:
            return step
    return None


def read_ends(path: Path) -> str:
    """The text of a log, of a long one its first and last megabyte; nothing where it cannot be
    read, or is no regular file of its folder."""
    try:
        with open_file(path, within=path.parent) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(_END_BYTES)
            if size > 2 * _END_BYTES:
                file.seek(-_END_BYTES, os.SEEK_END)
                start += b"\n"
            return (start + file.read(_END_BYTES)).decode(errors="replace")
    except OSError:
        return ""


def contains(path: Path, words: bytes) -> bool:
    """Whether a file has these words in it; arguments and refusals as of `read_ends`."""
    before = b""
    try:
        with open_file(path, within=path.parent) as file:
            while piece := file.read(_PIECE_BYTES):
                if words in before + piece:
                    return True
                before = piece[-len(words) :]
    except OSError:
        pass
    return False


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is none, or it is not of its folder."""
    try:
        return parse_object(read_file(path, _MOST_BYTES, within=path.parent).decode())
    except (OSError, ValueError):
        return {}


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object; an empty one where the text is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
