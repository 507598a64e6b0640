"""What `rn50 submit --resume` resumes: an interrupted job, or a run of `rn50 launch`."""

from __future__ import annotations

import re
from pathlib import Path

from ..config.errors import UserError
from ..config.load import Loaded
from ..config.reading import read_object
from ..config.recorded import RESUME_JOB, load_recorded
from ..report.runs import SUBMISSION
from .job_folder import ENDED, exit_code_of
from .resume import is_interrupted, latest_interrupted, load_attempt
from .run_files import is_run
from .run_lock import check_free
from .schedulers import SCHEDULERS
from .submit import Last, scheduler_has


def find_interrupted(where: str, config: str | None, overrides: list[str]) -> tuple[Loaded, Last]:
    """The job in the folder `where`, or the one of the run that was interrupted last (`latest`, of
    `config` or of all). Raises UserError: it has ended, is in its queue or runs, or the overrides
    make another training of it."""
    if config is not None and where != "latest":
        raise UserError(f"--resume {where}: no CONFIG beside a folder expected, found {config}")
    folder = Path(where)
    if where == "latest":
        folder = latest_interrupted(config, overrides, with_checkpoint=False)
    if re.fullmatch(r"run_\d+", folder.name) and (folder.parent / "config.yaml").is_file():
        folder = folder.parent
    source = folder / "config.yaml"
    if not source.is_file():
        raise UserError(f"--resume: the folder of a job or of a run expected, found no {source}")
    known = read_object(folder / SUBMISSION)
    scheduler = known.get("scheduler")
    if not isinstance(scheduler, str) or scheduler not in SCHEDULERS:
        scheduler = None
    _refuse_queued(folder, scheduler, known.get("job"))
    loaded = load_recorded(source, overrides, RESUME_JOB)
    if is_run(folder) and loaded.run.system.job.container:
        raise UserError(f"--resume: the folder of a job expected for a container, found {folder}")
    if exit_code_of(folder) in ENDED or (is_run(folder) and not is_interrupted(folder)):
        raise UserError(f"--resume: an interrupted job or run expected, {folder} has ended")
    without_seed = [text for text in overrides if not text.startswith("seed=")]
    for run in [folder] if is_run(folder) else sorted(folder.glob("run_*")):
        if (run / "config.yaml").is_file() and is_interrupted(run):
            check_free(run)
            load_attempt(run, str(source), without_seed)  # refuses another training
    runs = known.get("runs")
    return loaded, Last(folder, scheduler, runs if type(runs) is int and runs > 0 else 1)


def _refuse_queued(folder: Path, scheduler: str | None, job: object) -> None:
    """A requeued job has the folder of one that was interrupted."""
    if scheduler is not None and scheduler_has(scheduler, job):
        raise UserError(
            f"--resume: {folder}: an interrupted job expected, found {scheduler} job {job} in its "
            f"queue or running (to stop it: {SCHEDULERS[scheduler].cancel_command} {job})"
        )
