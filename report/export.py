"""The records of runs for other tools: a CSV table, TensorBoard's event files.

It reads only the files of a run. TensorBoard's library is an extra (pyproject.toml).
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.leaves import flatten
from ..host.atomic import partial_beside
from ..host.errors import UserError, failing_as
from ..host.finding import number, printable
from ..logging.parse import read_log
from ..logging.places import require
from ..logging.run_folder import RunFolder
from .run_records import RunRecords, read_run_records
from .runs import find_runs

MOST_COLUMNS = 700
"""The most columns of a table: one of ours has 63, and the norms of ResNet-152 add 467. A name
costs a cell in every row."""
_DEPTH = 20
_EVENTS = "events.out.tfevents.*"
_PARAMETERS = ("name", "seed", "optimizer.", "schedule.", "batch.", "model.")


class Exported(NamedTuple):
    """A run as other tools take it."""

    name: str
    folder: RunRecords
    start_unix_s: float
    """Its `run_start`, where the seconds of its records begin."""

    @property
    def parameters(self) -> dict[str, float | str]:
        """Name, seed and hyper-parameters by their keys; none where there is no config."""
        if self.folder.config is None:
            return {}
        parameters = {}
        for key, value in flatten(self.folder.config.to_dict()):
            is_scalar = isinstance(value, (int, float, str))
            if is_scalar and key.startswith(_PARAMETERS):
                parameters[key] = value
        return parameters

    def unix_s(self, record: Mapping[str, Any]) -> float:
        """Return the time of a record, in seconds since 1970."""
        return self.start_unix_s + (number(record.get("time_s")) or 0.0)


class Found(NamedTuple):
    """The runs of some folders. `notes`: what was not there; `unread`: what could not be read."""

    runs: list[Exported]
    notes: list[str]
    unread: list[str]


def read_runs(paths: Sequence[Path]) -> Found:
    """What folders hold; a folder means the runs in it and below. Raises UserError: none has
    records."""
    runs = []
    notes = []
    unread: list[str] = []
    recorded: list[Path] = []
    for path in paths:
        require(path)
        below = list(find_runs(path, _DEPTH))
        unread += [entry.problem for entry in below if entry.problem]
        folders = [entry.folder for entry in below]
        with_records = [run for run in folders if RunFolder(run).metrics.exists()]
        # where there are none, the folder itself: its note says what it lacks
        recorded += with_records or [path]
    paths_of = {path.resolve(): path for path in recorded}
    for resolved, name in _names(paths_of).items():
        path = paths_of[resolved]
        folder = read_run_records(path)
        unread += [f"{path}: {note}" for note in folder.notes]
        if not folder.metrics:
            notes.append(
                f"{RunFolder(path).metrics}: the records of a run expected, found none"
            )
            continue
        runs.append(Exported(name, folder, _start_unix_s(path, unread)))
    if not runs:
        raise UserError(*unread, *notes)
    return Found(runs, notes, unread)


def _names(folders: Iterable[Path]) -> dict[Path, str]:
    """PRESET/TIME, of a job's run PRESET/TIME/run_N; of runs that share such a name, as many
    folders above as tell them apart."""
    depths = {folder: 3 if folder.name.startswith("run_") else 2 for folder in folders}
    while True:
        names = {}
        for folder, depth in depths.items():
            parts = folder.parts[1:]  # without the root
            names[folder] = "/".join(parts[-depth:])
        counts = Counter(names.values())
        if len(counts) == len(names):
            return names
        for folder, name in names.items():
            if counts[name] > 1:
                depths[folder] += 1


def _start_unix_s(path: Path, unread: list[str]) -> float:
    """The `run_start` of its log; 0 where there is none."""
    file = RunFolder(path).log
    try:
        log = read_log(file, frozenset({"run_start"}))
    except UserError as error:
        if os.path.lexists(file):
            unread.append(str(error))
        return 0.0
    start = log.first("run_start")
    return start.time_ms / 1000 if start else 0.0


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Its numbers but for those that say when."""
    numbers = {}
    for key, value in record.items():
        figure = number(value)
        # a key that is no identifier is no program's: a comma or a line's end in a CSV's head
        if figure is None or not key.isidentifier() or key in ("step", "time_s"):
            continue
        numbers[key] = figure
    return numbers


# --- CSV ------------------------------------------------------------------------------------------


def to_csv(runs: Sequence[Exported]) -> str:
    """A table with a row for each record, and a column for each hyper-parameter of its run and each
    number that a record has. Raises UserError: the records have more names than any program's."""
    columns: dict[str, None] = {}
    for run in runs:
        for row in _rows(run):
            columns |= dict.fromkeys(row)
        if len(columns) > MOST_COLUMNS:
            expected = f"at most {MOST_COLUMNS} columns expected, found {len(columns)}"
            raise UserError(f"{RunFolder(run.folder.path).metrics}: {expected}")
    output = io.StringIO()
    table = csv.DictWriter(output, columns, lineterminator="\n")
    table.writeheader()
    for run in runs:
        table.writerows(_rows(run))
    return output.getvalue()


def _rows(run: Exported) -> Iterator[dict[str, Any]]:
    """The rows of its records, one at a time: there may be 400,000."""
    parameters = run.parameters
    for record in run.folder.metrics:
        yield {
            "run": printable(run.name),
            "kind": printable(str(record.get("kind"))),
            "unix_s": run.unix_s(record),
            "time_s": record.get("time_s"),
            "step": record.get("step"),
            **parameters,
            **_numbers(record),
        }


# --- TensorBoard ----------------------------------------------------------------------------------


def to_tensorboard(runs: Sequence[Exported], out: Path) -> None:
    """Write an event file for each run, in a folder of its name below `out`; it replaces that of an
    earlier export. A record without a step has that of the one before. Raises UserError: it cannot
    be written; ImportError: tensorboardX is not installed."""
    import tensorboardX
    from tensorboardX import summary

    for run in runs:
        folder = out / run.name
        with (
            failing_as(f"{folder}: cannot write"),
            partial_beside(folder, is_folder=True) as partial,
        ):
            with tensorboardX.SummaryWriter(str(partial)) as writer:
                step = 0
                for record in run.folder.metrics:
                    step = int(number(record.get("step")) or step)
                    for key, value in _numbers(record).items():
                        tag = f"{record.get('kind')}/{key}"
                        writer.add_scalar(tag, value, step, walltime=run.unix_s(record))
                if run.folder.config is not None:
                    writer.add_text(
                        "config", f"```\n{run.folder.config.to_yaml()}\n```"
                    )
                    for part in summary.hparams(run.parameters, {"eval/accuracy": 0.0}):
                        # add_hparams writes another run
                        writer.file_writer.add_summary(part)
            folder.mkdir(exist_ok=True)
            # TensorBoard shows all files of a folder as one run: the earlier ones go
            for earlier in folder.glob(_EVENTS):
                earlier.unlink()
            for written in partial.glob(_EVENTS):
                written.replace(folder / written.name)
