"""Whether a run from a saved config repeats the recorded one: its accuracy curve, its losses."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError
from ..config.leaves import flatten
from .divergence import diverge, without_places
from .run_folder import RunFolder, Subject, read_folder
from .run_summary import Evaluation, show

_MAX_REASONS = 5


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
    """Hold the run in folder `out` against the one in folder `recorded`; never raises on content.

    The curves are the same if every accuracy is equal in every bit, at the same epochs.
    """
    try:
        old, new = _first_run(recorded), _first_run(out)
    except UserError as error:
        return Repeat(str(recorded), None, 0, show(str(error).splitlines()[0]))
    then, now = old.runs[0].evaluations, new.runs[0].evaluations
    both = min(len(then), len(now))
    if not both:
        where = "the recorded log" if not then else "the new log"
        return Repeat(str(recorded), None, 0, f"no evaluation in {where}")
    parts = [_curve_text(then, now, both)]
    same = all(_point(a) == _point(b) for a, b in zip(then, now, strict=False))
    found = diverge(old, new)
    if not same:
        near = "beyond" if found.parting else "within"
        parts.append(f"{near} 3 standard deviations ({found.basis})")
        if _free_to_differ(new.folder):
            parts.append("its GPU kernels were free to differ (deterministic: false)")
    bit = found.first_bit
    if bit is not None and bit.where is None:
        parts.append(f"all {bit.compared} losses and accuracies logged are equal")
    elif bit is not None:
        parts.append(f"first difference: {show(bit.where)}, {bit.right!r} here, {bit.left!r} there")
    reasons = _differences(old.folder, new.folder)
    if reasons:
        more = f" and {len(reasons) - _MAX_REASONS} more" if len(reasons) > _MAX_REASONS else ""
        parts.append(f"here, there: {', '.join(reasons[:_MAX_REASONS])}{more}")
    return Repeat(str(recorded), same, both, "; ".join(parts))


def _free_to_differ(folder: RunFolder | None) -> bool:
    if folder is None or folder.config is None:
        return False
    run = folder.config.run
    return run.system.device == "gpu" and not run.deterministic


def _first_run(folder: Path) -> Subject:
    subject = read_folder(folder)
    if not subject.logs:
        raise UserError(*subject.notes or (f"{folder}: no log",))
    return subject._replace(logs=subject.logs[:1])


def _point(one: Evaluation) -> tuple[float | None, float]:
    return one.epoch, one.accuracy


def _curve_text(then: tuple[Evaluation, ...], now: tuple[Evaluation, ...], both: int) -> str:
    for old, new in zip_longest(then, now):
        if old is None or new is None:
            longer = "recorded" if new is None else "new"
            return (
                f"same accuracy curve, bit for bit, as far as both go ({_count(both)}; the "
                f"{longer} run has {max(len(then), len(now))})"
            )
        if _point(old) != _point(new):
            return (
                f"other accuracy curve from {_epoch(new)} on: {new.accuracy!r} here, "
                f"{old.accuracy!r} there" + (f" ({_epoch(old)})" if old.epoch != new.epoch else "")
            )
    return f"same accuracy curve, bit for bit ({_count(both)}, {now[-1].accuracy!r} at the end)"


def _count(evaluations: int) -> str:
    return f"{evaluations} evaluation{'s' * (evaluations > 1)}"


def _epoch(one: Evaluation) -> str:
    return "an evaluation without an epoch" if one.epoch is None else f"epoch {one.epoch:g}"


def _differences(old: RunFolder | None, new: RunFolder | None) -> list[str]:
    """Config values, then launcher, processor and packages that differ: `name (here, there)`."""
    if old is None or new is None:
        return []
    found = []
    if old.config is not None and new.config is not None:
        then, now = without_places(old.config), without_places(new.config)
        found += _differing(then, now, list({**then, **now}))
    around = ("launcher", "processor", "packages")
    then, now = (
        dict(flatten({key: folder.environment.get(key) for key in around})) for folder in (old, new)
    )
    return found + _differing(then, now, list(then))


def _differing(then: dict[str, Any], now: dict[str, Any], keys: list[str]) -> list[str]:
    return [
        f"{show(key)} ({show(now.get(key), 40)}, {show(then.get(key), 40)})"
        for key in keys
        if then.get(key) != now.get(key)
    ]
