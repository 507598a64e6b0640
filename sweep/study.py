"""Optuna's part of a sweep: what to try next, whether to continue a trial, what came of it.

The study is Optuna's journal (made for shared file systems: append only, no database), so that a
driver that was killed continues where it was. Samplers keep their own state in memory alone; a new
one is made for each trial, seeded by the sweep's seed and the trial's number: a resumed sweep draws
what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from ..config.errors import UserError
from ..config.finding import shown
from ..train.seeding import stream_seed
from .definition import Parameter, Sweep

JOURNAL = "journal.log"
REASON = "reason"
SECONDS = "seconds"
_DEFINITION = "definition"
_SEED_MASK = 0xFFFFFFFF  # NumPy's RandomState takes 32 bits


class Study:
    """The trials of one sweep. Only the driver that holds the folder's lock may open it."""

    def __init__(self, sweep: Sweep, folder: Path, definition: Mapping[str, Any]) -> None:
        """Open or begin the journal in `folder`.

        Args:
            definition: by key, what must not differ from that of the trials that are there.

        Raises:
            UserError: not a journal, or one of another definition: the keys that differ.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        journal = (folder / JOURNAL).resolve()
        self._sweep = sweep
        self._distributions = {key: distribution(p) for key, p in sweep.parameters.items()}
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if sweep.pruner.kind == "median":
            pruner = optuna.pruners.MedianPruner(
                n_startup_trials=sweep.pruner.startup_trials,
                n_warmup_steps=sweep.pruner.from_epoch,
            )
        mend(journal)
        try:
            self.optuna = optuna.create_study(
                study_name="sweep",
                storage=JournalStorage(JournalFileBackend(str(journal))),
                direction="maximize" if sweep.objective.is_accuracy else "minimize",
                pruner=pruner,
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
            found = shown(f"{type(error).__name__}: {error}")
            raise UserError(f"{journal}: a sweep's journal expected, found {found}") from None
        mine = json.loads(json.dumps(definition))
        began = self.optuna.user_attrs.get(_DEFINITION)
        if began is None:
            self.optuna.set_user_attr(_DEFINITION, mine)
        elif began != mine:
            keys = sorted(key for key in {**began, **mine} if began.get(key) != mine.get(key))
            changed = (f"{key}: was {began.get(key)}, is {mine.get(key)}" for key in keys)
            raise UserError(
                f"{folder}: the definition it began with expected; changed: {'; '.join(changed)}; "
                "give the sweep another name, or remove the folder"
            )

    @property
    def trials(self) -> list[FrozenTrial]:
        """All that were asked, in order. Those without all values were never started."""
        keys = set(self._distributions)
        return [trial for trial in self.optuna.get_trials() if set(trial.params) == keys]

    def running(self) -> list[FrozenTrial]:
        """Trials whose end an earlier driver did not see."""
        return [trial for trial in self.trials if trial.state == TrialState.RUNNING]

    def ask(self) -> FrozenTrial:
        """The next trial with its values."""
        self.optuna.sampler = make_sampler(self._sweep, len(self.trials))
        asked = self.optuna.ask(fixed_distributions=self._distributions)
        return self.optuna.get_trials()[asked.number]

    def report(self, number: int, epoch: int, accuracy: float) -> bool:
        """Note the accuracy after an epoch; True where the pruner says to stop the trial."""
        trial = self._trial(number)
        trial.report(accuracy if self._sweep.objective.is_accuracy else 1 - accuracy, epoch)
        return trial.should_prune()

    def end(
        self,
        number: int,
        state: TrialState,
        *,
        value: float | None = None,
        reason: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Note how a trial ended: its value if it is complete, else the reason; its wall time."""
        trial = self._trial(number)
        for key, note in ((REASON, reason), (SECONDS, seconds)):
            if note is not None:
                trial.set_user_attr(key, note)
        # A sampler without a say in it: that of grids wants to stop Optuna's own loop at its end.
        self.optuna.sampler = optuna.samplers.RandomSampler()
        self.optuna.tell(number, value, state)

    def best(self) -> FrozenTrial | None:
        """The best complete trial; of equals the first."""
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        sign = -1 if self._sweep.objective.is_accuracy else 1
        return min(done, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def importances(self) -> dict[str, float]:
        """Share of each parameter in reaching the best tenth of the trials (PED-ANOVA).

        Empty below four complete trials, or where all are equally good.
        """
        values = [t.value for t in self.trials if t.state == TrialState.COMPLETE]
        if len(values) < 4 or len(set(values)) < 2:
            return {}
        found = optuna.importance.get_param_importances(self.optuna)
        return {key: float(share) for key, share in found.items() if share == share}

    def _trial(self, number: int) -> optuna.Trial:
        return optuna.Trial(self.optuna, self.optuna.get_trials()[number]._trial_id)


def mend(journal: Path) -> None:
    """Undo what a driver killed while it wrote left: a torn last line, and its lock.

    Optuna would add the next record to the torn line and never read the journal again; the lock it
    would wait for, for 30 s.
    """
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.is_file():
        with journal.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def distribution(parameter: Parameter) -> BaseDistribution:
    """A parameter as Optuna draws it."""
    if parameter.choice is not None:
        return CategoricalDistribution(parameter.choice)
    low, high = parameter.limits
    if parameter.integer is not None:
        return IntDistribution(int(low), int(high), step=int(parameter.step or 1))
    return FloatDistribution(low, high, log=parameter.log is not None, step=parameter.step)


def make_sampler(sweep: Sweep, number: int) -> optuna.samplers.BaseSampler:
    """The sampler of the trial that is the `number`th, counted from 0."""
    if sweep.sampler == "grid":  # one order for the whole sweep
        grid = {key: list(parameter.values) for key, parameter in sweep.parameters.items()}
        return optuna.samplers.GridSampler(grid, seed=_seed(sweep, "grid"))
    seed = _seed(sweep, "sampler", number)
    if sweep.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=sweep.startup_trials, constant_liar=sweep.parallel > 1
    )


def training_seed(sweep: Sweep, number: int) -> int:
    """The root seed of a trial's own run."""
    return stream_seed(sweep.seed, "trial", number)


def _seed(sweep: Sweep, stream: str, *numbers: int) -> int:
    return stream_seed(sweep.seed, stream, *numbers) & _SEED_MASK
