"""Where logs lie: beside a run's files, in a submission, in a job's folder; and their config.

The folder of `rn50 submit` holds config.yaml, run_0, run_1, ... and, as in a submission,
results/SYSTEM/resnet/result_0.txt, result_1.txt, ...
"""

import os
from pathlib import Path

from ..config.benchmark import BENCHMARK
from ..config.errors import UserError
from ..config.names import nearest_path
from ..config.reading import read_ends

RESULT_FILES = "result_*.txt"
"""Of any name between, as MLPerf's package checker finds them."""
METRICS = "metrics.jsonl"
MOST_LOGS = 200  # of a folder; published ones have up to 50


def log_folders(path: Path) -> list[Path]:
    """The folders of logs that a path means: itself, or those of each system of a job or of a
    submission; of a folder above runs, such as a sweep's, those below it. Raises UserError: there
    is nothing."""
    require(path)
    if not path.is_dir() or any(path.glob(RESULT_FILES)):
        return [path]
    systems = [
        folder
        for folder in sorted(path.glob(f"results/*/{BENCHMARK}"))
        if _is_in(folder, path) and any(folder.glob(RESULT_FILES))
    ]
    return systems or _below(path) or [path]


def _below(path: Path) -> list[Path]:
    """The folders of logs below a folder, but for those of a job's runs, which it has copies of."""
    below = sorted({log.parent for log in path.rglob(RESULT_FILES)})
    below = [folder for folder in below if results_in(folder)]
    jobs = {job_of(folder) for folder in below}
    below = [folder for folder in below if folder.absolute().parent not in jobs]
    if len(below) > MOST_LOGS:
        raise UserError(
            f"{path}: at most {MOST_LOGS} folders of logs expected, found {len(below)}"
        )
    return below


def require(path: Path) -> None:
    """Raise UserError where nothing is at `path`, with the name beside it that is meant."""
    if not os.path.lexists(path):
        raise UserError(
            f"{path}: a log or a folder expected, found none{nearest_path(path)}"
        )


def no_logs(folder: Path) -> UserError:
    """The error of a folder without logs; with the name of one that only has another name."""
    other = next(
        (file for file in sorted(folder.glob("*")) if ":::MLL" in read_ends(file)), None
    )
    hint = f"; {other} has records: name it, or call it result_0.txt" if other else ""
    return UserError(f"{folder}: {RESULT_FILES} expected in it, found none{hint}")


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
    return sorted(files, key=lambda path: (len(path.name), path.name))


def _is_in(folder: Path, top: Path) -> bool:
    """Whether it is a folder within `top`: links are not followed out of it."""
    return folder.is_dir() and folder.resolve().is_relative_to(top.resolve())


def job_of(folder: Path) -> Path | None:
    """The top of what results/SYSTEM/resnet lies in; None where `folder` is none of that name."""
    parts = folder.absolute().parents
    if folder.absolute().name != BENCHMARK or len(parts) < 3:
        return None
    return parts[2] if parts[1].name == "results" else None


def run_folders(path: Path) -> list[Path]:
    """The folders of a job's runs, run_0, run_1, ..., by number; none where it is no job's."""
    runs = [
        run
        for run in path.glob("run_*")
        if run.name[4:].isdecimal()
        and (run / "config.yaml").is_file()
        and _is_in(run, path)
    ]
    return sorted(runs, key=lambda run: int(run.name[4:]))


def config_of(folder: Path) -> Path:
    """Where the config of the logs in `folder` is, if there is one: beside them, or in the job's
    folder, which may be one of `rn50 submit` or of a script written by hand."""
    beside = folder / "config.yaml"
    job = job_of(folder)
    if job is None or beside.exists():
        return beside
    first = next(iter(run_folders(job)), job)
    return first / "config.yaml"
