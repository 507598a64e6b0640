"""How a command ended, in one last line: the reason, the folder, the command to go on with.

The same reason and command are in result.json, as `reason` and `next`.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..host.errors import UserError
from ..host.finding import plain
from ..logging.records import (
    FAILED,
    LAUNCH,
    RESUME,
    RESUME_JOB,
    SUCCESS,
    Next,
    Result,
    Stopped,
)
from ..logging.run_folder import JobFolder, RunFolder

if TYPE_CHECKING:
    from ..config.load import Loaded

GO_ON = "go on with"
START_AGAIN = "start again with"


class Ending(NamedTuple):
    """Why a command ended, the folder of what it made, and what to do next: advice in words, then
    a command of ours or of a scheduler. `stopped`: of a run that was stopped."""

    reason: str
    folder: Path | None = None
    advice: str = ""
    next: Next | str = ""
    stopped: Stopped | None = None

    @property
    def line(self) -> str:
        """The last line of the command; ours are spelt as they can be called here."""
        where = f": {self.folder}" if self.folder else ""
        return f"{self.reason}{where}{self.what_next}"

    @property
    def what_next(self) -> str:
        """The end of the line, where the reason has been printed already."""
        command = callable_here(str(self.next))
        todo = ": ".join(filter(None, (self.advice, command)))
        return todo and f"; {todo}"

    def recorded(self, result: Result) -> Result:
        """The result of a run that ended so; what its ranks have recorded of a stop is kept."""
        onward = self.next if isinstance(self.next, Next) else None
        stopped = result.stopped or self.stopped
        return replace(result, reason=self.reason, next=onward, stopped=stopped)


class StoppedBySignal(KeyboardInterrupt):
    """A stop by a signal that has been dealt with: its ending is what is left to say."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.line)
        self.ending = ending


class RunError(UserError):
    """A run that failed; its message ends with what to do next."""

    def __init__(self, message: str, ending: Ending) -> None:
        super().__init__(*message.split("\n"))
        self.ending = ending


def asked_by(stop: BaseException) -> str:
    """What stopped a command, of the KeyboardInterrupt that did: Ctrl-C or the signal's name."""
    if isinstance(stop, StoppedBySignal):
        return (stop.ending.stopped or Stopped()).by
    name = str(stop)
    if name in ("", "SIGINT"):
        return "Ctrl-C"
    return name


def run_stopped(
    by: str, folder: Path, launcher: str | None = None, loaded: Loaded | None = None
) -> Ending:
    """A run that a signal stopped. `by`: of `asked_by`. `launcher`: asked for by name. `loaded`:
    its config, if its folder is gone."""
    out = RunFolder(folder)
    result = out.read_result() or Result(FAILED)
    in_order = result.stopped or Stopped()
    saved_step = _newest_checkpoint(folder)
    step = max(out.last_log_point or 0, in_order.step)
    saved = _in_words(saved_step)
    if step and not result.stopped and saved_step != step:
        saved += (
            ", none at the stop: it took longer than limits.grace_s or was given up"
        )
    reason = f"stopped by {by} at step {step} ({saved})"
    ending = _to_go_on(reason, folder, launcher, loaded=loaded)
    return ending._replace(stopped=Stopped(by, step))


def rank_failed(
    reason: str, folder: Path, launcher: str | None = None, loaded: Loaded | None = None
) -> Ending:
    """A run of which a rank failed."""
    if RunFolder(folder).is_hopeless:
        advice = (
            "to go on would end there again; try a lower optimizer.base_lr or a longer "
        )
        return Ending(reason, folder, f"{advice}schedule.warmup")
    return _to_go_on(reason, folder, launcher, loaded=loaded)


def run_ended(result: Result, folder: Path, launcher: str | None = None) -> Ending:
    """A run whose ranks all ended in order: at its target, at its last epoch, or when asked to."""
    accuracy = result.eval_accuracy
    target = result.target or 0.0
    reached = "no evaluation"
    if accuracy is not None:
        reached = f"accuracy {accuracy:.4f}"
    where = f"{reached} after epoch {result.epochs}"
    if result.status == SUCCESS:
        reason = f"target {plain(target)} reached: {where}"
        if result.objection:
            reason += f", but {result.objection}"
        return Ending(reason, folder, f"its report: {RunFolder(folder).report}")
    if not result.stopped:
        return Ending(
            f"complete, target {plain(target)} missed: {where}, the last",
            folder,
            "it cannot be resumed, as its schedule is over; try a longer schedule.length",
        )
    limit = result.stopped.limit
    reason = f"{result.stopped} ({_in_words(_newest_checkpoint(folder))})"
    if limit is None:
        return _to_go_on(reason, folder, launcher)
    # The budget counts from the beginning of the run: it is spent still.
    return _to_go_on(reason, folder, launcher, [f"{limit}=null"])


def _newest_checkpoint(folder: Path) -> int | None:
    """The step of the newest checkpoint from which the run in `folder` can go on."""
    # numpy: 0.1 s that no other command needs
    from ..train.checkpoint.file import step_of
    from ..train.checkpoint.folder import checkpoints_of_run

    checkpoints = checkpoints_of_run(RunFolder(folder).checkpoints).trusted
    return step_of(checkpoints[-1]) if checkpoints else None


def _in_words(checkpoint: int | None) -> str:
    return "no checkpoint" if checkpoint is None else f"checkpoint of step {checkpoint}"


def _to_go_on(
    reason: str,
    folder: Path,
    launcher: str | None,
    overrides: Sequence[str] = (),
    loaded: Loaded | None = None,
) -> Ending:
    """A run that is not at its end. The command says what its config alone may not decide."""
    from ..config import recorded  # pydantic: 0.1 s

    for job in (folder, folder.parent):
        if JobFolder(job).script.is_file():  # which a login node should not start
            options = recorded.words_to_repeat(job, recorded.RESUME_JOB)
            onward = Next(RESUME_JOB, str(job), (*options, *overrides))
            return Ending(reason, folder, GO_ON, onward)
    target = str(folder)
    advice = GO_ON
    verb = RESUME
    keys: tuple[str, ...] = recorded.RESUME
    if not folder.is_dir():
        target = "FOLDER"
        advice = f"if it was moved, {GO_ON}"
    elif _newest_checkpoint(folder) is None:
        # such as a disk that was full before the run began
        if not RunFolder(folder).config.is_file():
            return Ending(reason, folder)
        advice = START_AGAIN
        verb = LAUNCH
        keys = recorded.RUN
    options = [*recorded.words_to_repeat(folder, keys, loaded), *overrides]
    if launcher:
        options = ["--launcher", launcher, *options]
    return Ending(reason, folder, advice, Next(verb, target, tuple(options)))


def job_ended(
    scheduler: str, job: str, code: int, folder: Path, last: Result | None
) -> Ending:
    """`submit --wait` at the end of its job. `last`: of the job's last run."""
    reason = f"{scheduler} job {job} ended with exit code {code}"
    if last and last.reason:
        reason += f", {last.reason}"
    advice = f"its log: {JobFolder(folder).log}"
    if last and last.next:
        return Ending(reason, folder, f"{advice}; {GO_ON}", last.next)
    return Ending(reason, folder, advice)


def sweep_ended(
    states: Mapping[str, int], folder: Path, parameter: str | None
) -> Ending:
    """A sweep that came to its end. `states`: how many trials are complete, pruned, fail, running.
    `parameter`: a key that it varied; None: no trial is complete."""
    counts = [f"{trials} {state}" for state, trials in states.items()]
    reason = f"trials: {', '.join(counts) or 'none yet'}"
    if parameter is None:
        return Ending(f"no trial came to its end; {reason}", folder)
    command = ["rn50", "log", "compare", str(folder), "--by", parameter]
    return Ending(reason, folder, "compare them with", shlex.join(command))


def callable_here(command: str) -> str:
    """`command` as it can be typed: with the path of this `rn50`, where the PATH has another."""
    if not command.startswith("rn50 "):
        return command
    program = Path(sys.executable).with_name("rn50")
    on_path = shutil.which("rn50")
    if on_path and Path(on_path).resolve() == program.resolve():
        return command
    with suppress(ValueError):
        program = program.relative_to(Path.cwd())
    return shlex.quote(str(program)) + command.removeprefix("rn50")
