"""Optuna's part of a sweep: what to try next, whether to continue a trial, what came of it.

The study is Optuna's journal (made for shared file systems: append only, no database), so that a
driver that was killed continues where it was. Samplers keep their own state in memory alone; a new
one is made for each trial, seeded by the sweep's seed and the trial's number: a resumed sweep draws
what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import json
import os
import warnings
from itertools import count
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.storages.journal._storage import JournalOperation
from optuna.trial import FrozenTrial, TrialState

from ..host.atomic import in_its_folder
from ..host.errors import UserError, failing_as, show
from ..host.reading import JsonObject, open_file
from ..train.seeding import stream_seed
from .definition import Sweep

JOURNAL = "journal.log"
REASON = "reason"
_DEFINITION = "definition"
_NAME = "sweep"
_MOST_LINE_BYTES = 1 << 20
_MOST_RECORDS = 200_000
"""2,000 trials of 90 evaluations, which Optuna reads in 4 s."""
_SEED_MASK = 0xFFFFFFFF  # NumPy's RandomState takes 32 bits


class Study:
    """The trials of one sweep. Only the driver that holds the folder's lock may open it."""

    def __init__(self, sweep: Sweep, folder: Path, definition: JsonObject) -> None:
        """Open or begin the journal in `folder`.

        Args:
            definition: by key, what must not differ from that of the trials that are there.

        Raises:
            UserError: the journal is of another definition: the keys that differ; or it is none of
                this sweep, and stays as it is.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        journal = in_its_folder(folder / JOURNAL)
        self._sweep = sweep
        self._is_of_accuracy = sweep.objective == "accuracy"
        self._distributions = {
            key: parameter.distribution for key, parameter in sweep.parameters.items()
        }
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if sweep.prune_from is not None:
            pruner = optuna.pruners.MedianPruner(n_warmup_steps=sweep.prune_from)
        has_begun = os.path.lexists(journal) and _mend(journal)
        try:
            storage = JournalStorage(JournalFileBackend(str(journal), _NoLock()))
            if not has_begun:
                optuna.create_study(
                    study_name=_NAME,
                    storage=storage,
                    direction="maximize" if self._is_of_accuracy else "minimize",
                )
            self.optuna = optuna.load_study(
                study_name=_NAME, storage=storage, pruner=pruner
            )
            self.best()
            began = self.optuna.user_attrs.get(_DEFINITION)
            if began is None and not self.optuna.get_trials():
                began = definition
                self.optuna.set_user_attr(_DEFINITION, definition)
        except OSError:
            raise
        except Exception as error:  # whatever Optuna makes of records that are none
            raise _no_journal(journal, f"{type(error).__name__}: {error}") from None
        if not isinstance(began, dict):
            raise _no_journal(journal, f"the definition {show(began)}")
        changed = [
            f"{key}: was {show(began.get(key))}, is {show(definition.get(key))}"
            for key in sorted({*began, *definition})
            if began.get(key) != definition.get(key)
        ]
        if changed:
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

    @property
    def running(self) -> list[FrozenTrial]:
        """Those that have not ended, as far as a driver saw."""
        return [trial for trial in self.trials if trial.state == TrialState.RUNNING]

    def to_json(self) -> JsonObject:
        """What `rn50 sweep --json` prints: every trial, and the number of the best."""
        best = self.best()
        trials = [
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                "value": trial.value,
                "parameters": trial.params,
                "reason": trial.user_attrs.get(REASON, ""),
                "seconds": trial.duration and trial.duration.total_seconds(),
            }
            for trial in self.trials
        ]
        return {
            "sweep": self._sweep.name,
            "objective": self._sweep.objective,
            "best": best and best.number,
            "trials": trials,
        }

    def ask(self) -> FrozenTrial:
        """The next trial with its values."""
        self.optuna.sampler = _make_sampler(self._sweep, len(self.trials))
        trial = self.optuna.ask(fixed_distributions=self._distributions)
        # frozen, as `running` has those of an earlier driver
        return self.optuna.get_trials()[trial.number]

    def report(self, number: int, epoch: int, accuracy: float) -> bool:
        """Note the accuracy after an epoch; True where the pruner says to stop the trial."""
        trial = self._trial(number)
        # the pruner compares in the direction of the objective: of times the least is best
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

    def _trial(self, number: int) -> optuna.Trial:
        trial = self.optuna.get_trials()[number]
        return optuna.Trial(self.optuna, trial._trial_id)


class _NoLock(BaseJournalFileLock):
    """The driver holds the folder. Optuna's own lock stays for 30 s where a driver was killed."""

    def acquire(self) -> bool:
        """Nobody else writes."""
        return True

    def release(self) -> None:
        """Nothing is held."""


def _mend(journal: Path) -> bool:
    """Cut off the torn last line of a driver that was killed while it wrote; whether others are
    left. Raises UserError, and changes nothing, unless they are records of a sweep's journal."""
    whole_bytes = 0
    with failing_as(f"{journal}: cannot read"), open_file(journal) as file:
        for number in count(1):
            line = file.readline(_MOST_LINE_BYTES)
            is_whole = line.endswith(b"\n")
            if not is_whole and whole_bytes and len(line) < _MOST_LINE_BYTES:
                break
            if not line:  # of a driver that was killed before its first record
                return False
            if number > _MOST_RECORDS or not _is_record(line, is_first=number == 1):
                start = line[:100].decode(errors="replace")
                raise _no_journal(journal, f"in line {number:,} {show(start)}")
            whole_bytes += len(line)
    if line:
        with failing_as(f"{journal}: cannot write"):
            os.truncate(journal, whole_bytes)
    return True


def _is_record(line: bytes, *, is_first: bool) -> bool:
    """Whether a line is an operation of Optuna: the first makes the study, and it alone."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(record, dict) or not line.endswith(b"\n"):
        return False
    operation = record.get("op_code")
    makes_study = operation == JournalOperation.CREATE_STUDY
    if is_first:
        return makes_study and record.get("study_name") == _NAME
    return type(operation) is int and not makes_study


def _no_journal(journal: Path, content: str) -> UserError:
    return UserError(
        f"{journal}: Optuna's journal expected, of this sweep and of at most {_MOST_RECORDS:,} "
        f"records, found {content[:300]}; give the sweep another name, or move the file away"
    )


def _make_sampler(sweep: Sweep, number: int) -> optuna.samplers.BaseSampler:
    """The sampler of the trial that is the `number`th, counted from 0."""
    if sweep.sampler == "grid":  # one order for the whole sweep
        grid = {
            key: parameter.choice or () for key, parameter in sweep.parameters.items()
        }
        return optuna.samplers.GridSampler(grid, seed=_seed_of(sweep, "grid"))
    seed = _seed_of(sweep, "sampler", number)
    if sweep.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed)


def _seed_of(sweep: Sweep, stream: str, *numbers: int) -> int:
    return stream_seed(sweep.seed, stream, *numbers) & _SEED_MASK


def training_seed(sweep: Sweep, number: int) -> int:
    """The root seed of a trial's own run."""
    return stream_seed(sweep.seed, "trial", number)
