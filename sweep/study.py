"""Optuna's part of a sweep: what to try next, whether to go on, what came of it.

All state is a journal file (made for shared file systems: append only, no database), so that a
driver that was killed goes on where it was. Samplers keep their own state in memory alone; a new
one is made for each trial, seeded by the sweep's seed and the trial's number: a resumed sweep draws
what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
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
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from ..config.errors import UserError, failing_as
from ..config.finding import number, shown
from ..config.reading import read_file
from ..train.seeding import stream_seed
from .definition import Parameter, Pruner, Sweep

NAME = "sweep"
_MOST_BYTES = 256 << 20  # of a journal: a trial has some kB
REASON = "reason"
SECONDS = "seconds"
_NO_JOURNAL = (
    *(ValueError, KeyError, TypeError, AssertionError, AttributeError, IndexError),
    *(OverflowError, RecursionError, RuntimeError, NotImplementedError),
)
"""What Optuna raises where a journal is damaged within, or none of ours."""
_SEED_MASK = 0xFFFFFFFF  # NumPy's RandomState takes 32 bits


class Study:
    """The journal of one sweep. Only the driver that holds its lock may open it."""

    def __init__(self, sweep: Sweep, journal: Path) -> None:
        """Open or begin the journal. Raises UserError: the journal cannot be read: not a journal,
        or damaged within."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        self._sweep = sweep
        self._distributions = {key: distribution(p) for key, p in sweep.parameters.items()}
        mend(journal)
        path = str(journal.resolve())
        # The open lock, not the default symbolic link: that one's target is not found from its own
        # folder when the path is relative, and a stale lock is then waited for without end.
        backend = JournalFileBackend(path, lock_obj=JournalFileOpenLock(path))
        try:
            self._storage = JournalStorage(backend)
            self._study = optuna.create_study(
                study_name=NAME,
                storage=self._storage,
                direction="maximize" if sweep.objective.is_accuracy else "minimize",
                pruner=make_pruner(sweep.pruner, accuracy=sweep.objective.is_accuracy),
                load_if_exists=True,
            )
            check_trials(self._study.get_trials(deepcopy=False), self._distributions)
        except _NO_JOURNAL as error:
            found = shown(f"{type(error).__name__}: {error}")
            raise UserError(f"{journal}: a sweep's journal expected, found {found}") from None

    @property
    def trials(self) -> list[FrozenTrial]:
        """All that were asked, in order. Those without all values were never started."""
        keys = set(self._distributions)
        return [t for t in self._study.get_trials() if set(t.params) == keys]

    def running(self) -> list[FrozenTrial]:
        """Trials that a driver before this one did not see the end of."""
        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            if set(trial.params) != set(self._distributions):  # killed in the middle of asking
                self._tell(trial.number, state=TrialState.FAIL)
        return [trial for trial in self.trials if trial.state == TrialState.RUNNING]

    def ask(self) -> FrozenTrial:
        """The next trial with its values."""
        number = len(self.trials)
        self._study.sampler = make_sampler(self._sweep, number)
        asked = self._study.ask(fixed_distributions=self._distributions)
        return self.trial(asked.number)

    def trial(self, number: int) -> FrozenTrial:
        """A trial as the journal has it now."""
        return self._study.get_trials()[number]

    def report(self, number: int, epoch: int, accuracy: float) -> bool:
        """Note the accuracy after an epoch; True where the pruner says to stop the trial."""
        value = accuracy if self._sweep.objective.is_accuracy else 1 - accuracy
        trial = self.trial(number)
        if epoch not in trial.intermediate_values:
            self._storage.set_trial_intermediate_value(trial._trial_id, epoch, value)
        return self._study.pruner.prune(self._study, self.trial(number))

    def complete(self, number: int, value: float, seconds: float) -> None:
        self._note(number, SECONDS, seconds)
        self._tell(number, value)

    def prune(self, number: int, reason: str, seconds: float) -> None:
        """Stopped early, or a run that ended without reaching its target."""
        self._note(number, REASON, reason)
        self._note(number, SECONDS, seconds)
        self._tell(number, state=TrialState.PRUNED)

    def fail(self, number: int, reason: str, seconds: float) -> None:
        self._note(number, REASON, reason)
        self._note(number, SECONDS, seconds)
        self._tell(number, state=TrialState.FAIL)

    def best(self) -> FrozenTrial | None:
        """The best complete trial; of equals the first."""
        done = [t for t in self.trials if t.state == TrialState.COMPLETE and t.value is not None]
        sign = -1 if self._sweep.objective.is_accuracy else 1
        return min(done, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def importances(self) -> dict[str, float]:
        """Share of each parameter in reaching the best tenth of the trials (PED-ANOVA).

        Empty below four complete trials, or where all are equally good.
        """
        values = [t.value for t in self.trials if t.state == TrialState.COMPLETE]
        if len(values) < 4 or len(set(values)) < 2:
            return {}
        found = optuna.importance.get_param_importances(self._study)
        return {key: float(share) for key, share in found.items() if share == share}

    def _tell(
        self, number: int, value: float | None = None, state: TrialState | None = None
    ) -> None:
        # A sampler without a say in it: that of grids wants to stop Optuna's own loop at its end.
        self._study.sampler = optuna.samplers.RandomSampler()
        self._study.tell(number, value, state)

    def _note(self, number: int, key: str, value: Any) -> None:
        self._storage.set_trial_user_attr(self.trial(number)._trial_id, key, value)


def check_trials(
    trials: Sequence[FrozenTrial], distributions: Mapping[str, BaseDistribution]
) -> None:
    """Hold what a journal says of its trials to what a driver writes there. Raises ValueError: a
    number that is none or not finite, several values, a reason that is no text, a parameter that is
    drawn from elsewhere."""
    for trial in trials:
        where = f"trial {trial.number}"
        values = [] if trial.values is None else list(trial.values)
        if len(values) > 1 or (trial.state == TrialState.COMPLETE and not values):
            raise ValueError(f"{where}: {len(values)} values, its state is {trial.state.name}")
        numbers = [*values, *trial.intermediate_values.values(), trial.user_attrs.get(SECONDS, 0)]
        choices = [k for k, d in distributions.items() if isinstance(d, CategoricalDistribution)]
        numbers += [v for key, v in trial.params.items() if key not in choices]
        for value in numbers:
            if number(value) is None:
                raise ValueError(f"{where}: a finite number expected, found {value!r}"[:200])
        for epoch in trial.intermediate_values:
            if type(epoch) is not int or epoch < 0:
                raise ValueError(f"{where}: an epoch expected, found {epoch!r}"[:200])
        for key, drawn_from in trial.distributions.items():
            if drawn_from != distributions.get(key):
                raise ValueError(f"{where}: another parameter {key!r} than the sweep's"[:200])
        if not isinstance(trial.user_attrs.get(REASON, ""), str):
            raise ValueError(f"{where}: a text expected as its reason")


def mend(journal: Path) -> None:
    """Undo what a driver killed while it wrote left: a torn last line, and its lock.

    Optuna would add the next record to the torn line and never read the journal again; the lock it
    would wait for, for 30 s.
    """
    Path(f"{journal}.lock").unlink(missing_ok=True)
    if not os.path.lexists(journal):
        return
    if journal.is_symlink():
        raise UserError(f"{journal}: a regular file expected, found a link")
    with failing_as(f"{journal}: cannot read"):
        content = read_file(journal, _MOST_BYTES, within=journal.parent)
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with journal.open("rb+") as file:
            file.truncate(whole)
            os.fsync(file.fileno())


def distribution(parameter: Parameter) -> BaseDistribution:
    """A parameter as Optuna draws it."""
    if parameter.choice is not None:
        return CategoricalDistribution(parameter.choice)
    low, high = parameter.limits
    if parameter.integer is not None:
        return IntDistribution(int(low), int(high), step=int(parameter.step or 1))
    return FloatDistribution(low, high, log=parameter.log is not None, step=parameter.step)


def grid_values(parameter: Parameter) -> list[Any]:
    """All values of a parameter that has countably many."""
    if parameter.choice is not None:
        return list(parameter.choice)
    low, high = parameter.limits
    if parameter.integer is not None:
        return list(range(int(low), int(high) + 1, int(parameter.step or 1)))
    step = parameter.step or high - low
    return [min(high, round(low + step * i, 12)) for i in range(parameter.grid_count)]


def wanted_trials(sweep: Sweep) -> int:
    """How many trials there will be: a grid has no more than its combinations."""
    if sweep.sampler != "grid":
        return sweep.trials
    return min(sweep.trials, math.prod(p.grid_count for p in sweep.parameters.values()))


def make_sampler(sweep: Sweep, number: int) -> optuna.samplers.BaseSampler:
    """The sampler of the trial that is the `number`th, counted from 0."""
    if sweep.sampler == "grid":  # one order for the whole sweep
        grid = {key: grid_values(parameter) for key, parameter in sweep.parameters.items()}
        return optuna.samplers.GridSampler(grid, seed=_seed(sweep, "grid"))
    seed = _seed(sweep, "sampler", number)
    if sweep.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=sweep.startup_trials, constant_liar=sweep.parallel > 1
    )


def make_pruner(pruner: Pruner, *, accuracy: bool) -> optuna.pruners.BasePruner:
    """The pruner over intermediate values: accuracies, or errors where least is best."""
    if pruner.kind == "median":
        return optuna.pruners.MedianPruner(
            n_startup_trials=pruner.startup_trials, n_warmup_steps=pruner.from_epoch
        )
    if pruner.kind == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=pruner.from_epoch, reduction_factor=pruner.reduction
        )
    if pruner.kind == "threshold":
        least = pruner.least or 0.0
        return optuna.pruners.ThresholdPruner(
            lower=least if accuracy else None,
            upper=None if accuracy else 1 - least,
            n_warmup_steps=pruner.from_epoch,
        )
    return optuna.pruners.NopPruner()


def training_seed(sweep: Sweep, number: int) -> int:
    """The root seed of a trial's own run."""
    return stream_seed(sweep.seed, "trial", number)


def _seed(sweep: Sweep, stream: str, *numbers: int) -> int:
    return stream_seed(sweep.seed, stream, *numbers) & _SEED_MASK
