"""`rn50 sweep`: the driver. It asks for trials, runs them, watches them, and notes what came out.

Every trial is on disk before it starts (Optuna's journal, trial folders), so the driver may be
killed at any moment and the same command continues: trials that ended meanwhile are read, those
that did not are stopped and run again with the same values and the same seed.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState

from ..config.atomic import write_file
from ..config.errors import UserError, failing_as
from ..config.finding import number as number_of
from ..config.plan import build_plan
from ..config.progress import Advance
from ..data.prepare import prepare
from ..launch.ending import GO_ON, Ending, Stopped, asked_by, was_stopped
from ..launch.run_lock import hold_run
from ..launch.supervisor import StopSignals
from .definition import LoadedSweep
from .study import JOURNAL, Study, training_seed
from .trial import (
    Ended,
    Evaluation,
    clean_up,
    evaluations,
    read_end,
    start,
    trial_command,
)

POLL_S = 0.5
STOP_S = 20.0
"""For a trial to end in order before its processes are killed."""
MEASURED = {
    "accuracy": "eval_accuracy",
    "time_to_target": "time_to_train_s",
    "epochs_to_target": "epochs",
}
"""Objective -> its key in a run's result.json."""
Say = Callable[[str], None]


@dataclass
class Active:
    """A trial whose end is to be noted."""

    number: int
    folder: Path
    last_epoch: int
    """Its last evaluation ends it anyway."""
    process: subprocess.Popen[bytes] | None = None
    """None: an earlier driver's, which has ended."""
    seen: list[Evaluation] = field(default_factory=list)
    """Evaluations that the study has."""
    started_s: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float | None:
        """Wall time so far; None where an earlier driver started it."""
        return None if self.process is None else time.monotonic() - self.started_s


def sweep_folder(loaded: LoadedSweep) -> Path:
    """`results/<sweep>/`."""
    return Path(loaded.base.run.system.results) / loaded.sweep.name


def run_sweep(loaded: LoadedSweep, track: Callable[[str], Advance], say: Say, again: str) -> Study:
    """Run a sweep to its last trial, or continue it; returns the study.

    Args:
        track: gives the progress callback of a named piece of work.
        say: prints a line on what a trial came to.
        again: the command that continues the sweep.

    Raises:
        UserError: another driver at work, another definition in the folder, or no data.
        Stopped: a signal ended it; its trials have been stopped and are run again later.
    """
    folder, sweep = sweep_folder(loaded), loaded.sweep
    with failing_as(f"{folder}: cannot create"):
        folder.mkdir(parents=True, exist_ok=True)
    with hold_run(folder):
        study = Study(sweep, folder, loaded.definition())
        # once: two trials would both draw it
        prepare(loaded.base.run.data, track, loaded.base.origins)
        driver = Driver(loaded, study, track(f"sweep {sweep.name}"), say)
        try:
            driver.run()
        except KeyboardInterrupt as stop:
            ran = len(driver.active)
            ended = f"{len(study.trials) - ran} of {sweep.wanted_trials} trials have ended"
            reason = f"stopped by {asked_by(stop)}; {ended} and are kept, {ran} run again"
            raise Stopped(Ending(reason, str(folder), GO_ON, again)) from None
    return study


def open_study(loaded: LoadedSweep) -> Study:
    """The study so far, while no driver is at work. Raises UserError where there is none."""
    folder = sweep_folder(loaded)
    if not (folder / JOURNAL).is_file():
        raise UserError(f"{folder}: a sweep that has begun expected, found none")
    with hold_run(folder):
        return Study(loaded.sweep, folder, loaded.definition())


class Driver:
    """The loop over trials."""

    def __init__(self, loaded: LoadedSweep, study: Study, progress: Advance, say: Say) -> None:
        self._loaded, self._study = loaded, study
        self._progress, self._say = progress, say
        self.active: dict[int, Active] = {}
        """The trials that run; after a signal those that ran."""

    def run(self) -> None:
        """Until all trials have ended; on a signal or an error none of them runs on.

        Signals are looked at between two steps: one that interrupted a step could leave a trial
        running that is in no list.
        """
        with StopSignals() as stop_signals:
            try:
                for trial in self._study.running():
                    self._continue(trial)
                while self._look() and not stop_signals.name:
                    time.sleep(POLL_S)
                if stop_signals.name and self._remaining():
                    raise KeyboardInterrupt(stop_signals.name)
            except BaseException:
                if self.active:
                    self._say(f"stopping {len(self.active)} trials ...")
                self._stop(*self.active.values())
                raise

    def _look(self) -> bool:
        """One look at everything: new trials, running trials. False: all have ended."""
        sweep = self._loaded.sweep
        while len(self._study.trials) < sweep.wanted_trials and len(self.active) < sweep.parallel:
            self._begin(self._study.ask())
        for active in list(self.active.values()):
            self._watch(active)
        self._show()
        return self._remaining()

    def _remaining(self) -> bool:
        return bool(self.active) or len(self._study.trials) < self._loaded.sweep.wanted_trials

    def _show(self) -> None:
        """Trials that have ended, and the running ones by their share of epochs."""
        asked, begun, words = len(self._study.trials), 0.0, []
        for active in self.active.values():
            epoch = active.seen[-1].epoch if active.seen else 0
            begun += min(epoch / active.last_epoch, 1.0)
            words.append(f"trial {active.number}: epoch {epoch} of {active.last_epoch}")
        best = self._study.best()
        if best is not None:
            measure = self._loaded.sweep.objective.measure
            words.append(f"best {measure} {best.value:g} (trial {best.number})")
        total = max(self._loaded.sweep.wanted_trials, asked)
        self._progress(asked - len(self.active), total, "; ".join(words), begun)

    def _continue(self, trial: FrozenTrial) -> None:
        """Read a trial of an earlier driver if it has ended, else stop it and run it again."""
        folder = self._folder(trial.number)
        clean_up(folder)
        ended = read_end(folder, None)
        if ended.result and not was_stopped(ended.result):
            self._say(f"trial {trial.number}: ended while no driver was there")
            active = Active(trial.number, folder, self._last_epoch(trial))
            if not self._judge(active):
                self._settle(active, ended)
            return
        if folder.exists():
            lost = len(list(folder.parent.glob(f"{folder.name}_lost_*"))) + 1
            folder.rename(folder.with_name(f"{folder.name}_lost_{lost}"))
        self._say(f"trial {trial.number}: was lost with its driver, run again")
        self._begin(trial)

    def _folder(self, number: int) -> Path:
        return sweep_folder(self._loaded) / "trials" / f"trial_{number:04d}"

    def _begin(self, trial: FrozenTrial) -> None:
        """Write the trial's config and start it; values that make no config are a failed trial."""
        folder, sweep = self._folder(trial.number), self._loaded.sweep
        folder.mkdir(parents=True, exist_ok=True)
        own = [f"name={folder.name}", f"system.results={json.dumps(str(folder.parent))}"]
        if self._loaded.base.run.seed is None and "seed" not in trial.params:
            own.append(f"seed={training_seed(sweep, trial.number)}")
        active = Active(trial.number, folder, last_epoch=1)
        try:
            loaded = self._loaded.load_trial(sweep.config, trial.params, *own)
            active.last_epoch = self._last_epoch(trial)
        except UserError as error:
            self._fail(active, "; ".join(str(error).splitlines()))
            return
        path = folder / "config.yaml"
        write_file(path, loaded.to_yaml())
        values = ", ".join(f"{key}={value}" for key, value in trial.params.items())
        self._say(f"trial {trial.number}: {values}")
        active.process = start(trial_command(path), folder)
        self.active[trial.number] = active

    def _last_epoch(self, trial: FrozenTrial) -> int:
        """The epoch whose evaluation ends a trial at the latest."""
        if self._loaded.sweep.objective.at_epoch is not None:
            return self._loaded.sweep.objective.at_epoch
        loaded = self._loaded.load_trial(self._loaded.sweep.config, trial.params)
        return build_plan(loaded.run).eval_epochs[-1]

    def _watch(self, active: Active) -> None:
        """One look at a trial: new evaluations first, then whether it has ended or must."""
        assert active.process is not None
        code = active.process.poll()  # before the look: an end has all its evaluations
        limit_s = self._loaded.sweep.limit_s
        if self._judge(active):
            self._stop(active)
        elif code is not None:
            clean_up(active.folder)
            self._settle(active, read_end(active.folder, code))
        elif limit_s is not None and (active.seconds or 0.0) > limit_s:
            self._fail(active, f"longer than limit_s ({limit_s:g} s)")
            self._stop(active)
        else:
            return
        del self.active[active.number]

    def _judge(self, active: Active) -> bool:
        """Note new evaluations; True where one of them decides the trial, which is then noted."""
        target, objective = self._loaded.base.run.eval.target, self._loaded.sweep.objective
        for evaluation in evaluations(active.folder)[len(active.seen) :]:
            active.seen.append(evaluation)
            epoch, accuracy = evaluation
            prune = self._study.report(active.number, epoch, accuracy)
            if epoch == objective.at_epoch:
                self._complete(active, accuracy)
                return True
            if prune and epoch < active.last_epoch and accuracy < target:
                self._prune(active, f"accuracy {accuracy:.4f} after epoch {epoch}")
                return True
        return False

    def _stop(self, *trials: Active) -> None:
        """End trials: nothing of them is waited for but their processes."""
        for active in trials:
            if active.process is not None:
                active.process.terminate()  # its log is closed as aborted
        for active in trials:
            if active.process is not None:
                with suppress(subprocess.TimeoutExpired):
                    active.process.wait(timeout=STOP_S)
            clean_up(active.folder)

    def _settle(self, active: Active, ended: Ended) -> None:
        """Note how a trial ended by itself."""
        objective, result = self._loaded.sweep.objective, ended.result
        if ended.status == "success":
            name = MEASURED[objective.measure]  # accuracy: the target came before the epoch
            value = number_of(result.get(name))
            if value is None:
                self._fail(active, f"its result.json has no number {name}")
            else:
                self._complete(active, value)
        elif ended.status == "aborted" and not objective.is_accuracy:
            accuracy = number_of(result.get("eval_accuracy"))
            reached = "no evaluation" if accuracy is None else f"accuracy {accuracy:.4f} at the end"
            self._prune(active, f"target not reached: {reached}")
        elif ended.status == "aborted":
            self._fail(active, f"no evaluation after epoch {objective.at_epoch}")
        else:
            self._fail(active, ended.reason or ended.status)

    def _complete(self, active: Active, value: float) -> None:
        self._study.end(active.number, TrialState.COMPLETE, value=value, seconds=active.seconds)
        self._say(f"trial {active.number}: {self._loaded.sweep.objective.measure} {value:g}")

    def _prune(self, active: Active, reason: str) -> None:
        """Stopped early, or a run that ended without reaching its target."""
        self._study.end(active.number, TrialState.PRUNED, reason=reason, seconds=active.seconds)
        self._say(f"trial {active.number}: pruned: {reason}")

    def _fail(self, active: Active, reason: str) -> None:
        self._study.end(active.number, TrialState.FAIL, reason=reason, seconds=active.seconds)
        self._say(f"trial {active.number}: failed: {reason}")
