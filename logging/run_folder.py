"""The folders that runs and jobs leave: the name of every file, and what the small ones say."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..host.atomic import in_its_folder
from ..host.errors import UserError
from ..host.lock import LOCK, hold
from ..host.reading import read_file
from .line_file import last_stamp_unix_s
from .metrics_read import newest_records
from .records import Environment, Failure, Result, Submission, read

CONFIG = "config.yaml"


class RunFolder:
    """The folder of one run. A file that is named here need not be there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        """The config by which the same run can be repeated."""
        self.origins = path / "origins.json"
        self.environment = path / "environment.json"
        """The launcher writes it before the ranks start."""
        self.log = path / "result_0.txt"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoint"
        self.result = path / "result.json"
        self.ranks = path / "ranks.json"
        self.timeline = path / "timeline.json"
        self.confusions = path / "confusions.json"
        """`rn50 evaluate --wrong` leaves it."""
        self.stderr = path / "stderr.log"
        self.report = path / "report.html"
        self.interrupted_log = path / "interrupted_0.txt"
        """The log in attempt_<n>/: `rn50 log check` takes every result_*.txt for a run's own."""
        self.lock = path / LOCK
        """The one driver holds it: `rn50 launch`, or the steps of a job script."""
        self.rank_lock = path / ".rank_0.lock"
        """The rank holds it that writes log and checkpoints; it may outlive its driver by seconds.
        """

    def __str__(self) -> str:
        return str(self.path)

    @property
    def locks(self) -> tuple[Path, Path]:
        """The lock files of the run: one is held as long as a process works on it."""
        return self.lock, self.rank_lock

    @property
    def signs(self) -> tuple[Path, ...]:
        """The files of which a run's folder has at least one, whatever has become of the run."""
        return self.environment, self.metrics, self.result, self.rank_lock

    @property
    def was_launched(self) -> bool:
        """Whether a launcher has begun this run; a job's folder has no such record."""
        return self.environment.is_file()

    @property
    def attempts(self) -> list[RunFolder]:
        """What attempts that were interrupted have left: attempt_1, attempt_2, ..."""
        return [RunFolder(path) for path in self.path.glob("attempt_*")]

    def read_result(self) -> Result | None:
        """How the run ended; None: it has not. Raises UserError: the file cannot be read."""
        return read(self.result, Result)

    def read_environment(self) -> Environment:
        """What the run ran on. Raises UserError: the file cannot be read."""
        return read(self.environment, Environment) or Environment()

    def read_failures(self) -> list[Failure]:
        """What failed ranks left, oldest first. Raises UserError as `read` does."""
        paths = self.path.glob("failure_*.json")
        by_age = sorted(paths, key=lambda path: path.lstat().st_mtime_ns)
        return [failure for path in by_age if (failure := read(path, Failure))]

    @property
    def is_over(self) -> bool:
        """Whether the ranks came to the run's end by themselves."""
        result = self.read_result()
        return result is not None and result.has_ended

    @property
    def is_to_conclude(self) -> bool:
        """Whether the run came to its end, and its launcher was killed before it had a verdict: its
        result is still as rank 0 left it."""
        result = self.read_result()
        if not result or not result.weights_digest:
            return False
        return result.has_ended and result.check is None

    @property
    def is_hopeless(self) -> bool:
        """Whether the run would fail again from its checkpoint: at chance level, or diverged. A run
        repeats bit for bit: it diverged if a loss is not finite since the same step as in an
        attempt before."""
        diverged = {
            failure.not_finite_step
            for attempt in self.attempts
            for failure in attempt.read_failures()
        } - {None}
        return any(
            not failure.retryable or failure.not_finite_step in diverged
            for failure in self.read_failures()
        )

    @property
    def is_interrupted(self) -> bool:
        """Whether the run ended before its time, and would not fail again the same way."""
        return not self.is_over and not self.is_hopeless

    def check_free(self) -> None:
        """Raise UserError where a process drives the run, the folder takes no lock file, or a link
        in it leads elsewhere: the run would be written there."""
        for path in self.path.iterdir():
            in_its_folder(path)
        # that it can be held proves both: nobody holds it, and a file can be made here
        with hold(self.lock):
            pass

    @property
    def last_stamp_unix_s(self) -> float:
        """The latest stamp in the logs of the run and its attempts; 0: there is none."""
        logs = [self.log, *(attempt.interrupted_log for attempt in self.attempts)]
        return max(map(last_stamp_unix_s, logs))

    @property
    def last_log_point(self) -> int | None:
        """The newest step in the metrics; None: they have none, or cannot be read."""
        try:
            records = newest_records(self.metrics).values()
        except UserError:
            return None
        steps = [record.get("step") for record in records]
        return max(
            (step for step in steps if type(step) is int and step >= 0), default=None
        )


class JobFolder:
    """The folder of a job, with its runs in run_0, run_1, ..."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        self.origins = path / "origins.json"
        self.script = path / "job.sh"
        self.log = path / "job.log"
        self.exit_code = path / "exit_code"
        self.submission = path / "submission.json"
        self.lock = path / ".job.lock"

    @property
    def signs(self) -> tuple[Path, ...]:
        """The files of which a job's folder has at least one."""
        return self.script, self.exit_code, self.lock

    @property
    def runs(self) -> list[RunFolder]:
        """The job's runs by number, as far as they have begun; links are not followed out of it."""
        top = self.path.resolve()
        numbered = {}
        for path in self.path.glob("run_*"):
            number = path.name.removeprefix("run_")
            has_begun = RunFolder(path).config.is_file()
            if number.isdecimal() and has_begun and path.resolve().is_relative_to(top):
                numbered[int(number)] = RunFolder(path)
        return [numbered[number] for number in sorted(numbered)]

    def read_submission(self) -> Submission:
        """The job's scheduler and id there. Raises UserError: the file cannot be read."""
        return read(self.submission, Submission) or Submission()

    def read_exit_code(self) -> str:
        """What exit_code says: a number, `running`, or nothing."""
        with suppress(OSError):
            return read_file(self.exit_code, 16).decode(errors="replace").strip()
        return ""
