"""Keys of the release before: read as today's, with one line that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from rn50.config import renamed
from rn50.config.errors import UserError
from rn50.config.load import load, load_system
from rn50.config.reference import all_keys, find_keys
from rn50.config.renamed import RENAMED, rename_tree
from tests.train.test_checkpoint import meta

VALUES = {
    "comm.wire": "float16",
    "data.plain_from_epoch": 3,
    "limits.learning_by": "40 %",
    "system.performance.interrupted": 1e-3,
}


@pytest.fixture(autouse=True)
def every_warning_is_new() -> None:
    renamed._warn.cache_clear()


def value(config: object, key: str) -> object:
    for part in key.split("."):
        config = getattr(config, part)
    return config


def written(key: str, setting: object) -> str:
    """A config with one key, as nested YAML."""
    *sections, last = key.split(".")
    return "base: smoke\n" + "".join(
        f"{'  ' * depth}{word}:{end}\n"
        for depth, (word, end) in enumerate(
            [*((section, "") for section in sections), (last, f" {setting}")]
        )
    )


def test_every_renamed_key_is_known_under_its_name_of_today_alone() -> None:
    assert RENAMED.keys() == VALUES.keys()
    known = all_keys()
    assert not RENAMED.keys() & known.keys() and set(RENAMED.values()) <= known.keys()
    assert [key.path for key in find_keys("comm.wire")] == ["comm.gradient_dtype"]


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_key_in_a_file_and_on_the_command_line(old: str, tmp_path: Path, capsys) -> None:
    new, setting = RENAMED[old], VALUES[old]
    path = tmp_path / "own.yaml"
    path.write_text(written(old, setting))
    line = old.count(".") + 2
    expected = value(load("smoke", [f"{new}={setting}"]).run, new)
    assert capsys.readouterr().err == ""
    assert value(load(path).run, new) == value(load(path).run, new) == expected
    assert value(load(tmp_path / "own.yaml", within=tmp_path).run, new) == expected
    assert capsys.readouterr().err == f"rn50: warning: {path}:{line}: {old} is {new} now\n"
    assert value(load("smoke", [f"{old}={setting}"]).run, new) == expected
    assert capsys.readouterr().err == f"rn50: warning: command line: {old} is {new} now\n"
    assert load("smoke", [f"{old}={setting}"]).sha256 == load("smoke", [f"{new}={setting}"]).sha256


def test_what_is_wrong_with_it_is_said_of_the_key_of_today(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("base: smoke\ncomm:\n  wire: float64\n")
    with pytest.raises(UserError, match=r"own\.yaml:3: comm\.gradient_dtype: expected"):
        load(path)
    path.write_text("base: smoke\ncomm:\n  gradient_dtype: model\n  wire: float16\n")
    with pytest.raises(
        UserError,
        match=r"own\.yaml:4: comm\.wire: each key once expected, .*gradient_dtype.*line 3",
    ):
        load(path)


def test_a_machine_and_a_recorded_config(tmp_path: Path, capsys) -> None:
    machine = tmp_path / "machine.yaml"
    machine.write_text("base: dgx1\nperformance:\n  interrupted: 0.001\n")
    about = load_system(str(machine)).performance
    assert about is not None and about.os_noise_fraction == 0.001
    assert "system.performance.interrupted is" in capsys.readouterr().err

    now = load("smoke").to_dict()
    then = load("smoke").to_dict()
    then["comm"]["wire"] = then["comm"].pop("gradient_dtype")
    then["limits"]["learning_by"] = then["limits"].pop("min_accuracy_by")
    assert rename_tree(then) == now
    assert capsys.readouterr().err.splitlines() == [
        "rn50: warning: checkpoint: comm.wire is comm.gradient_dtype now",
        "rn50: warning: checkpoint: limits.learning_by is limits.min_accuracy_by now",
    ]


def test_a_checkpoint_of_the_release_before_is_of_the_same_config(capsys) -> None:
    loaded = load("smoke")
    then = loaded.to_dict()
    then["comm"]["wire"] = then["comm"].pop("gradient_dtype")
    assert meta(config=then).config == loaded.to_dict()
    assert "comm.wire is comm.gradient_dtype now" in capsys.readouterr().err
