"""Logs, runs and submissions side by side: hyper-parameters, clocks, curves, where they part."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from ..compliance.check_log import check_log
from ..compliance.submission import check_folder
from ..config.errors import UserError
from ..config.leaves import flatten
from .divergence import Divergence, diverge
from .run_folder import Subject, read_subjects
from .run_summary import RunSummary, in_order, show

MOST_SUBJECTS = 100
MISSING = "-"
_LOG_CHECK = "log check"


class Clock(NamedTuple):
    """A figure of a run; `key` names it in JSON."""

    key: str
    name: str
    unit: str
    read: Callable[[RunSummary], float | None]

    def of(self, subject: Subject) -> list[float]:
        """Of each run of a subject that has it."""
        return [value for run in subject.runs if (value := self.read(run)) is not None]


CLOCKS = (
    Clock("time_to_target_s", "time to target", "s", lambda r: r.reached and r.reached.time_s),
    Clock("time_to_train_s", "time to train (run_start to run_stop)", "s", lambda r: r.run_s),
    Clock("init_s", "init (init_start to init_stop)", "s", lambda r: r.init_s),
    Clock("init_stop_to_run_start_s", "init_stop to run_start", "s", lambda r: r.start_gap_s),
    Clock("epoch_s", "time per epoch", "s", lambda r: r.epoch_s),
    Clock("eval_s", "time per evaluation", "s", lambda r: r.eval_s),
    Clock("images_per_s", "training rate", "images/s", lambda r: r.images_per_s),
    Clock("epochs_to_target", "epochs to target", "", lambda r: r.reached and r.reached.epoch),
    Clock("best_accuracy", "best accuracy", "", lambda r: r.best and r.best.accuracy),
    Clock("target", "target", "", lambda r: r.target),
)


class Row(NamedTuple):
    """One line of a table: a text for each column; `differs` where two known values do."""

    name: str
    cells: tuple[str, ...]
    differs: bool = False


class Comparison(NamedTuple):
    """Subjects, each held against the first. Letters A, B, ..., Z, AA, AB, ... name them."""

    subjects: tuple[Subject, ...]
    submissions: tuple[Row, ...]
    parameters: tuple[Row, ...]
    config: tuple[Row, ...]
    """Values of the configs that differ, where at least two subjects have one."""
    times: tuple[Row, ...]
    curve: tuple[Row, ...]
    divergences: tuple[Divergence, ...]
    """Of the second, third, ... subject from the first."""
    same_files: tuple[str, ...]

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple(map(letter, range(len(self.subjects))))

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Of each subject, as `judged` says them."""
        return next(row.cells for row in self.submissions if row.name == _LOG_CHECK)


def letter(number: int) -> str:
    """0 -> A, 25 -> Z, 26 -> AA."""
    before, last = divmod(number, len(string.ascii_uppercase))
    return (letter(before - 1) if before else "") + string.ascii_uppercase[last]


def compare(subjects: Sequence[Subject]) -> Comparison:
    """Put subjects side by side. Raises UserError: too many, or none with a readable log."""
    if not 1 <= len(subjects) <= MOST_SUBJECTS:
        raise UserError(f"1 to {MOST_SUBJECTS} logs or folders expected, found {len(subjects)}")
    first = subjects[0]
    return Comparison(
        subjects=tuple(subjects),
        submissions=_submissions(subjects),
        parameters=_parameters(subjects),
        config=_config(subjects),
        times=tuple(_time_row(subjects, clock) for clock in CLOCKS),
        curve=_curve(subjects),
        divergences=tuple(diverge(first, other) for other in subjects[1:]),
        same_files=tuple(_same_files(subjects)),
    )


def read_all(paths: Iterable[Path]) -> list[Subject]:
    """The subjects of several paths, in their order. Raises UserError: none, or no log in one."""
    subjects = [subject for path in paths for subject in read_subjects(path)]
    for subject in subjects:
        if not subject.logs:
            raise UserError(f"{subject.path}: a log (result_0.txt) expected in it, found none")
    return subjects


def amount(value: float | None, unit: str = "") -> str:
    """A number for people: about five digits, thousands marked, its unit."""
    if value is None:
        return MISSING
    text = f"{value:,.{decimals(value)}f}" if unit else f"{value:.6g}"
    return f"{text} {unit}".rstrip()


def decimals(value: float) -> int:
    """Digits after the point of an amount with a unit."""
    size = abs(value)
    return 3 if size < 10 else 2 if size < 100 else 1 if size < 10_000 else 0


def _submissions(subjects: Sequence[Subject]) -> tuple[Row, ...]:
    rows = []
    for name in ("org", "platform", "division", "status"):
        cells = [_joined(run.submission.get(name) for run in s.runs) for s in subjects]
        rows.append(_row(name, cells))
    rows.append(_row("runs", [str(len(subject.logs)) for subject in subjects]))
    rows.append(_row(_LOG_CHECK, [judged(subject) for subject in subjects]))
    statuses = [_joined(run.status or "no run_stop" for run in s.runs) for s in subjects]
    return (*rows, _row("run_stop", statuses))


def judged(subject: Subject) -> str:
    """The verdict on a log, or on several as a submission, without the official checker."""
    if not subject.files:
        return MISSING
    if len(subject.files) > 1:
        return check_folder(subject.path, official=False)[-1].verdict
    return check_log(subject.files[0], official=False).verdict


def _parameters(subjects: Sequence[Subject]) -> tuple[Row, ...]:
    rows = []
    for name in in_order(key for s in subjects for run in s.runs for key in run.parameters):
        # The unit of decay steps is not logged: published logs have epochs as well as steps.
        title = f"{name} (unit not logged)" if name.endswith("decay_steps") else name
        cells = [_joined(_values(s.runs, name), several=name == "seed") for s in subjects]
        rows.append(_row(title, cells))
    return tuple(rows)


def _values(runs: Iterable[RunSummary], name: str) -> Iterable[str | None]:
    for run in runs:
        value = run.parameters.get(name)
        if isinstance(value, list):
            yield " | ".join(show(one) for one in value)
        else:
            yield show(value) if name in run.parameters else None


def _config(subjects: Sequence[Subject]) -> tuple[Row, ...]:
    trees: list[Mapping[str, Any] | None] = [
        dict(flatten(s.folder.config.to_dict())) if s.folder and s.folder.config else None
        for s in subjects
    ]
    keys = dict.fromkeys(key for tree in trees if tree is not None for key in tree)
    rows = []
    for key in keys:
        cells = [MISSING if t is None else show(t[key]) if key in t else "absent" for t in trees]
        row = _row(key, cells)
        if row.differs:
            rows.append(row)
    return tuple(rows)


def _time_row(subjects: Sequence[Subject], clock: Clock) -> Row:
    cells = []
    for known in map(clock.of, subjects):
        if not known:
            cells.append(MISSING)
        elif len(known) == 1 or min(known) == max(known):
            cells.append(amount(known[0], clock.unit))
        else:
            low, high = amount(min(known), "_").rstrip(" _"), amount(max(known), clock.unit)
            span = f"{low} to {high}"
            cells.append(f"{amount(median(known), clock.unit)} ({span})" if clock.unit else span)
    return Row(clock.name, tuple(cells), differs=clock.key == "target" and _differs(cells))


def _curve(subjects: Sequence[Subject]) -> tuple[Row, ...]:
    """Mean accuracy and time after run_start by epoch."""
    tables = [_by_epoch(subject) for subject in subjects]
    epochs = sorted({epoch for table in tables for epoch in table})
    return tuple(
        Row(f"epoch {epoch:g}", tuple(table.get(epoch, MISSING) for table in tables))
        for epoch in epochs
    )


def _by_epoch(subject: Subject) -> dict[float, str]:
    found: dict[float, list[tuple[float, float | None]]] = {}
    for run in subject.runs:
        for one in run.evaluations:
            if one.epoch is not None:
                found.setdefault(round(one.epoch, 3), []).append((one.accuracy, one.time_s))
    cells = {}
    for epoch, points in found.items():
        times = [time_s for _, time_s in points if time_s is not None]
        when = f" at {amount(fmean(times), 's')}" if times else ""
        cells[epoch] = f"{fmean(accuracy for accuracy, _ in points):.5f}{when}"
    return cells


def _joined(values: Iterable[str | None], *, several: bool = False) -> str:
    """The value that all runs share, else the different ones; `several`: only how many."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    if several and len(known) > 1:
        return f"{len(known)} values"
    return show(", ".join(known)) if known else MISSING


def _row(name: str, cells: Sequence[str]) -> Row:
    return Row(show(name), tuple(cells), _differs(cells))


def _differs(cells: Iterable[str]) -> bool:
    return len({cell for cell in cells if cell != MISSING}) > 1


def _same_files(subjects: Sequence[Subject]) -> Iterable[str]:
    for (i, left), (j, right) in combinations(enumerate(subjects), 2):
        shared = {log.digest for log in left.logs} & {log.digest for log in right.logs}
        if shared:
            one, other = letter(i), letter(j)
            yield (
                f"{one} and {other}: {len(shared)} of their logs "
                f"{'is' if len(shared) == 1 else 'are'} the same run "
                f"(same bytes, SHA-256 {min(shared)[:12]}...)"
            )
