"""SWEEP.yaml: read, refused in one line a problem, turned into configs of trials."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.config.names import PRESETS
from rn50.config.yaml_file import parse_overrides
from rn50.host.errors import UserError
from rn50.sweep.definition import LoadedSweep, load_sweep, overrides
from tests.conftest import refused

GOOD = """
name: a
config: smoke
overrides:
  eval: {period: 1, offset: 0}
  schedule.length: 4 epochs
parameters:
  optimizer.base_lr: {log: [0.01, 1]}
  schedule: {warmup: {linear: [0.5, 2], step: 0.5, unit: epochs}}
  batch.per_rank: {choice: [5, 10]}
objective: accuracy
"""
DEPENDENT = "dependent: {optimizer.eta: {factor: 1, of: seed}}\nparameters:"

TWICE = "dependent: {batch.per_rank: {factor: 1, of: batch.per_rank}}\nparameters:"


def loaded_from(folder: Path, yaml_text: str) -> LoadedSweep:
    path = folder / "sweep.yaml"
    path.write_text(yaml_text)
    return load_sweep(path)


def test_dotted_and_nested_keys_mean_the_same(tmp_path: Path) -> None:
    loaded = loaded_from(tmp_path, GOOD)
    values = {"optimizer.base_lr": 0.1, "schedule.warmup": 1.5, "batch.per_rank": 5}
    assert list(loaded.sweep.parameters) == list(values)
    run = loaded.load_trial(values).run
    assert run.optimizer.base_lr == 0.1
    assert str(run.schedule.warmup) == "1.5 epochs"
    assert run.batch.per_rank == 5
    assert run.eval.period == 1
    assert str(run.schedule.length) == "4 epochs"


def test_a_whole_number_of_a_range_is_one(tmp_path: Path) -> None:
    yaml_text = GOOD.replace("choice: [5, 10]", "linear: [5, 15], step: 5")
    values = {"schedule.warmup": 1.0, "batch.per_rank": 10.0}
    run = loaded_from(tmp_path, yaml_text).load_trial(values).run
    assert run.batch.per_rank == 10
    assert str(run.schedule.warmup) == "1 epochs"


@pytest.mark.parametrize(
    "path", sorted((PRESETS / "sweeps").glob("*.yaml")), ids=lambda p: p.stem
)
def test_each_sweep_of_ours_reads(path: Path) -> None:
    loaded = load_sweep(path)
    assert loaded.sweep.name == path.stem
    first = {
        key: (parameter.choice or parameter.linear or parameter.log or ())[0]
        for key, parameter in loaded.sweep.parameters.items()
    }
    loaded.load_trial(first)


def test_values_that_depend_on_a_drawn_one(tmp_path: Path) -> None:
    more = """
dependent:
  optimizer.momentum: {of: batch.per_rank, factor: 0.09}
  optimizer: {weight_decay: {of: batch.per_rank, factor: 0.001, power: 2}}
"""
    loaded = loaded_from(tmp_path, GOOD + more)
    for batch, momentum, decay in ((5, 0.45, 0.025), (10, 0.9, 0.1)):
        optimizer = loaded.load_trial({"batch.per_rank": batch}).run.optimizer
        assert optimizer.momentum == pytest.approx(momentum)
        assert optimizer.weight_decay == pytest.approx(decay)


def test_a_value_that_does_not_exist_makes_no_config(tmp_path: Path) -> None:
    more = "dependent: {optimizer.momentum: {of: batch.per_rank, factor: 1, power: 1000}}\n"
    with refused(r"yaml:10: parameters.batch.per_rank.choice: 1 x 5 \^ 1000"):
        loaded_from(tmp_path, GOOD + more)


def test_a_config_beside_the_sweep_and_a_base_of_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    first = GOOD.replace("config: smoke", "config: mine.yaml")
    (tmp_path / "first.yaml").write_text(first)
    loaded = loaded_from(tmp_path, "base: first.yaml\nname: b\ntrials: 3\n")
    assert loaded.sweep.name == "b"
    assert loaded.sweep.trials == 3
    assert loaded.base.run.name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("name: a", "name: a\ntrails: 3", "yaml:3: trails: unknown key; did you mean trials?"),
        ("log: [0.01, 1]", "lgo: [1, 2]", "yaml:8: parameters.optimizer.base_lr.lgo: unknown"),
        (
            "log: [0.01, 1]",
            "log: [0.01, 1], choice: [1]",
            "sweep.yaml:8: parameters.optimizer.base_lr.log: exactly one of choice, linear, log "
            "expected, found choice and log",
        ),
        ("log: [0.01, 1]", "log: [0, 1]", "yaml:8: parameters.optimizer.base_lr.log: "),
        ("log: [0.01, 1]", "log: [0.01, 1], step: 0.1", "base_lr.step: beside linear alone"),
        ("choice: [5, 10]", "choice: []", "parameters.batch.per_rank.choice: "),
        ("choice: [5, 10]", "choice: [[5]]", "parameters.batch.per_rank.choice: "),
        ("optimizer.base_lr", "optimizer.base_rl", "base_rl: a key of the config expected"),
        ("choice: [5, 10]", "choice: [5, .nan]", "yaml:10: parameters.batch.per_rank.choice: "),
        ("choice: [5, 10]", "choice: [5, 0]", "per_rank.choice: expected"),
        ("choice: [5, 10]", "linear: [1, 9]", "yaml:10: parameters.batch.per_rank.linear: "),
        ("log: [0.01, 1]", "log: [0.01, 1e30]", "yaml:8: parameters.optimizer.base_lr.log: "),
        ("[0.5, 2]", "[0.5, 20]", "yaml:9: parameters.schedule.warmup.linear: "),
        ("parameters:", DEPENDENT, "eta.of: one of parameters (optimizer.b"),
        ("parameters:", TWICE, "sweep.yaml:7: dependent.batch.per_rank: also in parameters"),
        ("config: smoke", "config: smok", "yaml:3: config: a YAML file or a preset's name"),
        ("period: 1", "periods: 1", "yaml:5: overrides.eval.periods: unknown key; did you mean"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as caught:
        loaded_from(tmp_path, GOOD.replace(old, new, 1))
    (line,) = str(caught.value).splitlines()
    assert expected in line
    assert len(line) < 500


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=20),
)


@given(SCALARS)
def test_a_value_reaches_the_config_as_it_is(value: object) -> None:
    (layer,) = parse_overrides(overrides({"a.b": value}))
    ((key, leaf),) = layer.leaves
    assert key == "a.b"
    assert type(leaf.value) is type(value)
    assert leaf.value == value


def test_what_may_change_between_two_drivers_and_what_not(tmp_path: Path) -> None:
    old = loaded_from(tmp_path, GOOD).definition()
    longer = loaded_from(tmp_path, GOOD + "trials: 99\n")
    assert longer.definition() == old
    for was, replacement in (
        ("0.01", "0.02"),
        ("4 epochs", "5 epochs"),
        ("smoke", "quick"),
        ("accuracy", "time_to_target"),
    ):
        changed = loaded_from(tmp_path, GOOD.replace(was, replacement))
        assert changed.definition() != old
