"""How a command ended, in one last line: the reason, the folder, the command to go on with.

The same reason and command are in result.json, as `reason` and `next`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError
from ..config.finding import number, plain

JOB_SCRIPT = "job.sh"
"""In the folder of a job."""
GO_ON, START_AGAIN = "go on with", "start again with"
_RESUME = "rn50 launch --resume"
_RESUME_JOB = ("rn50", "submit", "--resume")


class Ending(NamedTuple):
    """Why a command ended, the folder of what it made, and what to do next: advice in words, then
    a command, `rn50 ...` where it is ours."""

    reason: str
    folder: str = ""
    advice: str = ""
    next: str = ""

    @property
    def line(self) -> str:
        """The last line of the command; ours are spelt as they can be called here."""
        where = f"{self.reason}: {self.folder}" if self.folder else self.reason
        return where + self.what_next

    @property
    def what_next(self) -> str:
        """The end of the line, where the reason has been printed already."""
        todo = ": ".join(part for part in (self.advice, callable_here(self.next)) if part)
        return f"; {todo}" if todo else ""

    def to_dict(self) -> dict[str, str]:
        """The keys of result.json; `next` is absent where there is none."""
        return {"reason": self.reason} | ({"next": self.next} if self.next else {})


class Stopped(KeyboardInterrupt):
    """A stop by a signal that has been dealt with: its ending is what is left to say."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.line)
        self.ending = ending


class Failed(UserError):
    """A run that failed; its message ends with what to do next."""

    def __init__(self, message: str, ending: Ending) -> None:
        super().__init__(*message.split("\n"))
        self.ending = ending


def asked_by(stop: BaseException) -> str:
    """What stopped a command, of the KeyboardInterrupt that did: Ctrl-C or the signal's name."""
    name = str(stop)
    return "Ctrl-C" if name in ("", "SIGINT") else name


def run_stopped(by: str, folder: Path, launcher: str | None = None) -> Ending:
    """A run that a signal stopped. `by`: of `asked_by`. `launcher`: asked for by name."""
    from ..train.resume import last_log_point, stopped_at  # numpy, which a signal may have broken

    checkpoint, kept = _newest_checkpoint(folder)
    step = max(last_log_point(folder) or 0, stopped_at(folder) or 0)
    if step and stopped_at(folder) is None and kept != f"checkpoint of step {step}":
        kept += ", none at the stop: it took longer than limits.grace_s or was given up"
    reason = f"stopped by {by} at step {step} ({kept})"
    return Ending(reason, str(folder), *_onward(checkpoint, folder, launcher))


def rank_failed(
    reason: str, folder: Path, launcher: str | None = None, *, hopeless: bool = False
) -> Ending:
    """A run of which a rank failed. `hopeless`: it would fail there again."""
    if hopeless:
        advice = "to go on would end there again; try a lower optimizer.base_lr or a longer "
        return Ending(reason, str(folder), f"{advice}schedule.warmup")
    return Ending(reason, str(folder), *_onward(_newest_checkpoint(folder)[0], folder, launcher))


def run_ended(result: Mapping[str, Any], folder: Path, launcher: str | None = None) -> Ending:
    """A run whose ranks all ended in order: at its target, at its last epoch, or when asked to.
    `result`: of result.json."""
    from .verdict import objection  # compliance: 0.05 s

    accuracy, target = number(result.get("eval_accuracy")), number(result.get("target")) or 0.0
    reached = "no evaluation" if accuracy is None else f"accuracy {accuracy:.4f}"
    where = f"{reached} after epoch {result.get('epochs', 0)}"
    if result.get("status") == "success":
        against = objection(result)
        reason = f"target {plain(target)} reached: {where}" + (against and f", but {against}")
        return Ending(reason, str(folder), f"its report: {folder / 'report.html'}")
    early = result.get("stopped")
    if early is None:
        advice = "it cannot be resumed, as its schedule is over; try a longer schedule.length"
        return Ending(f"target {plain(target)} missed: {where}, the last", str(folder), advice)
    checkpoint, kept = _newest_checkpoint(folder)
    advice, command = _onward(checkpoint, folder, launcher)
    if spent := re.search(r"\((limits\.\w+)\)", str(early)):
        # The budget counts from the beginning of the run: it is spent still.
        command = f"{command} {spent[1]}=null"
    return Ending(f"{early} ({kept})", str(folder), advice, command)


def _newest_checkpoint(folder: Path) -> tuple[bool, str]:
    """Whether the run in `folder` has a checkpoint, and the newest one in words."""
    from ..train.checkpoint import step_of  # numpy: 0.1 s that no other command needs
    from ..train.checkpoint_folder import listed

    checkpoints = listed(folder / "checkpoint")
    if not checkpoints:
        return False, "no checkpoint"
    return True, f"checkpoint of step {step_of(checkpoints[-1])}"


def _onward(checkpoint: bool, folder: Path, launcher: str | None) -> tuple[str, str]:
    """Advice and command for a run that is not at its end."""
    if not folder.is_dir():
        return f"if it was moved, {GO_ON}", f"{_RESUME} FOLDER"
    for job in (folder, folder.parent):
        if (job / JOB_SCRIPT).is_file():  # which a login node should not start
            return GO_ON, shlex.join([*_RESUME_JOB, str(job), *_words(job, "RESUME_JOB")])
    more = ("--launcher", launcher) if launcher else ()
    if checkpoint:
        return GO_ON, f"{_RESUME} {shlex.join([str(folder), *more, *_words(folder, 'RESUME')])}"
    words = [str(folder / "config.yaml"), *more, *_words(folder, "RUN")]
    return START_AGAIN, f"rn50 launch {shlex.join(words)}"


def _words(folder: Path, commands: str) -> list[str]:
    """What a command for the user's own run has to say, as its config alone may not decide it."""
    from ..config import recorded  # pydantic: 0.1 s

    return recorded.words_to_repeat(folder, getattr(recorded, commands))


def job_ended(scheduler: str, job: str, code: int, folder: Path, last: Mapping[str, Any]) -> Ending:
    """`submit --wait` at the end of its job. `last`: result.json of the job's last run; empty where
    there is none."""
    why = f", {last['reason']}" if last.get("reason") else ""
    command = str(last.get("next", ""))
    advice = f"its log: {folder / 'job.log'}" + (f"; {GO_ON}" if command else "")
    reason = f"{scheduler} job {job} ended with exit code {code}{why}"
    return Ending(reason, str(folder), advice, command)


def sweep_ended(states: Mapping[str, int], best: int | None, folder: Path) -> Ending:
    """A sweep that came to its end. `states`: how many trials are complete, pruned, fail, running.
    `best`: number of the best trial; None: none is complete."""
    reason = "trials: " + (", ".join(f"{n} {state}" for state, n in states.items()) or "none yet")
    if best is None:
        return Ending(f"no trial came to its end; {reason}", str(folder))
    command = shlex.join(["rn50", "launch", str(folder / "best.yaml")])
    return Ending(reason, str(folder), "train the best with", command)


def callable_here(command: str) -> str:
    """`command` as it can be typed: with the path of this `rn50`, where the PATH has another."""
    if not command.startswith("rn50 "):
        return command
    own = Path(sys.executable).with_name("rn50")
    found = shutil.which("rn50")
    if found is not None and Path(found).resolve() == own.resolve():
        return command
    with suppress(ValueError):
        own = own.relative_to(Path.cwd())
    return shlex.quote(str(own)) + command.removeprefix("rn50")
