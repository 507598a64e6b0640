"""Logs, runs and submissions side by side: each is a row, each figure that it has a column."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ..compliance.check_log import Check, check_log
from ..compliance.score import score_checks
from ..compliance.submission import check_folder
from ..config import benchmark
from ..config.errors import UserError
from ..config.leaves import flatten
from ..config.schema import PLACES
from ..logging.places import job_of, run_folders
from .divergence import Divergence, diverge
from .published import machine_of
from .run_folder import Subject, read_subjects
from .run_summary import MISSING, RunSummary, decimals, show

RESULTS, PARAMETERS, CONFIG = "results", "hyper-parameters", "config"
SUBMISSION, CLOCKS = "submission", "clocks"


class Figure(NamedTuple):
    """A number that the log of a run gives."""

    title: str
    unit: str
    read: Callable[[RunSummary], float | None]


RESULT_FIGURES = {
    "time_to_train_s": Figure("time to train", "s", lambda r: r.run_s),
    "images_per_s": Figure("training rate", "images/s", lambda r: r.images_per_s),
    "best_accuracy": Figure("best accuracy", "", lambda r: r.best and r.best.accuracy),
    "target": Figure("target", "", lambda r: r.target),
    "epochs_to_target": Figure("epochs to target", "", lambda r: r.reached and r.reached.epoch),
}
"""Figures by the name of their column in `--sort` and in JSON."""
CLOCK_FIGURES = {
    "time_to_target_s": Figure("time to target", "s", lambda r: r.reached and r.reached.time_s),
    "init_s": Figure("init", "s", lambda r: r.init_s),
    "init_stop_to_run_start_s": Figure("init_stop to run_start", "s", lambda r: r.start_gap_s),
    "epoch_s": Figure("time per epoch", "s", lambda r: r.epoch_s),
    "eval_s": Figure("time per evaluation", "s", lambda r: r.eval_s),
}
FIGURES = {**RESULT_FIGURES, **CLOCK_FIGURES}
_ALWAYS = {"log_check", "accelerators", "images_per_s_each", "score", *FIGURES} - {"target"}


class Column(NamedTuple):
    """One column; `cells` are shown, `values` sorted by and given in JSON (None: not known)."""

    group: str
    key: str
    """What `--sort` calls it."""
    title: str
    cells: tuple[str, ...]
    values: tuple[float | str | None, ...]

    @property
    def differs(self) -> bool:
        """Whether two subjects have different values."""
        return len({cell for cell in self.cells if cell != MISSING}) > 1

    @property
    def places(self) -> tuple[int | None, ...]:
        """The place of each row by rising value, numbers before texts; the same for equal ones."""
        keys: list[Any] = [v if v is None else (isinstance(v, str), v) for v in self.values]
        rising = sorted({key for key in keys if key is not None})
        return tuple(None if key is None else rising.index(key) for key in keys)

    @property
    def is_number(self) -> bool:
        """Whether all values that are known are numbers."""
        return not any(isinstance(value, str) for value in self.values)


class Comparison(NamedTuple):
    """Subjects, each compared with the first."""

    subjects: tuple[Subject, ...]
    columns: tuple[Column, ...]
    """Of what any subject has, by groups."""
    divergences: tuple[Divergence, ...]
    """Of the second, third, ... subject from the first."""

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple(map(letter, range(len(self.subjects))))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(name_of, self.subjects))

    @property
    def table(self) -> tuple[Column, ...]:
        """The columns of a table of runs: what differs; of one run its results and clocks. A config
        value that the logs have too, under another name, has no column of its own."""
        logged = {one.cells for one in self.columns if one.group == PARAMETERS}
        return tuple(
            one
            for one in self.columns
            if one not in self.alike
            and (one.differs or one.key in _ALWAYS)
            and not (one.group == CONFIG and (one.key == "name" or one.cells in logged))
        )

    @property
    def alike(self) -> tuple[Column, ...]:
        """The results and clocks that are the same in all of several rows."""
        return tuple(
            one
            for one in self.columns
            if one.key in _ALWAYS and len(self.subjects) > 1 and len(set(one.cells)) == 1
        )

    @property
    def shared(self) -> tuple[tuple[str, str], ...]:
        """Title and value of each hyper-parameter that is the same in all logs that have it."""
        return tuple(
            (column.title, next(cell for cell in column.cells if cell != MISSING))
            for column in self.columns
            if column.group == PARAMETERS and not column.differs
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """What `divergences` say, a sentence each."""
        lines = []
        for name, found in zip(self.letters[1:], self.divergences, strict=True):
            lines.append(f"A and {name}: {found.curve_text}")
            if found.first_bit is not None:
                lines.append(f"A and {name}, same config and seed: {found.first_bit.text}")
        return tuple(lines)


def letter(index: int) -> str:
    """Return the letter of a subject: 0 -> A, 25 -> Z, 26 -> AA."""
    before, last = divmod(index, len(string.ascii_uppercase))
    return (letter(before - 1) if before else "") + string.ascii_uppercase[last]


def name_of(subject: Subject) -> str:
    """Return a short name: the last two parts of the path; a job's for its logs, ORG/SYSTEM for
    those of a submission."""
    path = subject.path.resolve()
    job = job_of(path)
    if job is None:
        parts = path.parts[-2:]
    elif run_folders(job):
        parts = job.parts[-2:]
    else:
        parts = (job.name, path.parent.name)
    return show("/".join(parts))


def read_all(paths: Iterable[Path]) -> list[Subject]:
    """Read the subjects of several paths, in their order. Raises UserError: none, or no log in
    one."""
    subjects = [subject for path in paths for subject in read_subjects(path)]
    for subject in subjects:
        if not subject.logs:
            raise UserError(f"{subject.path}: a log (result_0.txt) expected in it, found none")
    return subjects


def compare(subjects: Sequence[Subject]) -> Comparison:
    """Compare subjects, one or more, with the first of them."""
    divergences = tuple(diverge(subjects[0], other) for other in subjects[1:])
    found = (
        *_result_columns(subjects),
        *parameter_columns(subjects),
        *_config_columns(subjects),
        *_submission_columns(subjects),
        *(_figure_column(CLOCKS, key, subjects) for key in CLOCK_FIGURES),
    )
    return Comparison(
        subjects=tuple(subjects),
        columns=tuple(one for one in found if any(cell != MISSING for cell in one.cells)),
        divergences=divergences,
    )


def order_of(columns: Sequence[Column], sort: str | None, count: int) -> list[int]:
    """Return the rows by `--sort COLUMN`, or -COLUMN for falling values; what has no value comes
    last. Raises UserError: there is no such column."""
    if sort is None:
        return list(range(count))
    name = sort.removeprefix("-")
    column = next((column for column in columns if column.key == name), None)
    if column is None:
        keys = ", ".join(dict.fromkeys(column.key for column in columns))
        raise UserError(f"--sort: one of {keys} expected, found {name}")
    places = column.places
    known = [row for row in range(count) if places[row] is not None]
    known.sort(key=lambda row: places[row] or 0, reverse=sort.startswith("-"))
    return [*known, *(row for row in range(count) if places[row] is None)]


def to_json(comparison: Comparison, order: Sequence[int]) -> dict[str, Any]:
    """Return the comparison for programs, its subjects in `order`: numbers as logged, nothing
    rounded."""
    subjects = [
        {
            "letter": letter(row),
            "path": str(subject.path),
            "notes": list(subject.notes),
            "row": {column.key: column.values[row] for column in comparison.columns},
            "runs": [
                {
                    "path": str(log.path),
                    "status": log.figures.status,
                    **{key: figure.read(log.figures) for key, figure in FIGURES.items()},
                    "evaluations": [one._asdict() for one in log.figures.evaluations],
                }
                for log in subject.logs
            ],
        }
        for row, subject in enumerate(comparison.subjects)
    ]
    return {
        "subjects": [subjects[row] for row in order],
        "divergences": [
            {
                "right": name,
                **found._asdict(),
                "parting": found.parting and found.parting._asdict(),
                "first_bit": found.first_bit and found.first_bit._asdict(),
            }
            for name, found in zip(comparison.letters[1:], comparison.divergences, strict=True)
        ],
    }


def _result_columns(subjects: Sequence[Subject]) -> Iterable[Column]:
    yield from (_figure_column(RESULTS, key, subjects) for key in RESULT_FIGURES)
    yield from _accelerator_columns(subjects)
    checks = [_checks(subject) for subject in subjects]
    verdicts = [found[-1].verdict if found else MISSING for found in checks]
    yield _text_column(RESULTS, "log check", verdicts)
    scores = [_score(*pair) for pair in zip(subjects, checks, strict=True)]
    yield _text_column(RESULTS, "score (min)", scores)
    statuses = [_joined(run.status or "no run_stop" for run in one.runs) for one in subjects]
    yield _text_column(RESULTS, "run_stop", statuses)


def _checks(subject: Subject) -> tuple[Check, ...]:
    """The verdict on a log, or on several and last on them as a submission, without the official
    checker."""
    if len(subject.files) > 1:
        return check_folder(subject.path, official=False)
    return tuple(check_log(path, official=False) for path in subject.files)


def _score(subject: Subject, checks: tuple[Check, ...]) -> str:
    """The score of five runs or more, with the RCP factor where it is applied."""
    if len(subject.files) < benchmark.RUNS:
        return MISSING
    score = score_checks(subject.path, checks)
    if score.score_min is None:
        return MISSING
    factor = f" (x {score.scaling_factor:.4f})" if score.scaled else ""
    return f"{score.score_min:.3f}{factor}"


def _accelerator_columns(subjects: Sequence[Subject]) -> Iterable[Column]:
    """How many accelerators trained, and the rate of each; of a run on CPUs: its ranks."""
    machines = [machine_of(subject.path, subject.config) for subject in subjects]
    counts = [machine[1] if machine else None for machine in machines]
    yield _column(RESULTS, "accelerators", "accelerators", counts, ",.0f")
    rates = [_median(subject, RESULT_FIGURES["images_per_s"]) for subject in subjects]
    each = [r / n if r and n else None for r, n in zip(rates, counts, strict=True)]
    yield _column(RESULTS, "images_per_s_each", "images/s each", each, ",.1f")


def parameter_columns(subjects: Sequence[Subject]) -> Iterable[Column]:
    """The hyper-parameters of the logs, a column each."""
    names = (name for one in subjects for run in one.runs for name in run.parameters)
    for name in dict.fromkeys(names):
        # The unit of decay steps is not logged: published logs have epochs as well as steps.
        title = f"{name} (unit not logged)" if name.endswith("decay_steps") else name
        cells = [_joined(_values(one.runs, name)) for one in subjects]
        yield _text_column(PARAMETERS, title, cells)


def _values(runs: Iterable[RunSummary], name: str) -> Iterable[str]:
    for run in runs:
        if name in run.parameters:
            value = run.parameters[name]
            yield " | ".join(map(show, value)) if isinstance(value, list) else show(value)


def _config_columns(subjects: Sequence[Subject]) -> Iterable[Column]:
    """The values of configs, but for paths and for what the logs have under the same name."""
    trees: list[Mapping[str, Any] | None] = [
        dict(flatten(one.folder.config.to_dict())) if one.folder and one.folder.config else None
        for one in subjects
    ]
    logged = {name for one in subjects for run in one.runs for name in run.parameters}
    for key in dict.fromkeys(key for tree in trees if tree is not None for key in tree):
        if key.startswith(PLACES) or key.rpartition(".")[2] in logged:
            continue
        cells = [MISSING if t is None else show(t[key]) if key in t else "absent" for t in trees]
        yield _text_column(CONFIG, key, cells)


def _submission_columns(subjects: Sequence[Subject]) -> Iterable[Column]:
    for name in ("org", "platform", "division", "status"):
        cells = [_joined(run.submission.get(name, "") for run in one.runs) for one in subjects]
        yield _text_column(SUBMISSION, name, cells)
    yield _text_column(SUBMISSION, "runs", [str(len(subject.logs)) for subject in subjects])


def _figure_column(group: str, key: str, subjects: Iterable[Subject]) -> Column:
    """The median of each subject's runs, all with the same number of decimals."""
    figure = FIGURES[key]
    title, unit, _ = figure
    values = [_median(subject, figure) for subject in subjects]
    digits = decimals(min((abs(value) for value in values if value is not None), default=0.0))
    form = f",.{digits}f" if unit else ".5f" if key == "best_accuracy" else ".6g"
    return _column(group, key, f"{title}, {unit}" if unit else title, values, form)


def _median(subject: Subject, figure: Figure) -> float | None:
    found = [value for run in subject.runs if (value := figure.read(run)) is not None]
    return median(found) if found else None


def _column(group: str, key: str, title: str, values: Sequence[float | None], form: str) -> Column:
    cells = tuple(MISSING if value is None else format(value, form) for value in values)
    return Column(group, key, title, cells, tuple(values))


def _text_column(group: str, title: str, cells: Sequence[str]) -> Column:
    key = title.partition(" (")[0].replace(" ", "_")
    return Column(group, show(key), show(title), tuple(cells), tuple(map(_value, cells)))


def _value(cell: str) -> float | str | None:
    """What a cell is sorted by: its number where it is one."""
    if cell == MISSING:
        return None
    if re.fullmatch(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", cell, re.ASCII | re.IGNORECASE):
        return value if math.isfinite(value := float(cell)) else cell
    return cell


def _joined(values: Iterable[str]) -> str:
    """The value that all runs share, else the different ones."""
    return show(", ".join(dict.fromkeys(values))) or MISSING
