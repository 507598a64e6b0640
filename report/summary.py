"""A log in a few lines for people: time to train, epochs, accuracy, init time, images/s."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..compliance.submission import find_results
from ..config.errors import UserError
from ..logging.parse import read_log
from ..logging.places import log_folders, run_folders
from .figures import figures
from .run_folder import target_of


class Summary(NamedTuple):
    """Figures of a run as its log tells them; None where the log does not."""

    status: str | None
    time_to_train_s: float | None
    init_s: float | None
    epochs: float | None
    eval_accuracy: float | None
    global_batch_size: int | None
    images_per_s: float | None
    evaluations: tuple[tuple[float, float, float], ...]
    """(epoch, accuracy, seconds since run_start) of each evaluation."""
    target: float | None = None
    """The config's own, where there is one beside the log; a log does not say it."""


def find_log(path: Path) -> Path:
    """The one log that PATH means: a file, or result_0.txt of a run's folder or of a job's first.

    Raises:
        UserError: there is none.
    """
    if not path.is_dir():
        return path
    log = next(iter(run_folders(path)), path) / "result_0.txt"
    if not log.is_file():
        raise UserError(f"{path}: result_0.txt expected in it, found none")
    return log


def find_logs(path: Path) -> list[Path]:
    """All logs that PATH means: a file, or those of a run, a job or a submission.

    Raises:
        UserError: there is none.
    """
    if not path.is_dir():
        return [path]
    return [log for folder in log_folders(path) for log in find_results(folder)]


def summarise(path: Path) -> Summary:
    """Read a log and take the figures from its events."""
    log = read_log(path)
    run = figures(log.events)
    batch = log.value("global_batch_size")
    last = run.evaluations[-1] if run.evaluations else None
    return Summary(
        status=run.status,
        time_to_train_s=run.run_s,
        init_s=None if run.init_s is None or run.gap_s is None else run.init_s + run.gap_s,
        epochs=last.epoch if last else None,
        eval_accuracy=last.accuracy if last else None,
        global_batch_size=batch if isinstance(batch, int) else None,
        images_per_s=run.images_per_s,
        evaluations=tuple(
            (one.epoch, one.accuracy, one.time_s)
            for one in run.evaluations
            if one.epoch is not None and one.time_s is not None
        ),
        target=target_of(path.parent),
    )
