"""`rn50 sweep`: the driver. It asks for trials, runs them, watches them, and tells what came out.

Everything it knows is on disk before it acts on it (journal, trial folders), so it may be killed at
any moment: the same command goes on. Trials that still run are taken over; those that ended
meanwhile are read; those that were lost are run again with the same values and the same seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from optuna.trial import FrozenTrial

from ..config.atomic import write_file, write_output
from ..config.errors import UserError, failing_as
from ..config.finding import number as number_of
from ..config.plan import build_plan
from ..config.progress import Advance
from ..config.reading import read_file
from ..data.prepare import prepare
from ..launch.ending import Stopped, asked_by, sweep_stopped, was_stopped
from ..launch.run_lock import hold_run
from ..launch.supervisor import StopSignals
from .definition import LoadedSweep, difference
from .study import Study, training_seed, wanted_trials
from .trial import (
    Ended,
    ask_to_stop,
    clean_up,
    evaluations,
    find_main,
    read_end,
    read_place,
    start,
    trial_command,
)

POLL_S = 0.5
_MOST_BYTES = 1 << 20  # of sweep.json; a definition has at most 64 KB
SHOWN = 3
"""Running trials that a line of progress names."""
Say = Callable[[str], None]


class Active(NamedTuple):
    """A trial that runs: a child of ours, or one that an earlier driver left."""

    number: int
    folder: Path
    process: subprocess.Popen[bytes] | None
    """Of ours."""
    last_epoch: int
    """Its last evaluation ends it anyway."""

    def has_ended(self) -> bool:
        if self.process is not None:
            return self.process.poll() is not None
        return find_main(self.folder) is None

    @property
    def code(self) -> int | None:
        return None if self.process is None else self.process.returncode


def sweep_folder(loaded: LoadedSweep) -> Path:
    """`results/<sweep>/`."""
    return Path(loaded.base.run.system.results) / loaded.sweep.name


def run_sweep(loaded: LoadedSweep, track: Callable[[str], Advance], say: Say, again: str) -> Study:
    """Run a sweep to its last trial, or go on with it; returns the study.

    Args:
        track: gives the progress callback of a named piece of work.
        say: prints a line on what a trial came to.
        again: the command that goes on with the sweep.

    Raises:
        UserError: another driver at work, another definition in the folder, or no data.
        Stopped: a signal ended it; its trials have been stopped and are run again later.
    """
    folder = sweep_folder(loaded)
    with failing_as(f"{folder}: cannot create"):
        folder.mkdir(parents=True, exist_ok=True)
    with hold_run(folder):
        keep_definition(loaded, folder)
        if loaded.sweep.scheduler == "local":
            # once: two trials would both draw it
            prepare(loaded.base.run.data, track, loaded.base.origins)
        study = Study(loaded.sweep, folder / "journal.log")
        driver = Driver(loaded, folder, study, track(f"sweep {loaded.sweep.name}"), say)
        try:
            driver.run()
        except KeyboardInterrupt as stop:
            ran = len(driver.stopped)
            ended, wanted = len(study.trials) - ran, wanted_trials(loaded.sweep)
            ending = sweep_stopped(asked_by(stop), ended, wanted, ran, folder, again)
            raise Stopped(ending) from None
    return study


def open_study(loaded: LoadedSweep) -> Study:
    """The study so far, while no driver is at work. Raises UserError where there is none."""
    folder = sweep_folder(loaded)
    if not (folder / "journal.log").is_file():
        raise UserError(f"{folder}: a sweep that has begun expected, found none")
    with hold_run(folder):
        keep_definition(loaded, folder)
        return Study(loaded.sweep, folder / "journal.log")


def keep_definition(loaded: LoadedSweep, folder: Path) -> None:
    """Write `folder`/sweep.json, or hold the sweep to the one that is there. Raises UserError: what
    is searched or how it is judged is not what it was: the keys."""
    path, mine = folder / "sweep.json", loaded.definition()
    if not os.path.lexists(path):
        write_output(path, json.dumps(mine, indent=1) + "\n")
        return
    try:
        old = json.loads(read_file(path, _MOST_BYTES, within=folder))
        changed = difference(old, mine) if isinstance(old, dict) else ["all of it"]
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: JSON expected, found none") from None
    if old != mine:
        raise UserError(
            f"{folder}: the definition it began with expected; changed: {'; '.join(changed)}; "
            "give the sweep another name, or remove the folder"
        )


class Driver:
    """The loop over trials."""

    def __init__(
        self,
        loaded: LoadedSweep,
        folder: Path,
        study: Study,
        progress: Advance,
        say: Say,
    ) -> None:
        self._loaded, self._folder, self._study = loaded, folder, study
        self._progress, self._say = progress, say
        self._active: dict[int, Active] = {}
        self._wanted = wanted_trials(loaded.sweep)
        self.stopped: tuple[int, ...] = ()
        """Trials that ran when a signal or an error ended the driver."""

    def run(self) -> None:
        """Until all trials have ended; on a signal or an error none of them runs on.

        Signals are looked at between two steps: one that interrupted a step could leave a trial
        running that is in no list.
        """
        with StopSignals() as stop_signals:
            try:
                for trial in self._study.running():
                    self._take_over(trial)
                while self._go_on() and not stop_signals.name:
                    time.sleep(POLL_S)
                if stop_signals.name and self._remaining():
                    raise KeyboardInterrupt(stop_signals.name)
            except BaseException:
                self.stopped = tuple(self._active)
                if self._active:
                    self._say(f"stopping {len(self._active)} trials ...")
                for active in self._active.values():
                    ask_to_stop(active.folder, self._loaded.sweep.scheduler)
                for active in self._active.values():
                    clean_up(active.folder, self._loaded.sweep.scheduler)
                raise

    def _go_on(self) -> bool:
        """One look at everything: new trials, running trials. False: all have ended."""
        while len(self._study.trials) < self._wanted and (
            len(self._active) < self._loaded.sweep.parallel
        ):
            self._begin(self._study.ask())
        for active in list(self._active.values()):
            self._watch(active)
        self._show()
        return self._remaining()

    def _remaining(self) -> bool:
        return bool(self._active) or len(self._study.trials) < self._wanted

    def _show(self) -> None:
        """Trials that have ended, and the running ones by their share of epochs."""
        total = max(self._wanted, len(self._study.trials))
        done, begun, told = len(self._study.trials) - len(self._active), 0.0, []
        for active in self._active.values():
            place = read_place(active.folder)
            begun += min(place.epoch / active.last_epoch, 1.0)
            told.append(f"trial {active.number}: {place.text(active.last_epoch)}")
        more = [f"and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
        best = self._study.best()
        if best is not None:
            measure = self._loaded.sweep.objective.measure
            more.append(f"best {measure} {best.value:g} (trial {best.number})")
        self._progress(done, total, "; ".join([*told[:SHOWN], *more]), begun)

    def _take_over(self, trial: FrozenTrial) -> None:
        """Go on with a trial that an earlier driver started: watch, read, or run it again."""
        folder = self._trial_folder(trial.number)
        if find_main(folder) is not None:
            self._say(f"trial {trial.number}: still running, taken over")
            self._watch_from_now(trial, folder, None)
            return
        clean_up(folder, self._loaded.sweep.scheduler)
        ended = read_end(folder, None) if folder.exists() else Ended("failed", "", {})
        if ended.result and not was_stopped(ended.result):
            self._say(f"trial {trial.number}: ended while no driver was there")
            if not self._judge(trial.number, folder, self._last_epoch(trial)):
                self._settle(trial.number, folder, ended)
            return
        if folder.exists():
            lost = len(list(folder.parent.glob(f"{folder.name}_lost_*"))) + 1
            folder.rename(folder.with_name(f"{folder.name}_lost_{lost}"))
        self._say(f"trial {trial.number}: was lost with its driver, run again")
        self._begin(trial)

    def _trial_folder(self, number: int) -> Path:
        """Raises UserError where it is a link, which leads elsewhere."""
        folder = self._folder / "trials" / f"trial_{number:04d}"
        for path in (folder.parent, folder):
            if path.is_symlink():
                raise UserError(f"{path}: a folder or none expected, found a link")
        return folder

    def _begin(self, trial: FrozenTrial) -> None:
        """Write the trial's config and start it; values that make no config are a failed trial."""
        number, folder = trial.number, self._trial_folder(trial.number)
        folder.mkdir(parents=True, exist_ok=True)
        own = [f"name={folder.name}", f"system.results={json.dumps(str(folder.parent))}"]
        if self._loaded.base.run.seed is None and "seed" not in trial.params:
            own.append(f"seed={training_seed(self._loaded.sweep, number)}")
        try:
            loaded = self._loaded.load_trial(self._loaded.sweep.config, trial.params, *own)
        except UserError as error:
            self._fail(number, "; ".join(str(error).splitlines()), 0.0)
            return
        path = folder / "config.yaml"
        write_file(path, loaded.to_yaml())
        values = ", ".join(f"{key}={value}" for key, value in trial.params.items())
        self._say(f"trial {number}: {values}")
        process = start(trial_command(self._loaded.sweep, path), folder)
        self._watch_from_now(trial, folder, process)

    def _watch_from_now(
        self, trial: FrozenTrial, folder: Path, process: subprocess.Popen[bytes] | None
    ) -> None:
        last = self._last_epoch(trial)
        self._active[trial.number] = Active(trial.number, folder, process, last)

    def _last_epoch(self, trial: FrozenTrial) -> int:
        """The epoch whose evaluation ends a trial at the latest."""
        if self._loaded.sweep.objective.at_epoch is not None:
            return self._loaded.sweep.objective.at_epoch
        loaded = self._loaded.load_trial(self._loaded.sweep.config, trial.params)
        return build_plan(loaded.run).eval_epochs[-1]

    def _watch(self, active: Active) -> None:
        """One look at a trial: new evaluations first, then whether it has ended or must."""
        has_ended = active.has_ended()  # before the look: an end has all its evaluations
        if self._judge(active.number, active.folder, active.last_epoch):
            self._stop(active)
            return
        if has_ended:
            del self._active[active.number]
            clean_up(active.folder, self._loaded.sweep.scheduler)
            self._settle(active.number, active.folder, read_end(active.folder, active.code))
            return
        limit, seconds = self._loaded.sweep.limit_s, self._seconds(active.folder)
        if limit is not None and seconds > limit:
            self._fail(active.number, f"longer than limit_s ({limit:g} s)", seconds)
            self._stop(active)

    def _judge(self, number: int, folder: Path, last_epoch: int) -> bool:
        """Tell of the evaluations; True where one of them decides the trial, which is told."""
        target, objective = self._loaded.base.run.eval.target, self._loaded.sweep.objective
        for epoch, accuracy in evaluations(folder):
            prune = self._study.report(number, epoch, accuracy)
            if epoch == objective.at_epoch:
                self._complete(number, accuracy, folder)
                return True
            if prune and epoch < last_epoch and accuracy < target:
                reason = f"accuracy {accuracy:.4f} after epoch {epoch}"
                self._study.prune(number, reason, self._seconds(folder))
                self._say(f"trial {number}: pruned: {reason}")
                return True
        return False

    def _stop(self, active: Active) -> None:
        """End a trial whose result is known: nothing of it is waited for but its processes."""
        del self._active[active.number]
        ask_to_stop(active.folder, self._loaded.sweep.scheduler)
        if active.process is not None:
            with suppress(subprocess.TimeoutExpired):
                active.process.wait(timeout=20)
        clean_up(active.folder, self._loaded.sweep.scheduler)
        if active.process is not None:
            active.process.wait()

    def _settle(self, number: int, folder: Path, ended: Ended) -> None:
        """Tell of a trial that has ended by itself."""
        objective, result = self._loaded.sweep.objective, ended.result
        if ended.status == "success":
            measured = {
                "accuracy": "eval_accuracy",  # the target was reached before the epoch
                "time_to_target": "time_to_train_s",
                "epochs_to_target": "epochs",
            }
            name = measured[objective.measure]
            value = number_of(result.get(name))
            if value is None:
                self._fail(number, f"its result.json has no number {name}", self._seconds(folder))
            else:
                self._complete(number, value, folder)
        elif ended.status == "aborted" and not objective.is_accuracy:
            accuracy = number_of(result.get("eval_accuracy"))
            reached = "no evaluation" if accuracy is None else f"accuracy {accuracy:.4f} at the end"
            reason = f"target not reached: {reached}"
            self._study.prune(number, reason, self._seconds(folder))
            self._say(f"trial {number}: {reason}")
        elif ended.status == "aborted":
            reason = f"no evaluation after epoch {objective.at_epoch}"
            self._fail(number, reason, self._seconds(folder))
        else:
            self._fail(number, ended.reason or ended.status, self._seconds(folder))

    def _complete(self, number: int, value: float, folder: Path) -> None:
        self._study.complete(number, value, self._seconds(folder))
        self._say(f"trial {number}: {self._loaded.sweep.objective.measure} {value:g}")

    def _fail(self, number: int, reason: str, seconds: float) -> None:
        self._study.fail(number, reason, seconds)
        self._say(f"trial {number}: failed: {reason}")

    def _seconds(self, folder: Path) -> float:
        """Wall time since the trial's config was written; 0 where it is gone."""
        try:
            return time.time() - (folder / "config.yaml").lstat().st_mtime
        except OSError:
            return 0.0
