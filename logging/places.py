"""The places where logs lie: beside a run's files, in a submission, in a job's folder; and their
config.

The folder of `rn50 submit` holds config.yaml, run_0, run_1, ... and, as in a submission,
results/SYSTEM/resnet/result_0.txt, result_1.txt, ...
"""

import os
import re
from pathlib import Path

from ..config.benchmark import BENCHMARK
from ..config.names import nearest_path
from ..host.errors import UserError
from ..host.reading import read_ends
from .run_folder import JobFolder, RunFolder

RESULT_FILES = "result_*.txt"
"""Any name may stand between, as MLPerf's package checker finds them."""
_ALMOST = re.compile(r"results?[-_. ]?\w*\.(txt|log)(\.\w{1,4})?", re.IGNORECASE)
"""Names that logs have by mistake, or packed. No folder of a published round has one and no log."""
MOST_LOGS = 200  # of a folder; published ones have up to 50


class NoLogs(UserError):
    """A folder that should have logs has none under a name that is looked for."""


def log_folders(path: Path) -> list[Path]:
    """The folders of logs that a path means: itself, those of each system of a job or of a
    submission, or all below it, as of a sweep or a round. A job of one run is that run. Entries of
    a round that have no logs are among them. Raises UserError: there is nothing."""
    require(path)
    if not path.is_dir() or any(path.glob(RESULT_FILES)):
        return [path]
    below = _below(path)
    systems = [folder for folder in below if job_of(folder) == path.absolute()]
    if any(map(results_in, systems)):
        return systems
    return below or [path]


def _below(path: Path) -> list[Path]:
    """The folders of logs below a folder, by their names, and the entries without logs."""
    with_logs = []
    without = []
    empty = []
    for name, folders, files in os.walk(path):
        folders[:] = [below for below in folders if not below.startswith(".")]
        folder = Path(name)
        if results_in(folder):
            with_logs.append(folder)
        elif job_of(folder) or any(map(_ALMOST.fullmatch, files)):
            without.append(folder)
        elif not folders and not files:
            empty.append(folder)
    # a job of ours may not have got so far
    without = [entry for entry in without if not JobFolder(job_of(entry) or entry).runs]
    jobs = filter(None, map(job_of, (*with_logs, *without)))
    if not all(JobFolder(job).runs for job in jobs):
        without += empty  # where others have packages
    below = sorted({*with_logs, *without} - _copies(with_logs))
    if len(below) > MOST_LOGS:
        raise UserError(
            f"{path}: at most {MOST_LOGS} folders of logs expected, found {len(below)}"
        )
    return below


def _copies(folders: list[Path]) -> set[Path]:
    """The folders whose logs a job has in another one too: those of its runs, or the one with the
    copy of a single run's."""
    copies = set()
    parents = {folder: folder.absolute().parent for folder in folders}
    for together in folders:
        job = job_of(together)
        if not job:
            continue
        runs = [folder for folder, parent in parents.items() if parent == job]
        # a job of one run is that run, with its files beside the log
        if len(JobFolder(job).runs) == len(runs) == len(results_in(together)) == 1:
            copies.add(together)
        else:
            copies.update(runs)
    return copies


def require(path: Path) -> None:
    """Raise UserError where nothing is at `path`, with the name beside it that is meant."""
    if not os.path.lexists(path):
        raise UserError(
            f"{path}: a log or a folder expected, found none{nearest_path(path)}"
        )


def no_logs(folder: Path) -> NoLogs:
    """The error of a folder without logs; with what is there under another name."""
    files = [path for path in sorted(folder.glob("*")) if path.is_file()]
    has_records = next((file for file in files if ":::MLL" in read_ends(file)), None)
    almost = [file.name for file in files if _ALMOST.fullmatch(file.name)]
    reason = "none"
    if has_records:
        reason += f"; {has_records} has records: name it, or call it result_0.txt"
    elif almost:
        reason = f"{', '.join(almost[:5])}; they are read unpacked, as result_0.txt"
    return NoLogs(f"{folder}: {RESULT_FILES} expected in it, found {reason}")


def results_in(folder: Path) -> list[Path]:
    """The result files of a folder, by number; links out of it are not followed. Raises UserError:
    more than any submission has."""
    home = os.path.realpath(folder)  # resolve() raises where links go in a circle
    files = []
    for path in folder.glob(RESULT_FILES):
        if path.is_file() and path.resolve().is_relative_to(home):
            files.append(path)
    if len(files) > MOST_LOGS:
        raise UserError(
            f"{folder}: at most {MOST_LOGS} logs expected, found {len(files)}"
        )
    # result_10 behind result_9
    return sorted(files, key=lambda path: (len(path.name), path.name))


def job_of(folder: Path) -> Path | None:
    """The top of what results/SYSTEM/resnet lies in; None where `folder` is none of that name."""
    parts = folder.absolute().parents
    if folder.absolute().name != BENCHMARK or len(parts) < 3:
        return None
    return parts[2] if parts[1].name == "results" else None


def is_one_run(folder: Path) -> bool:
    """Whether the one log of a folder is of a run of this harness, not a submission with too few:
    it lies beside the run's files, or in its job's folder."""
    if len(results_in(folder)) != 1:
        return False
    job = job_of(folder)
    if job:
        return bool(JobFolder(job).runs)
    run = RunFolder(folder)
    return run.config.is_file() or run.result.is_file()


def config_of(folder: Path) -> Path:
    """The path of the config of the logs in `folder`, if there is one: beside them, or in the job's
    folder, which may be one of `rn50 submit` or of a script written by hand."""
    config = RunFolder(folder).config
    job = job_of(folder)
    if not job or config.exists():
        return config
    first = next(iter(JobFolder(job).runs), JobFolder(job))
    return first.config
