"""Whose image set a config describes, where its paths lie, and where its counts come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rn50.cli.main import app
from rn50.config.errors import UserError
from rn50.config.load import Loaded, load
from rn50.sweep.definition import load_sweep

QUICK = (10, 3200, 1000)
IMAGENET = (1000, 1_281_167, 50_000)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def write_manifest(
    folder: str | Path, classes: int = 3, train: int = 12, evaluation: int = 6
) -> None:
    """A manifest as packing writes it, without the files that it names."""
    files = {suffix: {"bytes": 1, "sha256": "0" * 64} for suffix in ("rec", "idx", "npy")}
    splits = {
        name: {"samples": samples, "class_counts": [], "files": files}
        for name, samples in (("train", train), ("val", evaluation))
    }
    tree = {
        "format": "rn50-recordio-1",
        "classes": [f"class_{number}" for number in range(classes)],
        "shuffle_seed": 0,
        "splits": splits,
    }
    write(f"{folder}/manifest.json", json.dumps(tree))


def counts(loaded: Loaded) -> tuple[int, int, int]:
    data = loaded.run.data
    return data.classes, data.train_samples, data.eval_samples


def origins(loaded: Loaded, *keys: str) -> list[str]:
    found = {path: str(origin) for path, _, origin in loaded.leaves()}
    return [found[f"data.{key}"] for key in keys]


# --- another path is another set ---------------------------------------------------------------


@pytest.mark.parametrize("path", ["typo", "datasets/quick/.."])
def test_another_path_on_the_command_line_draws_nothing(folder: Path, path: str) -> None:
    """The trap: `quick` with a path that is not there drew images there and trained on them."""
    loaded = load("quick", [f"data.path={path}"])
    assert loaded.run.data.synthetic is None
    assert counts(loaded) == IMAGENET
    assert origins(loaded, "path", "synthetic", "classes") == ["command line", "default", "default"]


@pytest.mark.parametrize(
    "path",
    ["./datasets/quick/", "{folder}", "link"],
)
def test_the_same_folder_in_other_words_changes_nothing(folder: Path, path: str) -> None:
    """A job's script names the path of its config again."""
    (folder / "datasets/quick").mkdir(parents=True)
    (folder / "link").symlink_to("datasets/quick")
    given = path.format(folder=folder / "datasets/quick")
    data = load("quick", [f"data.path={given}"]).run.data
    assert data == load("quick").run.data.model_copy(update={"path": given})
    assert data.synthetic is not None


def test_a_file_that_changes_what_is_drawn_keeps_the_rest(folder: Path) -> None:
    text = "base: quick\ndata: {path: other, synthetic: {train_samples: 99}}\n"
    loaded = load(write("mine.yaml", text))
    assert counts(loaded) == (10, 99, 1000)
    assert loaded.run.data.synthetic is not None
    assert loaded.run.data.synthetic.train_samples == 99
    assert origins(loaded, "train_samples", "synthetic.train_samples") == [
        "data.synthetic",
        "mine.yaml:2",
    ]


def test_counts_below_the_layer_that_names_the_path_are_not_of_this_set(folder: Path) -> None:
    write("low.yaml", "data: {path: one, classes: 5, train_samples: 50, eval_samples: 10}\n")
    write("mid.yaml", "base: low.yaml\ndata: {path: two, classes: 7}\n")
    assert counts(load("low.yaml")) == (5, 50, 10)
    assert counts(load("mid.yaml")) == (7, *IMAGENET[1:])
    assert counts(load("mid.yaml", ["data.path=one"])) == IMAGENET


# --- counts ------------------------------------------------------------------------------------


def test_counts_come_from_the_manifest_unless_given(folder: Path) -> None:
    write_manifest("datasets/mine", classes=20, train=1000, evaluation=240)
    loaded = load("dgxa100_8", ["data.path=datasets/mine"])
    assert counts(loaded) == (20, 1000, 240)
    assert set(origins(loaded, "classes", "train_samples", "eval_samples")) == {
        "datasets/mine/manifest.json"
    }
    given = load("dgxa100_8", ["data.path=datasets/mine", "data.classes=7"])
    assert counts(given) == (7, 1000, 240)
    assert origins(given, "classes") == ["command line"]


def test_what_is_to_be_drawn_counts_before_what_is_there(folder: Path) -> None:
    """The two are compared before a run; here the config says what it says."""
    write_manifest("datasets/quick")
    loaded = load("quick")
    assert counts(loaded) == QUICK
    assert origins(loaded, "classes") == ["data.synthetic"]


def test_a_manifest_that_is_needed_and_broken_is_one_error(folder: Path) -> None:
    write("set/manifest.json", "{}")
    with pytest.raises(UserError, match=r"^set/manifest.json: "):
        load("base", ["data.path=set"])
    three = [f"data.{key}=9" for key in ("classes", "train_samples", "eval_samples")]
    assert counts(load("base", ["data.path=set", *three])) == (9, 9, 9)


# --- paths -------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_file_that_holds_them(folder: Path) -> None:
    write("low/common.yaml", "data: {path: images}\nsystem: {results: ../runs}\n")
    write("high/mine.yaml", "base: ../low/common.yaml\nname: mine\n")
    write_manifest("low/images")
    run = load("high/mine.yaml").run
    assert (run.data.path, run.system.results) == ("low/images", "runs")
    assert run.data.classes == 3


def test_paths_that_are_not_relative_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    write("a/mine.yaml", "data: {path: /scratch/set}\nsystem: {results: ~/runs}\n")
    run = load("a/mine.yaml").run
    assert (run.data.path, run.system.results) == ("/scratch/set", "/home/somebody/runs")
    assert load("a/mine.yaml", ["data.path=~/set"]).run.data.path == "/home/somebody/set"


def test_a_file_may_say_that_its_paths_are_relative_to_the_working_folder(folder: Path) -> None:
    write("a/mine.yaml", "relative_to: working_folder\ndata: {path: images}\n")
    write("a/more.yaml", "base: mine.yaml\nsystem: {results: runs}\n")
    run = load("a/more.yaml").run
    assert (run.data.path, run.system.results) == ("images", "a/runs")  # its own alone


def test_the_saved_config_means_the_same_wherever_it_lies(folder: Path) -> None:
    write("a/mine.yaml", "data: {path: images}\n")
    loaded = load("a/mine.yaml")
    write("results/run/config.yaml", loaded.to_yaml())
    again = load("results/run/config.yaml")
    assert again.run == loaded.run
    assert again.run.data.path == "a/images"
    assert again.sha256 == loaded.sha256
    assert "relative_to" not in loaded.to_dict()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("relative_to: here\n", "x.yaml:1: relative_to: working_folder expected .* found 'here'"),
        ("name: a\nrelative_to: {}\n", "x.yaml:2: relative_to: working_folder expected"),
        ("data: {relative_to: working_folder}\n", "x.yaml:1: data.relative_to: unknown key"),
    ],
)
def test_relative_to_has_one_value_and_one_place(folder: Path, text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        load(write("x.yaml", text))
    with pytest.raises(UserError, match="command line: relative_to: unknown key"):
        load("quick", ["relative_to=working_folder"])


def test_paths_in_a_sweep_are_relative_to_it(folder: Path) -> None:
    write_manifest("a/images", classes=3, train=999, evaluation=60)
    write("a/mine.yaml", "base: quick\ndata: {path: images}\n")
    text = """
name: s
config: mine.yaml
overrides: {system.results: ../runs, system: {nodes: 1}}
parameters: {data.path: {choice: [images, /scratch/images]}}
"""
    loaded = load_sweep(Path(write("a/sweep.yaml", text)))
    assert (loaded.base.run.data.path, loaded.base.run.system.results) == ("a/images", "runs")
    assert loaded.sweep.parameters["data.path"].choice == ("a/images", "/scratch/images")
    trial = loaded.load_trial(loaded.sweep.config, {"data.path": "a/images"})
    assert counts(trial) == (3, 999, 60)


def test_config_show_names_the_place_and_where_counts_come_from(folder: Path) -> None:
    write_manifest("low/images")
    write("low/mine.yaml", "base: base\ndata: {path: images}\n")
    shown = CliRunner().invoke(app, ["config", "show", "low/mine.yaml", "batch.per_rank=1"]).stdout
    rows = [line.split() for line in shown.splitlines()]
    assert ["data.path", "low/images", "low/mine.yaml:2"] in rows
    assert ["data.classes", "3", "low/images/manifest.json"] in rows
    assert f"data.path is {folder}/low/images (a packed set)" in shown
    shown = CliRunner().invoke(app, ["config", "show", "quick", "data.path=typo", "--json"]).stdout
    assert json.loads(shown)["origins"]["data.path"] == "command line"
