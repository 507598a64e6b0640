"""`rn50 sweep`: the driver. It asks for trials, runs them, watches them, and notes what came out.

Every trial is on disk before it starts (Optuna's journal, trial folders), so the driver may be
killed at any moment and the same command continues: its trials end with it, and are run again with
the same values and the same seed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, TrialState

from ..data.prepare import prepare
from ..host.atomic import write_file
from ..host.errors import UserError, failing_as
from ..host.lock import LOCK, hold
from ..host.progress import Advance
from ..host.stop_signals import StopSignals
from ..launch.ending import GO_ON, Ending, StoppedBySignal, asked_by
from ..launch.launch_plan import Options, plan_launch
from ..logging.records import ABORTED, SUCCESS, Result
from ..logging.run_folder import CONFIG
from .definition import LoadedSweep, problems_of
from .study import Study, training_seed
from .trial import evaluations, read_end, remove, start, stop

if TYPE_CHECKING:
    from subprocess import Popen

POLL_S = 0.5
MEASURED = {
    "accuracy": "eval_accuracy",
    "time_to_target": "time_to_train_s",
    "epochs_to_target": "epochs",
}
"""Objective -> the field of a `Result` that is its value."""
Say = Callable[[str], None]


@dataclass
class Active:
    """A trial that runs."""

    number: int
    folder: Path
    process: Popen[str]
    seen: int = 0
    """Evaluations that the study has."""


def sweep_folder(loaded: LoadedSweep) -> Path:
    """`results/<sweep>/`."""
    results = Path(loaded.base.run.system.results)
    return results / loaded.sweep.name


def run_sweep(
    loaded: LoadedSweep, track: Callable[[str], Advance], say: Say, resume_command: str
) -> Study:
    """Run a sweep to its last trial, or continue it; returns the study.

    Args:
        track: gives the progress callback of a named piece of work.
        say: prints a line on what a trial came to.
        resume_command: the command that continues the sweep.

    Raises:
        UserError: another driver at work, another definition in the folder, or no data.
        Stopped: a signal ended it; its trials have been stopped and are run again later.
    """
    folder = sweep_folder(loaded)
    sweep = loaded.sweep
    with failing_as(f"{folder}: cannot create"):
        folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / LOCK):
        study = Study(sweep, folder, loaded.definition())
        # once: two trials would both draw it
        prepare(loaded.base.run.data, track, loaded.base.origins)
        progress = track(f"sweep {sweep.name}")
        driver = Driver(loaded, study, progress, say)
        try:
            driver.run()
        except KeyboardInterrupt as stop:
            stopped = len(study.running)
            ended = len(study.trials) - stopped
            reason = (
                f"stopped by {asked_by(stop)}; {ended} of {sweep.wanted_trials} trials have ended "
                f"and are kept, {stopped} run again"
            )
            ending = Ending(reason, folder, GO_ON, resume_command)
            raise StoppedBySignal(ending) from None
    return study


@dataclass
class Driver:
    """The loop over trials, one at a time."""

    loaded: LoadedSweep
    study: Study
    progress: Advance
    say: Say

    def run(self) -> None:
        """Run trials until all have ended; on a signal or an error none of them runs on.

        Signals are looked at between two steps: one that interrupted a step could leave a trial
        running that nobody stops.
        """
        with StopSignals() as stop_signals:
            # those whose end an earlier driver did not see; they are run again in turn
            for trial in self.study.running:
                remove(self._folder_of(trial))
                line = "did not end while its driver ran, run again"
                self.say(f"trial {trial.number}: {line}")
            while (next_trial := self._next()) is not None:
                active = self._begin(next_trial)
                if active is not None:
                    self._watch(active, stop_signals)
                started = len(self.study.trials)
                ended = started - len(self.study.running)
                self.progress(ended, max(self.loaded.sweep.wanted_trials, started))

    def _next(self) -> FrozenTrial | None:
        """A trial of an earlier driver, which is run again before new ones."""
        if self.study.running:
            return self.study.running[0]
        if len(self.study.trials) < self.loaded.sweep.wanted_trials:
            return self.study.ask()
        return None

    def _watch(self, active: Active, stop_signals: StopSignals) -> None:
        """Look at a trial until it has ended. Raises KeyboardInterrupt: a signal came."""
        try:
            while not self._has_ended(active):
                if stop_signals.name:
                    raise KeyboardInterrupt(stop_signals.name)
                time.sleep(POLL_S)
        except BaseException:
            self.say("stopping the trial that runs ...")
            stop(active.process)
            raise

    def _folder_of(self, trial: FrozenTrial) -> Path:
        return sweep_folder(self.loaded) / "trials" / f"trial_{trial.number:04d}"

    def _begin(self, trial: FrozenTrial) -> Active | None:
        """Write the trial's config and start it; values that make no config, or one that `rn50
        launch` would refuse, are a failed trial, of which nothing runs."""
        folder = self._folder_of(trial)
        results = json.dumps(str(folder.parent))
        settings = [f"name={folder.name}", f"system.results={results}"]
        run = self.loaded.base.run
        if run.seed is None and "seed" not in trial.params:
            seed = training_seed(self.loaded.sweep, trial.number)
            settings.append(f"seed={seed}")
        try:
            loaded = self.loaded.load_trial(trial.params, *settings)
            plan_launch(loaded, Options()).refuse()
        except UserError as error:
            reason = "; ".join(problems_of(error))
            self._end(trial.number, TrialState.FAIL, reason=reason)
            return None
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / CONFIG, loaded.to_yaml())
        values = [f"{key}={value}" for key, value in trial.params.items()]
        self.say(f"trial {trial.number}: {', '.join(values)}")
        return Active(trial.number, folder, start(folder))

    def _has_ended(self, active: Active) -> bool:
        """One look at a trial: new evaluations first, then whether it has ended. Its end is
        noted."""
        code = active.process.poll()  # before the look: an end has all its evaluations
        target = self.loaded.base.run.eval.target
        unseen = evaluations(active.folder)[active.seen :]
        for epoch, accuracy in unseen:
            active.seen += 1
            is_poor = self.study.report(active.number, epoch, accuracy)
            # one at its target is about to end well by itself
            if is_poor and accuracy < target:
                stop(active.process)
                reason = f"accuracy {accuracy:.4f} after epoch {epoch}"
                self._end(active.number, TrialState.PRUNED, reason=reason)
                return True
        if code is not None:
            self._settle(active.number, read_end(active.folder, code))
        return code is not None

    def _settle(self, number: int, result: Result) -> None:
        """Note how a trial ended that its driver did not stop."""
        if result.stopped and result.stopped.by:
            self._end(number, TrialState.FAIL, reason=result.why)
            return
        objective = self.loaded.sweep.objective
        accuracy = result.eval_accuracy
        value: float | None = getattr(result, MEASURED[objective])
        ended_well = [SUCCESS]
        if objective == "accuracy":
            ended_well.append(ABORTED)
        if result.status in ended_well and value is not None:
            self._end(number, TrialState.COMPLETE, value)
        elif result.status == ABORTED and accuracy is not None:
            reason = f"target not reached: accuracy {accuracy:.4f} at the end"
            self._end(number, TrialState.PRUNED, reason=reason)
        else:
            reason = result.reason or result.status
            self._end(number, TrialState.FAIL, reason=reason)

    def _end(
        self,
        number: int,
        state: TrialState,
        value: float | None = None,
        reason: str = "",
    ) -> None:
        """Note how a trial ended, and say so."""
        self.study.end(number, state, value, reason)
        came_to = reason if value is None else f"{value:g}"
        self.say(f"trial {number}: {state.name.lower()}: {came_to}")
