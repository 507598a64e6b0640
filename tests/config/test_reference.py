"""The reference of keys: whole, current, and found by any way one may ask for a key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rn50.cli.main import app
from rn50.config.errors import UserError
from rn50.config.leaves import flatten
from rn50.config.load import load
from rn50.config.names import list_presets, list_systems
from rn50.config.reference import (
    Key,
    all_keys,
    find_keys,
    recipes,
    render,
    replace_in_page,
    to_dict,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("key", all_keys().values(), ids=lambda key: key.path)
def test_no_key_lacks_a_description(key: Key) -> None:
    """A sentence for each key and each section, and what may be written for each key."""
    assert key.meaning.endswith(".")
    assert len(key.meaning) > 12 and "  " not in key.meaning and "\n" not in key.meaning
    assert key.is_section or (key.default and key.values)
    assert (" second" in f" {key.unit}") == key.path.endswith("_s")


@pytest.mark.parametrize("name", list_presets())
def test_every_key_of_a_config_is_there(name: str) -> None:
    keys = all_keys()
    for path, _ in flatten(load(name).to_dict()):
        assert path in keys and keys[path].values


@pytest.mark.parametrize("name", list_systems())
def test_every_key_of_a_machine_is_there(name: str) -> None:
    system = load("quick", [f"system={name}"]).run.system
    assert system.performance is not None or name in ("local", "superpod")
    for section in ("performance", "job"):
        model = getattr(system, section)
        tree = {} if model is None else model.model_dump(mode="json", exclude_none=True)
        for path, _ in flatten(tree, f"system.{section}."):
            assert path in all_keys(), path


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs/config.md").read_text()
    assert page == replace_in_page(page), "rn50 config explain --write docs/config.md"


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(UserError, match="keys: begin"):
        replace_in_page("# Config\n")


@pytest.mark.parametrize(
    ("word", "first", "count"),
    [
        ("optimizer.base_lr", "optimizer.base_lr", 1),
        ("base_lr", "optimizer.base_lr", 1),
        ("optimizer", "optimizer", 8),
        ("optimizer.", "optimizer", 8),
        ("data.eval", "data.eval_samples", 2),
        ("batch.changes.per_rank", "batch.changes[].per_rank", 1),
        ("batch.changes[].per_rank", "batch.changes[].per_rank", 1),
        ("every", "checkpoint.every", 2),
    ],
)
def test_a_key_is_found_by_path_name_section_or_beginning(
    word: str, first: str, count: int
) -> None:
    found = find_keys(word)
    assert (found[0].path, len(found)) == (first, count)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("bse_lr", "did you mean optimizer.base_lr"),
        ("optimizer.base_rl", "did you mean optimizer.base_lr"),
        ("", "`rn50 config explain` lists them"),
        ("zzz", "`rn50 config explain` lists them"),
    ],
)
def test_a_key_that_does_not_exist_is_told_the_nearest(word: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        find_keys(word)


def test_recipes_are_what_the_presets_say() -> None:
    runs = {name: dict(flatten(load(name).to_dict())) for name in list_presets()}
    checked = 0
    for path, values in recipes().items():
        for value, names in values.items():
            for name in names:
                if path in runs[name]:
                    loaded = runs[name][path]
                    is_same = value in (str(loaded), json.dumps(loaded)) or "[" in value
                    assert is_same or float(value) == loaded
                    checked += 1
    assert checked > 300
    assert recipes()["optimizer.base_lr"]["10.5"] == ("dgxa100_8",)
    assert "name" not in recipes()


def test_recipes_do_not_depend_on_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = recipes()
    (tmp_path / "quick").write_text("name: mine\n")
    monkeypatch.chdir(tmp_path)
    recipes.cache_clear()
    assert recipes() == before


def test_what_a_key_says() -> None:
    assert render(find_keys("limits.grace_s")[0]) == [
        "limits.grace_s: From a request to stop to the last checkpoint, at most.",
        "  unit     seconds",
        "  values   number, 1e-15 or more, at most 1e+09",
        "  default  10",
    ]
    (key,) = find_keys("schedule.power")
    assert to_dict(key)["recipes"] == {"2.2": ["abci_2048_open"]}
    assert find_keys("model.depth")[0].values == "tiny, 18, 34, 50, 101, 152"
    assert find_keys("data.area")[0].values == "list of 2: number, 0 or more, at most 1"
    assert find_keys("seed")[0].values == "whole number, 0 or more, below 2^63; or null"


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner()
    shown = run.invoke(app, ["config", "explain", "eval.target"])
    assert shown.exit_code == 0 and "0.759" in shown.stdout
    listed = json.loads(run.invoke(app, ["config", "explain", "--json"]).stdout)
    assert [key["path"] for key in listed] == list(all_keys())
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- keys: begin -->\nwas here\n<!-- keys: end -->\nb\n")
    assert run.invoke(app, ["config", "explain", "--write", str(page)]).exit_code == 0
    text = page.read_text()
    assert text.startswith("a\n") and text.endswith("\nb\n") and "was here" not in text
    assert "| `base_lr` |" in text
