"""Whether a run from a saved config repeats the recorded one: its accuracy curve, its losses."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..config.errors import UserError
from ..config.leaves import flatten
from .divergence import diverge, without_places
from .run_folder import RunFolder, Subject, read_folder
from .run_summary import show

_MAX_REASONS = 5
_AROUND = ("launcher", "processor", "packages")
"""Sections of environment.json that are compared beside the config."""


class Repeat(NamedTuple):
    """`same`: as far as both curves go; None where there is nothing to compare."""

    recorded: str
    same: bool | None
    compared: int
    """Evaluations that both runs have."""
    text: str

    @property
    def line(self) -> str:
        """The one line for people."""
        heads = {True: "reproduced", False: "not reproduced", None: "cannot tell if reproduced"}
        return f"{heads[self.same]}: {self.text}; recorded run: {self.recorded}"


def find_recorded(config: str) -> Path | None:
    """The folder of the run whose saved config this is: a config.yaml with a log beside it."""
    path = Path(config)
    if path.name != "config.yaml" or not (path.parent / "result_0.txt").is_file():
        return None
    return path.parent


def compare_with_recorded(recorded: Path, out: Path) -> Repeat:
    """Compare the run in folder `out` with the one in folder `recorded`; never raises on content.

    The curves are the same if every accuracy is equal in every bit, at the same epochs.
    """
    try:
        old, new = _first_run(recorded), _first_run(out)
    except UserError as error:
        return Repeat(str(recorded), None, 0, show(str(error).splitlines()[0]))
    then, now = ([(e.epoch, e.accuracy) for e in one.runs[0].evaluations] for one in (old, new))
    both = min(len(then), len(now))
    if not both:
        where = "the recorded log" if not then else "the new log"
        return Repeat(str(recorded), None, 0, f"no evaluation in {where}")
    found = diverge(new, old)
    differing = [pair for pair in zip(then, now, strict=False) if pair[0] != pair[1]]
    if differing:
        (_, there), (epoch, here) = differing[0]
        near = "beyond" if found.parting else "within"
        parts = [
            f"other accuracy curve from epoch {show(epoch)}: {here!r} here, {there!r} there",
            f"{near} 3 standard deviations ({found.basis})",
        ]
    else:
        counts = f"evaluations: {len(now)} here, {len(then)} there"
        parts = [f"same accuracy curve, bit for bit ({counts})"]
    if found.first_bit is not None:
        parts.append(found.first_bit.text)
    if reasons := _differences(old.folder, new.folder):
        more = [f"and {len(reasons) - _MAX_REASONS} more"] if len(reasons) > _MAX_REASONS else []
        parts.append(f"here, there: {', '.join(reasons[:_MAX_REASONS] + more)}")
    return Repeat(str(recorded), not differing, both, "; ".join(parts))


def _first_run(folder: Path) -> Subject:
    subject = read_folder(folder)
    if not subject.logs:
        raise UserError(*subject.notes or (f"{folder}: no log",))
    return subject._replace(logs=subject.logs[:1])


def _differences(old: RunFolder | None, new: RunFolder | None) -> list[str]:
    """Config values, then launcher, processor and packages that differ: `name (here, there)`."""
    if old is None or new is None:
        return []
    then, now = (
        {
            **(without_places(folder.config) if folder.config else {}),
            **dict(flatten({key: folder.environment.get(key) for key in _AROUND})),
        }
        for folder in (old, new)
    )
    return [
        f"{show(key)} ({show(now.get(key), 40)}, {show(then.get(key), 40)})"
        for key in {**then, **now}
        if then.get(key) != now.get(key)
    ]
