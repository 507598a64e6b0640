"""What lies beside a log in the folder of a run, and which logs a path means."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..compliance.log_rules import checked_keys
from ..compliance.logged_run import LoggedRun
from ..compliance.ruleset import find_ruleset
from ..config import benchmark
from ..config.load import Loaded, load
from ..config.schema import Run
from ..host.errors import UserError
from ..host.finding import number
from ..host.reading import JsonObject, read_object
from ..logging.metrics_read import read_metrics
from ..logging.parse import open_pipe, read_log
from ..logging.places import (
    config_of,
    is_one_run,
    log_folders,
    no_logs,
    require,
    results_in,
)
from ..logging.records import Confusions, Environment, Result
from ..logging.records import read as read_record
from ..logging.run_folder import JobFolder, RunFolder
from ..logging.run_time import TIME_KEYS
from .run_summary import PARAMETER_KEYS, RunSummary, show, summarise

_JSON_BYTES = 8 << 20
"""Some 60,000 spans; read as JSON they take up to 30 times as much."""


class RunRecords(NamedTuple):
    """The files of a run besides its log; empty or None where one is missing or unreadable."""

    path: Path
    result: Result | None = None
    environment: Environment = Environment()
    origins: Mapping[str, str] = {}
    config: Loaded | None = None
    metrics: Sequence[JsonObject] = ()
    spans: Sequence[JsonObject] = ()
    ranks: Mapping[str, Any] = {}
    confusions: Confusions | None = None
    notes: Sequence[str] = ()
    """What could not be read, one line each."""

    def records(self, kind: str) -> list[JsonObject]:
        """The metrics of one kind."""
        return [record for record in self.metrics if record.get("kind") == kind]


class Subject(NamedTuple):
    """What one PATH means: a log, a run's folder, or a submission's directory of several.

    A job of one run is that run; a job of several is a submission with the config of its runs.
    """

    path: Path
    files: Sequence[Path]
    """Its logs, those that cannot be read among them."""
    runs: Sequence[RunSummary]
    """What its logs that can be read say."""
    folder: RunRecords
    """What lies beside its logs; empty where they are in no run's folder."""
    notes: Sequence[str]
    """Logs and files beside them that could not be read, one line each."""

    @property
    def shown(self) -> RunSummary | None:
        """The run whose clocks are shown: the first that reached the target, else the first."""
        reached = [run for run in self.runs if run.reached]
        return next(iter([*reached, *self.runs]), None)

    @property
    def is_submission(self) -> bool:
        """Whether it is judged as a submission: no log, and no run of ours."""
        is_log = [*self.files] == [self.path]
        return not is_log and len(self.files) > 0 and not is_one_run(self.path)

    @property
    def config(self) -> Run | None:
        """The config of its runs, where one lies beside the logs."""
        loaded = self.folder.config
        return loaded.run if loaded else None


def read_subjects(path: Path) -> list[Subject]:
    """The subjects of a path: one, or one for each directory of logs below it. Raises UserError:
    nothing readable there."""
    require(path)
    if open_pipe(path) is not None:
        raise UserError(
            f"{path}: a file expected, found a pipe (only `rn50 log check` reads one)"
        )
    if not path.is_dir():
        return [read_folder(path.parent, path)._replace(path=path)]
    folders = log_folders(path)
    if folders != [path]:
        return _readable(folders)
    runs = JobFolder(path).runs
    if runs and not results_in(path):  # a job whose ranks never started
        return [read_folder(runs[-1].path)]
    return [read_folder(path)]


def _readable(folders: Iterable[Path]) -> list[Subject]:
    """The folders; one without a log that can be read has a note that says why. Raises UserError:
    none has one."""
    subjects = []
    for folder in folders:
        try:
            subjects.append(read_folder(folder))
        except UserError as error:
            bare = Subject(
                path=folder,
                files=results_in(folder),
                runs=(),
                folder=RunRecords(folder),
                notes=str(error).splitlines(),
            )
            subjects.append(bare)
    if not any(subject.runs for subject in subjects):
        raise UserError(*(note for subject in subjects for note in subject.notes))
    return subjects


def read_folder(path: Path, only: Path | None = None) -> Subject:
    """A run's folder, or a submission's directory, whatever of it can be read; `only`: of its logs
    this one. Raises UserError: no log in it can be read, and it is not a run's folder either."""
    config = config_of(path)
    is_run = os.path.lexists(config)
    folder = RunRecords(path)
    if is_run:
        folder = read_run_records(config.parent)
    target = benchmark.TARGET_ACCURACY
    if folder.config is not None:
        target = folder.config.run.eval.target
    if config.parent != path:  # of the first of several runs
        folder = folder._replace(
            result=None, metrics=(), spans=(), ranks={}, confusions=None
        )
    runs = []
    notes = [f"{folder.path}: {note}" for note in folder.notes]
    files = results_in(path) if only is None else [only]
    for file in files:
        try:
            # a log has more records than are read here: others need not be kept
            log = read_log(file, checked_keys() | PARAMETER_KEYS | TIME_KEYS)
            run = LoggedRun(log, find_ruleset(file, log, None).name)
            runs.append(summarise(run, target))
        except UserError as error:
            notes.extend(str(error).splitlines())
    if not runs and (only is not None or not is_run):
        raise UserError(*(notes or no_logs(path).args))
    return Subject(path=path, files=files, runs=runs, folder=folder, notes=notes)


def read_run_records(path: Path) -> RunRecords:
    """The files beside a run's log. A missing one is normal, an unreadable one makes a note.

    Whoever made the folder chose them: regular files in it of bounded size alone are read.
    """
    notes = []
    run = RunFolder(path)

    def read(file: Path, parse: Callable[[Path], Any], empty: Any) -> Any:
        """What `parse` makes of a file; `empty`, and a note, where it cannot be read."""
        if not os.path.lexists(file):
            return empty
        try:
            return parse(file)
        except (UserError, OSError, ValueError, RecursionError) as error:
            first_line = str(error).partition("\n")[0].removeprefix(f"{file}: ")
            reason = getattr(error, "strerror", first_line) or type(error).__name__
            notes.append(f"{file.name}: left out: {show(reason, 400)}")
            return empty

    read_json = partial(read_object, most_bytes=_JSON_BYTES)
    origins = read(run.origins, read_json, {})
    timeline = read(run.timeline, read_json, {})
    metrics = read(run.metrics, partial(read_metrics, within=path), ())
    return RunRecords(
        path=path,
        result=read(run.result, lambda _: run.read_result(), None),
        environment=read(
            run.environment, lambda _: run.read_environment(), Environment()
        ),
        origins={key: show(value) for key, value in origins.items()},
        config=read(run.config, partial(load, within=path), None),
        metrics=metrics,
        spans=_spans(timeline),
        ranks=read(run.ranks, read_json, {}),
        confusions=read(run.confusions, partial(read_record, record=Confusions), None),
        notes=notes,
    )


def _spans(trace: JsonObject) -> list[JsonObject]:
    """The complete spans ("X") of a Chrome trace, by their start."""
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        return []
    spans = filter(_is_whole, events)
    # of spans that begin together the longer one first, which holds the other
    return sorted(spans, key=lambda span: (span["ts"], -span["dur"]))


def _is_whole(span: Any) -> bool:
    return (
        isinstance(span, dict)
        and span.get("ph") == "X"
        and number(span.get("ts")) is not None
        and (number(span.get("dur")) or -1) > 0
    )
