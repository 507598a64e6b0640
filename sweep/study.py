"""Optuna's part of a sweep: what to try next, whether to continue a trial, what came of it.

The study is Optuna's journal (made for shared file systems: append only, no database), so that a
driver that was killed continues where it was. Samplers keep their own state in memory alone; a new
one is made for each trial, seeded by the sweep's seed and the trial's number: a resumed sweep draws
what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from ..config.errors import UserError
from ..config.reading import JsonObject
from ..train.seeding import stream_seed
from .definition import Sweep

JOURNAL = "journal.log"
REASON = "reason"
_DEFINITION = "definition"
_SEED_MASK = 0xFFFFFFFF  # NumPy's RandomState takes 32 bits


class Study:
    """The trials of one sweep. Only the driver that holds the folder's lock may open it."""

    def __init__(
        self,
        sweep: Sweep,
        folder: Path,
        definition: JsonObject,
    ) -> None:
        """Open or begin the journal in `folder`.

        Args:
            definition: by key, what must not differ from that of the trials that are there.

        Raises:
            UserError: the journal is of another definition: the keys that differ.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        journal = (folder / JOURNAL).resolve()
        self._sweep = sweep
        self._is_of_accuracy = sweep.objective == "accuracy"
        self._distributions = {
            key: parameter.distribution for key, parameter in sweep.parameters.items()
        }
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if sweep.prune_from is not None:
            pruner = optuna.pruners.MedianPruner(n_warmup_steps=sweep.prune_from)
        _mend(journal)
        try:
            self.optuna = optuna.create_study(
                study_name="sweep",
                storage=JournalStorage(JournalFileBackend(str(journal))),
                direction="maximize" if self._is_of_accuracy else "minimize",
                pruner=pruner,
                load_if_exists=True,
            )
        except (
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise UserError(f"{journal}: Optuna's journal expected: {error}") from None
        began = self.optuna.user_attrs.get(_DEFINITION)
        if began is None:
            self.optuna.set_user_attr(_DEFINITION, definition)
        elif began != definition:
            changed = [
                f"{key}: was {began.get(key)}, is {definition.get(key)}"
                for key in sorted({*began, *definition})
                if began.get(key) != definition.get(key)
            ]
            raise UserError(
                f"{folder}: the definition it began with expected; changed: {'; '.join(changed)}; "
                "give the sweep another name, or remove the folder"
            )

    @property
    def trials(self) -> list[FrozenTrial]:
        """All that were asked, in order. Those without all values were never started."""
        keys = self._distributions.keys()
        return [
            trial for trial in self.optuna.get_trials() if trial.params.keys() == keys
        ]

    def ask(self) -> FrozenTrial:
        """The next trial with its values."""
        self.optuna.sampler = _make_sampler(self._sweep, len(self.trials))
        asked = self.optuna.ask(fixed_distributions=self._distributions)
        return self.optuna.get_trials()[asked.number]

    def report(
        self,
        number: int,
        epoch: int,
        accuracy: float,
    ) -> bool:
        """Note the accuracy after an epoch; True where the pruner says to stop the trial."""
        trial = self._trial(number)
        value = accuracy if self._is_of_accuracy else 1 - accuracy
        trial.report(value, epoch)
        return trial.should_prune()

    def end(
        self,
        number: int,
        state: TrialState,
        value: float | None = None,
        reason: str = "",
    ) -> None:
        """Note how a trial ended: its value if it is complete, else the reason."""
        self._trial(number).set_user_attr(REASON, reason)
        # A sampler without a say in it: that of grids wants to stop Optuna's own loop at its end.
        self.optuna.sampler = optuna.samplers.RandomSampler()
        self.optuna.tell(number, value, state)

    def best(self) -> FrozenTrial | None:
        """The best complete trial; of equals the first."""
        try:
            return self.optuna.best_trial
        except ValueError:  # none is complete
            return None

    def _trial(
        self,
        number: int,
    ) -> optuna.Trial:
        trial = self.optuna.get_trials()[number]
        return optuna.Trial(self.optuna, trial._trial_id)


def _mend(journal: Path) -> None:
    """Remove the torn last line and the lock of a driver that was killed while it wrote: Optuna
    cannot read a journal with a torn line, and waits 30 s for the lock."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.is_file():
        with journal.open("rb+") as file:
            last_end = file.read().rfind(b"\n")
            file.truncate(last_end + 1)


def _make_sampler(
    sweep: Sweep,
    number: int,
) -> optuna.samplers.BaseSampler:
    """The sampler of the trial that is the `number`th, counted from 0."""
    if sweep.sampler == "grid":  # one order for the whole sweep
        grid = {
            key: parameter.choice or () for key, parameter in sweep.parameters.items()
        }
        return optuna.samplers.GridSampler(grid, seed=_seed_of(sweep, "grid"))
    seed = _seed_of(sweep, "sampler", number)
    if sweep.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, constant_liar=sweep.parallel > 1)


def _seed_of(
    sweep: Sweep,
    stream: str,
    *numbers: int,
) -> int:
    return stream_seed(sweep.seed, stream, *numbers) & _SEED_MASK


def training_seed(
    sweep: Sweep,
    number: int,
) -> int:
    """The root seed of a trial's own run."""
    return stream_seed(sweep.seed, "trial", number)
