"""The journal: the same draws after any kill, torn lines mended, decisions of the pruners."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from rn50.config.errors import UserError
from rn50.sweep.definition import Objective, Parameter, Pruner, Sweep
from rn50.sweep.study import Study, distribution, grid_values, mend, training_seed, wanted_trials

PARAMETERS = {
    "optimizer.base_lr": Parameter(log=(0.01, 1.0)),
    "schedule.warmup": Parameter(linear=(0.5, 2.0), step=0.5, unit="epochs"),
    "batch.per_rank": Parameter(choice=(5, 10)),
}


def make(**more: object) -> Sweep:
    given = {"name": "a", "parameters": PARAMETERS, "seed": 7} | more
    return Sweep.model_validate(given)


def value_of(parameters: dict[str, float]) -> float:
    return parameters["optimizer.base_lr"] + parameters["schedule.warmup"]


def draw(sweep: Sweep, journal: Path, trials: int, reopen: bool) -> list[dict[str, object]]:
    study = Study(sweep, journal)
    for _ in range(trials):
        if reopen:
            study = Study(sweep, journal)
        trial = study.ask()
        study.complete(trial.number, value_of(trial.params), 1.0)
    return [trial.params for trial in study.trials]


@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
def test_a_resumed_sweep_draws_what_an_uninterrupted_one_draws(
    tmp_path: Path, sampler: str
) -> None:
    parameters = dict(PARAMETERS)
    if sampler == "grid":
        parameters["optimizer.base_lr"] = Parameter(choice=(0.01, 0.1, 1.0))
        parameters["data.no_augment_from_epoch"] = Parameter(choice=(None, 8))
    sweep = make(sampler=sampler, startup_trials=3, parameters=parameters)
    whole = draw(sweep, tmp_path / "whole", 8, reopen=False)
    assert draw(sweep, tmp_path / "killed", 8, reopen=True) == whole
    assert len({str(values) for values in whole}) > 6
    assert draw(sweep.model_copy(update={"seed": 8}), tmp_path / "c", 8, reopen=False) != whole


def test_a_grid_is_tried_once_each(tmp_path: Path) -> None:
    parameters = {
        "batch.per_rank": Parameter(choice=(5, 10)),
        "comm.cycle_ms": Parameter(integer=(1, 5), step=2),
        "schedule.warmup": Parameter(linear=(0.0, 0.3), step=0.1, unit="epochs"),
    }
    assert grid_values(parameters["comm.cycle_ms"]) == [1, 3, 5]
    assert grid_values(parameters["schedule.warmup"]) == pytest.approx([0, 0.1, 0.2, 0.3])
    sweep = make(sampler="grid", parameters=parameters, trials=1000)
    size = wanted_trials(sweep)
    assert wanted_trials(sweep.model_copy(update={"trials": 5})) == 5
    study = Study(sweep, tmp_path / "journal")
    for _ in range(size):
        study.complete(study.ask().number, 1.0, 1.0)
    assert size == 24
    assert len({str(sorted(trial.params.items())) for trial in study.trials}) == size


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(1, 300), st.binary(max_size=40))
def test_a_journal_cut_anywhere_goes_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    """Killed while it wrote: the last line is torn, whatever of it arrived."""
    journal = tmp_path_factory.mktemp("cut") / "journal"
    draw(make(sampler="random"), journal, 2, reopen=False)
    content = journal.read_bytes()
    lines = content.splitlines(keepends=True)
    torn = lines[-1][: min(cut, len(lines[-1]) - 1)]
    journal.write_bytes(content + torn + junk.replace(b"\n", b""))
    study = Study(make(sampler="random"), journal)
    assert len(study.trials) == 2
    study.complete(study.ask().number, 1.0, 1.0)
    assert len(Study(make(sampler="random"), journal).trials) == 3


def test_without_mending_optuna_cannot_read_on(tmp_path: Path) -> None:
    """Why `mend` is there; fails when Optuna has learnt it."""
    journal, copy = tmp_path / "journal", tmp_path / "copy"
    draw(make(), journal, 1, reopen=False)
    whole = journal.read_bytes()
    for path in (journal, copy):
        path.write_bytes(whole + b'{"op_code": 4, "wor')
    lock = Path(f"{journal}.lock")
    lock.touch()
    mend(journal)
    assert not lock.exists()  # Optuna waits 30 s for one that nobody gives back
    for path, is_readable in ((journal, True), (copy, False)):
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        backend.append_logs([{"op_code": 0}, {"op_code": 0}])
        fresh = optuna.storages.journal.JournalFileBackend(str(path))
        if is_readable:
            assert len(list(fresh.read_logs(0))) == len(whole.splitlines()) + 2
        else:
            with pytest.raises(ValueError, match=r"Expecting|delimiter|Extra|Unterminated"):
                list(fresh.read_logs(0))


@pytest.mark.parametrize(
    "text", [b"no journal\n", b"\xff\xfe\n{}\n", b"[1]\n", b'{"op_code": 0}\n']
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "journal").write_bytes(text)
    with pytest.raises(UserError, match="a sweep's journal expected") as caught:
        Study(make(), tmp_path / "journal")
    assert "\n" not in str(caught.value)


def test_running_trials_are_found_again_and_half_asked_ones_dropped(tmp_path: Path) -> None:
    sweep = make(sampler="random")
    whole = draw(sweep, tmp_path / "whole", 2, reopen=False)
    first = Study(sweep, tmp_path / "journal")
    first.ask()
    lines = (tmp_path / "journal").read_bytes().splitlines(keepends=True)
    first.ask()
    more = (tmp_path / "journal").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal").write_bytes(b"".join(more[: len(lines) + 2]))  # asked, one value set
    second = Study(sweep, tmp_path / "journal")
    assert [trial.params for trial in second.running()] == whole[:1]
    assert second.ask().params == whole[1]
    assert len(second.trials) == 2


ACCURACY = Objective(measure="accuracy", at_epoch=9)


@pytest.mark.parametrize("objective", [ACCURACY, Objective(measure="epochs_to_target")])
def test_pruners_stop_the_worse_whatever_the_direction(
    tmp_path: Path, objective: Objective
) -> None:
    pruners = {
        "median": Pruner(kind="median", startup_trials=2, from_epoch=2),
        "threshold": Pruner(kind="threshold", least=0.5, from_epoch=2),
        "none": Pruner(),
    }
    for name, pruner in pruners.items():
        sweep = make(objective=objective, pruner=pruner)
        study = Study(sweep, tmp_path / name)
        for _ in range(2):
            number = study.ask().number
            assert not any(study.report(number, e, a) for e, a in [(1, 0.3), (2, 0.7), (3, 0.9)])
            study.complete(number, 0.9, 1.0)
        good, bad = study.ask().number, study.ask().number
        assert not study.report(good, 1, 0.01)  # too early to tell
        assert not study.report(good, 2, 0.8)
        assert study.report(bad, 2, 0.1) == (name != "none")


def test_halving_keeps_the_best(tmp_path: Path) -> None:
    pruner = Pruner(kind="halving", from_epoch=1, reduction=2)
    study = Study(make(objective=ACCURACY, pruner=pruner), tmp_path / "journal")
    numbers = [study.ask().number for _ in range(4)]
    stopped = [study.report(n, 1, a) for n, a in zip(numbers, [0.9, 0.1, 0.2, 0.95], strict=True)]
    assert stopped == [False, True, True, False]


def test_best_and_reasons(tmp_path: Path) -> None:
    for objective, best in ((ACCURACY, 1), (Objective(), 0)):
        study = Study(make(objective=objective), tmp_path / objective.measure)
        for value in (0.2, 0.9, 0.9):
            study.complete(study.ask().number, value, 2.5)
        study.fail(study.ask().number, "no disk", 1.0)
        study.prune(study.ask().number, "slow", 1.0)
        found = study.best()
        assert found is not None
        assert found.number == best
        assert [t.user_attrs.get("reason") for t in study.trials[3:]] == ["no disk", "slow"]
        assert [t.state for t in study.trials[3:]] == [TrialState.FAIL, TrialState.PRUNED]


def test_importance_finds_the_parameter_that_matters(tmp_path: Path) -> None:
    study = Study(make(sampler="random"), tmp_path / "journal")
    assert study.importances() == {}
    for _ in range(40):
        trial = study.ask()
        study.complete(trial.number, abs(trial.params["optimizer.base_lr"] - 0.1), 1.0)
    shares = study.importances()
    assert max(shares, key=lambda key: shares[key]) == "optimizer.base_lr"
    assert sum(shares.values()) == pytest.approx(1)


def test_each_trial_trains_on_a_seed_of_its_own() -> None:
    sweep = make()
    seeds = [training_seed(sweep, number) for number in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [training_seed(make(), number) for number in range(100)]


def test_distributions() -> None:
    assert distribution(Parameter(integer=(1, 9), step=2)) == (
        optuna.distributions.IntDistribution(1, 9, step=2)
    )
    assert distribution(Parameter(log=(0.1, 1.0))).log  # type: ignore[attr-defined]
    assert distribution(Parameter(choice=("a", None))).choices == ("a", None)  # type: ignore[attr-defined]


# --- journals of somebody else --------------------------------------------------------------------

FLOAT = '{"name": "FloatDistribution", "attributes": {"low": 0.05, "high": 0.8, "log": true}}'
INTEGER = '{"name": "IntDistribution", "attributes": {"low": 1, "high": 9}}'
HOSTILE: dict[str, list[dict[str, object] | str]] = {
    "deep": ["[" * 100_000],
    "deep object": ['{"a":' * 5000 + "1" + "}" * 5000],
    "no operation": [{"op_code": 99}],
    "no object": ["null"],
    "distribution deep": [{"op_code": 5, "distribution": "[" * 5000}],
    "distribution of no class": [{"op_code": 5, "distribution": '{"name": "x"}'}],
    "another distribution": [{"op_code": 5, "distribution": INTEGER}],
    "parameter NaN": [{"op_code": 5, "param_value_internal": float("nan")}],
    "parameter null": [{"op_code": 5, "param_value_internal": None}],
    "reason deep": [
        '{"op_code":8,"trial_id":0,"user_attr":{"reason":' + "[" * 500 + "]" * 500 + "}}"
    ],
    "several values": [{"op_code": 6, "values": [1.0, 2.0]}],
    "no values": [{"op_code": 6, "values": []}],
    "values null": [{"op_code": 6, "values": None}],
    **{
        f"value {v!r:.9}": [{"op_code": 6, "values": [v]}]
        for v in (float("nan"), [1], "x", 10**400)
    },
    **{f"seconds {v!r}": [{"op_code": 8, "user_attr": {"seconds": v}}] for v in (1e999, "x", None)},
    **{f"reason {v!r}": [{"op_code": 8, "user_attr": {"reason": v}}] for v in (1e999, [1], None)},
    **{f"step {v!r}": [{"op_code": 7, "step": v}] for v in (float("nan"), -5, "x", [1])},
    **{
        f"intermediate {v!r}": [{"op_code": 7, "intermediate_value": v}] for v in (1e999, "x", None)
    },
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_journal_that_no_driver_wrote_is_refused_in_a_line(tmp_path: Path, kind: str) -> None:
    journal = tmp_path / "journal.log"
    begun = "2026-11-22T10:00:00.000000"
    ended = "2026-11-22T10:00:01.000000"
    known: dict[int, dict[str, object]] = {
        0: {"study_name": "sweep", "directions": [1]},
        4: {"study_id": 0, "datetime_start": begun},
        5: {
            "trial_id": 0,
            "param_name": "optimizer.base_lr",
            "param_value_internal": 0.1,
            "distribution": FLOAT,
        },
        6: {"trial_id": 0, "state": 1, "values": [3.0], "datetime_complete": ended},
        7: {"trial_id": 0, "step": 1, "intermediate_value": 0.5},
        8: {"trial_id": 0, "user_attr": {"seconds": 1.0}},
    }

    def write(lines: Sequence[dict[str, object] | str]) -> None:
        texts = [
            line
            if isinstance(line, str)
            else json.dumps({"worker_id": "x", **known.get(int(str(line["op_code"])), {}), **line})
            for line in lines
        ]
        journal.write_text("\n".join(texts) + "\n")

    sweep = make(parameters={"optimizer.base_lr": Parameter(log=(0.05, 0.8))})
    good = [{"op_code": code} for code in (0, 4, 5, 7, 8, 6)]
    write(good)
    assert [trial.value for trial in Study(sweep, journal).trials] == [3.0]
    codes = [int(str(one["op_code"])) for one in HOSTILE[kind] if isinstance(one, dict)]
    write([*(one for one in good[:-1] if one["op_code"] not in codes), *HOSTILE[kind]])
    with pytest.raises(UserError) as error:
        Study(sweep, journal)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{journal}: a sweep's journal expected, found ") and len(line) < 400
