"""The study: the same draws after any kill, a torn journal mended, decisions of the pruner."""

from pathlib import Path

import pytest
from optuna.trial import TrialState

from rn50.sweep.definition import Parameter, Sweep
from rn50.sweep.study import JOURNAL, Study, training_seed
from tests.conftest import refused

PARAMETERS = {
    "optimizer.base_lr": Parameter(log=(0.01, 1.0)),
    "schedule.warmup": Parameter(linear=(0.5, 2.0), step=0.5, unit="epochs"),
    "batch.per_rank": Parameter(choice=(5, 10)),
}


def make(**more: object) -> Sweep:
    fields = {"name": "a", "parameters": PARAMETERS, "seed": 7, **more}
    return Sweep.model_validate(fields)


def opened(sweep: Sweep, folder: Path, **definition: object) -> Study:
    folder.mkdir(exist_ok=True)
    return Study(sweep, folder, definition)


def draw(
    sweep: Sweep, folder: Path, trials: int, *, reopen: bool = False
) -> list[dict[str, object]]:
    study = opened(sweep, folder)
    for _ in range(trials):
        if reopen:
            study = opened(sweep, folder)
        trial = study.ask()
        values = trial.params
        value = values["optimizer.base_lr"] + values["schedule.warmup"]
        study.end(trial.number, TrialState.COMPLETE, value)
    trials_again = opened(sweep, folder).trials
    return [trial.params for trial in trials_again]


@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
def test_a_resumed_sweep_draws_what_an_uninterrupted_one_draws(
    tmp_path: Path, sampler: str
) -> None:
    parameters = PARAMETERS
    if sampler == "grid":
        parameters = {
            "optimizer.base_lr": Parameter(choice=(0.01, 0.1, 1.0)),
            "schedule.warmup": Parameter(choice=(0.5, 1.5), unit="epochs"),
            "data.no_augment_from_epoch": Parameter(choice=(None, 8)),
        }
    sweep = make(sampler=sampler, parameters=parameters)
    uninterrupted = draw(sweep, tmp_path / "whole", 8)
    assert draw(sweep, tmp_path / "killed", 8, reopen=True) == uninterrupted
    assert len(set(map(str, uninterrupted))) > 4
    other_seed = sweep.model_copy(update={"seed": 8})
    assert draw(other_seed, tmp_path / "other", 8) != uninterrupted


def test_a_grid_is_tried_once_each(tmp_path: Path) -> None:
    parameters = {
        "optimizer.base_lr": Parameter(choice=(0.5, 1.0)),
        "schedule.warmup": Parameter(choice=(0, 1, 2), unit="epochs"),
    }
    sweep = make(sampler="grid", parameters=parameters, trials=1000)
    assert sweep.wanted_trials == 6
    assert sweep.model_copy(update={"trials": 5}).wanted_trials == 5
    assert len(set(map(str, draw(sweep, tmp_path / "a", 6)))) == 6


def test_a_journal_torn_by_a_kill_goes_on(tmp_path: Path) -> None:
    """Optuna alone adds to the torn line and cannot read it again; for the lock it waits 30 s."""
    sweep = make(sampler="random")
    uninterrupted = draw(sweep, tmp_path / "a", 3)
    torn = tmp_path / "b"
    assert draw(sweep, torn, 2) == uninterrupted[:2]
    with (torn / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    (torn / f"{JOURNAL}.lock").touch()
    assert draw(sweep, torn, 1) == uninterrupted


FIRST = b'{"op_code":0,"worker_id":"a","study_name":"sweep","directions":[1]}\n'
ATTRIBUTE = (
    b'{"op_code":2,"worker_id":"a","study_id":0,"user_attr":{"definition":%s}}\n'
)


@pytest.mark.parametrize(
    "content",
    [
        b"no journal\n",
        b"[]\n",
        b'{"a": 1}\n',
        b"[" * 100_000 + b"\n",
        b"SQLite format 3\0" + bytes(4096),
        b"notes\nof mine",
        FIRST[:-1],
        FIRST.replace(b"sweep", b"other"),
        FIRST + b'{"op_code": 4, "wor\n' + ATTRIBUTE % b"{}",
        FIRST + ATTRIBUTE % b"[1, 2]",
        FIRST + b'{"op_code":4,"worker_id":"a","study_id":0}\n',
        FIRST + (ATTRIBUTE % b"{}") * 200_000,
    ],
    ids=lambda content: content[:200].decode()[-30:],
)
def test_a_journal_that_cannot_be_continued_stays_as_it_is(
    tmp_path: Path, content: bytes
) -> None:
    journal = tmp_path / JOURNAL
    lock_file = tmp_path / f"{JOURNAL}.lock"
    lock_file.touch()
    journal.write_bytes(content)
    with refused(r"journal\.log: Optuna's journal expected, .* found "):
        opened(make(), tmp_path)
    assert journal.read_bytes() == content
    assert sorted(tmp_path.iterdir()) == [journal, lock_file]


def test_a_journal_is_a_file_of_its_folder(tmp_path: Path) -> None:
    journal = tmp_path / "sweep" / JOURNAL
    elsewhere = tmp_path / "elsewhere"
    draw(make(), elsewhere, 1)
    journal.parent.mkdir()
    journal.symlink_to(elsewhere / JOURNAL)
    with refused(f"^{journal}: no link out of its folder expected"):
        opened(make(), journal.parent)
    journal.unlink()
    journal.mkdir()
    with refused(f"^{journal}: cannot read: a regular file expected"):
        opened(make(), journal.parent)


def test_a_sweep_continues_only_with_its_own_definition(tmp_path: Path) -> None:
    for _ in range(2):
        opened(make(), tmp_path, seed=0, choice=[1, 2])
    with refused(
        "power: was null, is 2; seed: was 0, is 5; give the sweep another name"
    ):
        opened(make(), tmp_path, seed=5, choice=[1, 2], power=2)


def test_running_trials_are_found_again_and_half_asked_ones_dropped(
    tmp_path: Path,
) -> None:
    sweep = make(sampler="random")
    uninterrupted = draw(sweep, tmp_path / "whole", 2)
    journal = tmp_path / "a" / JOURNAL
    first = opened(sweep, tmp_path / "a")
    first.ask()
    lines = len(journal.read_bytes().splitlines())
    first.ask()
    more = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(more[: lines + 2]))  # asked, one value set
    second = opened(sweep, tmp_path / "a")
    (running,) = second.trials
    assert running.params == uninterrupted[0]
    assert running.state == TrialState.RUNNING
    assert second.ask().params == uninterrupted[1]
    assert len(second.trials) == 2


@pytest.mark.parametrize("objective", ["accuracy", "epochs_to_target"])
@pytest.mark.parametrize("prune_from", [2, None])
def test_the_pruner_stops_the_worse_whatever_the_direction(
    tmp_path: Path, objective: str, prune_from: int | None
) -> None:
    sweep = make(objective=objective, prune_from=prune_from)
    study = opened(sweep, tmp_path)
    for _ in range(5):
        number = study.ask().number
        for epoch, accuracy in enumerate((0.3, 0.7, 0.9), start=1):
            assert not study.report(number, epoch, accuracy)
        study.end(number, TrialState.COMPLETE, value=0.9)
    good = study.ask().number
    bad = study.ask().number
    assert not study.report(good, 1, 0.01)  # too early to tell
    assert not study.report(good, 2, 0.8)
    assert study.report(bad, 2, 0.1) == (prune_from is not None)


def test_each_trial_trains_on_a_seed_of_its_own() -> None:
    seeds = [training_seed(make(), number) for number in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
