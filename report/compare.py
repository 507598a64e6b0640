"""Logs, runs and submissions side by side: each is a row, each figure that it has a column.
Rows can be grouped by a value, such as the seeds of each learning rate."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ..compliance.check_log import Check
from ..compliance.round import judge_all
from ..compliance.rule import ROUND
from ..compliance.score import score_checks
from ..config.benchmark import BENCHMARK, RUNS
from ..config.leaves import flatten
from ..config.names import nearest_name
from ..config.schema import PLACES
from ..host.errors import UserError
from ..host.progress import Progress, silent
from ..host.reading import JsonObject
from ..logging.places import job_of
from ..logging.records import Repeat
from .published import accelerators_of, beside_published
from .reproduction import are_of_one_config, first_bit
from .run_records import Subject, read_subjects
from .run_summary import MISSING, decimals, median_of, show

RESULTS = "results"
PARAMETERS = "hyper-parameters"
CONFIG = "config"


class Figure(NamedTuple):
    """A number that the log of a run gives."""

    title: str
    unit: str = ""


FIGURES = {
    "time_to_train_s": Figure("time to train", "s"),
    "images_per_s": Figure("training rate", "images/s"),
    "best_accuracy": Figure("best accuracy"),
    "target": Figure("target"),
    "epochs_to_target": Figure("epochs to target"),
    "epoch_s": Figure("time per epoch", "s"),
    "eval_s": Figure("time per evaluation", "s"),
    "init_s": Figure("init", "s"),
}
"""Figures by their names in a RunSummary, which their columns have in `--sort` and in JSON too."""
_OF_GROUPS = {
    "time_to_train_s": ",.1f",
    "best_accuracy": ".4f",
    "epochs_to_target": ".4g",
}
"""The figures of a group of runs, and how they are shown."""


class Column(NamedTuple):
    """One column; `cells` are shown, `values` sorted by and given in JSON (None: not known)."""

    group: str
    key: str
    """What `--sort` calls it."""
    title: str
    cells: list[str]
    values: Sequence[float | str | None]

    @property
    def differs(self) -> bool:
        """Whether two subjects have different values, or one has no result that another has."""
        cells = set(self.cells)
        if self.group != RESULTS:
            cells.discard(MISSING)
        return len(cells) > 1

    @property
    def places(self) -> list[int | None]:
        """The place of each row by rising value, numbers before texts; the same for equal ones."""
        values: set[Any] = {*self.values} - {None}
        # numbers and texts cannot be compared with each other
        rising = sorted(values, key=lambda value: (isinstance(value, str), value))
        ranks = {value: rank for rank, value in enumerate(rising)}
        return list(map(ranks.get, self.values))

    def ranking(self, valid: Sequence[bool]) -> Column:
        """The column with the figures of what is not valid in brackets and without a value."""
        cells = []
        values = []
        for cell, value, is_result in zip(self.cells, self.values, valid, strict=True):
            if not is_result and value is not None:
                cell = f"({cell})"
                value = None
            cells.append(cell)
            values.append(value)
        return self._replace(cells=cells, values=values)

    @property
    def is_number(self) -> bool:
        """Whether all values that are known are numbers."""
        return not any(isinstance(value, str) for value in self.values)


class Comparison(NamedTuple):
    """Subjects, the rows of a table."""

    subjects: Sequence[Subject]
    columns: Sequence[Column]
    """The columns that any subject has, by groups."""
    first_bits: Sequence[Repeat | None]
    """The first bit in which each subject differs from the first, if both are runs of one config
    and seed."""
    judged: Sequence[tuple[Check, ...]]
    """The judgement on each subject."""
    round: Check | None
    """That on all of several."""

    @property
    def notes(self) -> list[str]:
        """What could not be read, and what is wrong with all together."""
        notes = [note for subject in self.subjects for note in subject.notes]
        if self.round is not None:
            notes += [finding.message for finding in self.round.findings]
        return notes

    @property
    def letters(self) -> list[str]:
        """The letter of each subject."""
        return list(map(letter, range(len(self.subjects))))

    @property
    def names(self) -> list[str]:
        """The short name of each subject."""
        return list(map(name_of, self.subjects))

    @property
    def table(self) -> list[Column]:
        """The columns of a table of runs: what differs; of one run its results. A config value that
        the logs have too, under another name, has no column of its own. (Not compared with `seed`:
        its values, such as 1 and 2, can be those of another key by chance.)"""
        logged = [
            column.cells
            for column in self.columns
            if column.group == PARAMETERS and column.key != "seed"
        ]
        columns = []
        for column in self.columns:
            of_one_run = len(self.subjects) == 1 and column.group == RESULTS
            is_logged = column.key == "name" or column.cells in logged
            if (column.differs or of_one_run) and not (
                column.group == CONFIG and is_logged
            ):
                columns.append(column)
        return columns

    @property
    def shared(self) -> list[tuple[str, str]]:
        """Title and value of what is the same in all that have it, but for values of configs."""
        table = self.table
        shared = []
        for column in self.columns:
            if column.group != CONFIG and column not in table:
                cells = filter(MISSING.__ne__, column.cells)
                shared.append((column.title, next(cells)))
        return shared

    @property
    def sentences(self) -> list[str]:
        """What `first_bits` say, a sentence each."""
        return [
            f"A and {name}, same config and seed: {bit.text}"
            for name, bit in zip(self.letters, self.first_bits, strict=True)
            if bit is not None
        ]

    @property
    def published(self) -> list[str]:
        """The runs beside the published curves of their presets, a sentence each."""
        return [
            f"{name}: {sentence}"
            for name, subject in zip(self.letters, self.subjects, strict=True)
            for sentence in beside_published(subject)
        ]


def letter(index: int) -> str:
    """Return the letter of a subject: 0 -> A, 25 -> Z, 26 -> AA."""
    # as spreadsheets count: there is no zero, so what stands before the last is one less
    letters_before, last = divmod(index, len(string.ascii_uppercase))
    name = string.ascii_uppercase[last]
    return letter(letters_before - 1) + name if letters_before else name


def name_of(subject: Subject) -> str:
    """Return a short name: the last two parts of the path, or of the job's; of what others submit
    ORG/SYSTEM and what lies below it, or elsewhere these parts after the submitter that its logs
    name."""
    path = subject.path.resolve()
    # ORG/results/SYSTEM/resnet, as MLPerf's packages are laid out
    if subject.config is None and "results" in path.parts[-4:-1]:
        org, _, *below = path.parts[path.parts.index("results", -4) - 1 :]
        return show("/".join([org, *(name for name in below if name != BENCHMARK)]))
    name = "/".join((job_of(path) or path).parts[-2:])
    if subject.config is None and subject.runs:
        org = subject.runs[0].submission.get("org", "")
        if org and org.casefold() not in name.casefold().split("/"):
            name = f"{org}/{name}"
    return show(name)


def read_all(paths: Iterable[Path], *, bare: bool = False) -> list[Subject]:
    """Read the subjects of several paths, in their order; of a round, if `bare`, also those
    without a log. Raises UserError: a path has no log."""
    subjects: list[Subject] = []
    for path in paths:
        of_path = read_subjects(path)
        with_logs = [subject for subject in of_path if subject.runs]
        if not with_logs:
            raise UserError(f"{path}: a log (result_0.txt) expected in it, found none")
        if bare:
            with_logs = of_path
        first = with_logs[0]
        dropped = [subject for subject in of_path if subject not in with_logs]
        notes = [note for subject in (*dropped, first) for note in subject.notes]
        subjects += [first._replace(notes=notes), *with_logs[1:]]
    return subjects


def compare(subjects: Sequence[Subject], advance: Progress = silent) -> Comparison:
    """Set subjects, one or more, side by side; `advance` is told how many are judged."""
    first = subjects[0]
    judged = list(
        judge_all(
            [subject.path for subject in subjects], official=False, advance=advance
        )
    )
    of_round = None
    # of several subjects the last is the judgement on all together
    if judged[-1][-1].kind == ROUND:
        (of_round,) = judged.pop()
    columns = (
        *_result_columns(subjects, judged),
        *parameter_columns(subjects),
        *_config_columns(subjects),
    )
    first_bits: list[Repeat | None] = [None]
    for subject in subjects[1:]:
        bit = None
        if are_of_one_config(first, subject):
            bit = first_bit(first, subject)
        first_bits.append(bit)
    return Comparison(
        subjects=subjects,
        columns=[column for column in columns if {*column.cells} != {MISSING}],
        first_bits=first_bits,
        judged=judged,
        round=of_round,
    )


def _no_column(option: str, name: str, columns: Sequence[Column]) -> UserError:
    keys = ", ".join(column.key for column in columns if column.group != CONFIG)
    hint = nearest_name(name, (column.key for column in columns))
    return UserError(
        f"{option}: one of {keys} or a key of the configs expected, found {name}{hint}"
    )


def order_of(columns: Sequence[Column], sort: str | None, count: int) -> list[int]:
    """Return the rows by `--sort COLUMN`, or -COLUMN for falling values; what has no value comes
    last. Raises UserError: there is no such column."""
    if sort is None:
        return list(range(count))
    name = sort.removeprefix("-")
    by_key = {column.key: column for column in columns}
    if name not in by_key:
        raise _no_column("--sort", name, columns)
    ranks = by_key[name].places
    ranked = [row for row in range(count) if ranks[row] is not None]
    ranked.sort(key=lambda row: ranks[row] or 0, reverse=sort.startswith("-"))
    return [*ranked, *(row for row in range(count) if ranks[row] is None)]


def to_json(comparison: Comparison, order: Sequence[int]) -> list[JsonObject]:
    """Return the rows for programs: numbers as logged, nothing rounded."""
    rows = []
    for row in order:
        path = comparison.subjects[row].path
        figures = {column.key: column.values[row] for column in comparison.columns}
        rows.append({"letter": letter(row), "path": str(path), **figures})
    return rows


RANKED = ("time_to_train_s", "epochs_to_target", "score_min")
"""The results that what is no valid run has in brackets, and no place by."""


def _result_columns(
    subjects: Sequence[Subject], judged: Sequence[tuple[Check, ...]]
) -> Iterable[Column]:
    verdicts = [checks[-1].word for checks in judged]
    yield _text_column(RESULTS, "log check", verdicts)
    columns = [_figure_column(key, subjects) for key in FIGURES]
    counts = [accelerators_of(subject.path, subject.config) for subject in subjects]
    columns.append(_column("accelerators", "accelerators", counts, ",.0f"))
    rates = [_median(subject, "images_per_s") for subject in subjects]
    rates_each = [
        rate / count if rate and count else None
        for rate, count in zip(rates, counts, strict=True)
    ]
    columns.append(_column("images_per_s_each", "images/s each", rates_each, ",.1f"))
    records = [subject.folder.result for subject in subjects]
    mfus = [record.mfu if record else None for record in records]
    columns.append(_column("mfu", "MFU", mfus, ".4f"))
    # five runs have a score, as `rn50 log score` has it
    scores = [
        score_checks(checks) if len(subject.files) >= RUNS else None
        for subject, checks in zip(subjects, judged, strict=True)
    ]
    minutes = [score and score.score_min for score in scores]
    columns.append(_column("score_min", "score, min", minutes, ".3f"))
    factors = [
        score.scaling_factor if score and score.scaled else None for score in scores
    ]
    columns.append(_column("rcp_factor", "its RCP factor", factors, ".4f"))
    results = [checks[-1].is_result for checks in judged]
    for column in columns:
        yield column.ranking(results) if column.key in RANKED else column


def parameter_columns(subjects: Sequence[Subject]) -> Iterable[Column]:
    """The hyper-parameters of the logs, a column each."""
    for name in _logged_names(subjects):
        cells = []
        for subject in subjects:
            values = [
                show(run.parameters[name])
                for run in subject.runs
                if name in run.parameters
            ]
            different = dict.fromkeys(values)
            cells.append(show(", ".join(different)) or MISSING)
        yield _text_column(PARAMETERS, name, cells)


def _logged_names(subjects: Sequence[Subject]) -> dict[str, None]:
    """The hyper-parameters of all logs, in their order."""
    return dict.fromkeys(
        name for subject in subjects for run in subject.runs for name in run.parameters
    )


def _config_columns(subjects: Sequence[Subject]) -> Iterable[Column]:
    """The values of configs, but for paths and for what the logs have under the same name."""
    trees: list[JsonObject] = []
    keys: dict[str, None] = {}
    for subject in subjects:
        config = subject.folder.config
        tree = {}
        if config is not None:
            tree = dict(flatten(config.to_dict()))
        trees.append(tree)
        keys |= dict.fromkeys(tree)
    logged = _logged_names(subjects)
    for key in keys:
        _, _, name = key.rpartition(".")
        if name not in logged and not key.startswith(PLACES):
            cells = [show(tree.get(key, MISSING)) for tree in trees]
            yield _text_column(CONFIG, key, cells)


def _figure_column(key: str, subjects: Iterable[Subject]) -> Column:
    """The median of each subject's runs, all with the same number of decimals."""
    figure = FIGURES[key]
    title = figure.title
    values = [_median(subject, key) for subject in subjects]
    form = {"best_accuracy": ".5f"}.get(key, ".6g")
    if figure.unit:
        # as many digits as the smallest needs
        sizes = [abs(value) for value in values if value is not None]
        form = f",.{decimals(min(sizes, default=0.0))}f"
        title += f", {figure.unit}"
    return _column(key, title, values, form)


def _median(subject: Subject, key: str) -> float | None:
    return median_of(map(attrgetter(key), subject.runs))


def _column(key: str, title: str, values: Sequence[float | None], form: str) -> Column:
    cells = [MISSING if value is None else format(value, form) for value in values]
    return Column(RESULTS, key, title, cells, values)


def _text_column(group: str, title: str, cells: list[str]) -> Column:
    return Column(
        group=group,
        key=show(title.replace(" ", "_")),
        title=show(title),
        cells=cells,
        values=list(map(_value, cells)),
    )


def _value(cell: str) -> float | str | None:
    """What a cell is sorted by: its number where it is one."""
    if cell == MISSING:
        return None
    with suppress(ValueError):
        value = float(cell)
        if math.isfinite(value):
            is_seed = cell.isdecimal() and value > 1 << 53  # which no float holds
            return int(cell) if is_seed else value
    return cell


# --- groups ---------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Runs with the same value, by the numbers of their rows; `spreads`: mean, least and most of
    each figure, over the runs that have it. A run whose log cannot be read counts as one. A time to
    train is that of a valid run that reached its target."""

    value: str
    rows: Sequence[int]
    reached: int
    runs: int
    spreads: dict[str, tuple[float, float, float]]


def group_by(comparison: Comparison, key: str) -> list[Group]:
    """The groups by rising value. `key`: of a config, or a column's. Raises UserError: none has
    it."""
    # A config's value that logs have too is a column of theirs.
    logged = (PARAMETERS, key.rpartition(".")[2])
    columns = [
        column
        for column in comparison.columns
        if column.key == key or (column.group, column.key) == logged
    ]
    if not columns:
        raise _no_column("--by", key, comparison.columns)
    column = columns[0]
    ranks = column.places
    groups: dict[int | None, list[int]] = {}
    for row in order_of([column], column.key, len(ranks)):
        groups.setdefault(ranks[row], []).append(row)
    return [_group(comparison, column.cells[rows[0]], rows) for rows in groups.values()]


def _group(comparison: Comparison, value: str, rows: Sequence[int]) -> Group:
    subjects = [comparison.subjects[row] for row in rows]
    runs = [run for subject in subjects for run in subject.runs]
    judged = [comparison.judged[row][-1] for row in rows]
    results = [
        run
        for subject, check in zip(subjects, judged, strict=True)
        if check.is_result
        for run in subject.runs
    ]
    spreads = {}
    for key in _OF_GROUPS:
        values = map(attrgetter(key), results if key in RANKED else runs)
        figures = [figure for figure in values if figure is not None]
        if figures:
            spreads[key] = (fmean(figures), min(figures), max(figures))
    return Group(
        value=value,
        rows=rows,
        reached=sum(run.reached is not None for run in runs),
        runs=sum(len(subject.files) for subject in subjects),
        spreads=spreads,
    )


def group_table(groups: Sequence[Group], key: str) -> tuple[list[str], list[list[str]]]:
    """Header and cells: a row a group."""
    titles = [f"{FIGURES[figure].title}, mean (range)" for figure in _OF_GROUPS]
    rows = [
        [
            group.value,
            f"{group.reached} of {group.runs}",
            *(_cell(group, figure) for figure in _OF_GROUPS),
        ]
        for group in groups
    ]
    return [key, "reached", *titles], rows


def _cell(group: Group, figure: str) -> str:
    if figure not in group.spreads:
        return MISSING
    form = _OF_GROUPS[figure]
    mean, lowest, highest = (format(value, form) for value in group.spreads[figure])
    return f"{mean} {FIGURES[figure].unit}".rstrip() + f" ({lowest} to {highest})"
