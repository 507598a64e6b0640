"""Whose image set a config describes, where its paths lie, and where its counts come from."""

import json
from pathlib import Path

import pytest

from rn50.config.load import Loaded, load
from tests.config.test_load import write
from tests.conftest import refused

QUICK = (10, 3200, 1000)
IMAGENET = (1000, 1_281_167, 50_000)


def write_manifest(
    folder: str | Path, classes: int = 3, train: int = 12, evaluation: int = 6
) -> None:
    """A manifest as packing writes it, without the files that it names."""
    file = {"bytes": 1, "sha256": "0" * 64}
    files = dict.fromkeys(("rec", "idx", "npy"), file)
    splits = {}
    counts = {"train": train, "val": evaluation}
    for name, samples in counts.items():
        splits[name] = {"samples": samples, "class_counts": [], "files": files}
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
    return [str(loaded.origin(f"data.{key}")) for key in keys]


# --- another path is another set ---------------------------------------------------------------


@pytest.mark.parametrize("path", ["typo", "datasets/quick/.."])
def test_another_path_on_the_command_line_draws_nothing(
    folder: Path, path: str
) -> None:
    """The trap: `quick` with a path that is not there drew images there and trained on them."""
    loaded = load("quick", [f"data.path={path}"])
    assert loaded.run.data.synthetic is None
    assert counts(loaded) == IMAGENET
    expected = ["command line", "default", "default"]
    assert origins(loaded, "path", "synthetic", "classes") == expected


@pytest.mark.parametrize("path", ["./datasets/quick/", "link"])
def test_the_same_folder_in_other_words_changes_nothing(
    folder: Path, path: str
) -> None:
    """A job's script names the path of its config again."""
    (folder / "datasets/quick").mkdir(parents=True)
    (folder / "link").symlink_to("datasets/quick")
    data = load("quick", [f"data.path={path}"]).run.data
    assert data == load("quick").run.data.model_copy(update={"path": path})
    assert data.synthetic is not None


def test_a_file_that_changes_what_is_drawn_keeps_the_rest(folder: Path) -> None:
    write("low.yaml", "data: {path: one, synthetic: {classes: 7}}\n")
    yaml_text = "base: low.yaml\ndata: {path: other, synthetic: {train_samples: 99}}\n"
    loaded = load(write("mine.yaml", yaml_text))
    assert counts(loaded) == (7, 99, 1000)
    assert counts(load("mine.yaml", ["data.synthetic=null"])) == IMAGENET
    expected = ["data.synthetic", "mine.yaml:2"]
    assert origins(loaded, "train_samples", "synthetic.train_samples") == expected


def test_counts_below_the_layer_that_names_the_path_are_not_of_this_set(
    folder: Path,
) -> None:
    numbers = "classes: 5, train_samples: 50, eval_samples: 10"
    write("low.yaml", f"data: {{path: one, {numbers}}}\n")
    write("mid.yaml", "base: low.yaml\ndata: {path: two, classes: 7}\n")
    assert counts(load("low.yaml")) == (5, 50, 10)
    assert counts(load("mid.yaml")) == (7, *IMAGENET[1:])
    assert counts(load("mid.yaml", ["data.path=one"])) == IMAGENET


# --- counts ------------------------------------------------------------------------------------


def test_counts_come_from_the_manifest_unless_given(folder: Path) -> None:
    write_manifest("datasets/mine", classes=20, train=1000, evaluation=240)
    loaded = load("dgxa100_8", ["data.path=datasets/mine"])
    assert counts(loaded) == (20, 1000, 240)
    assert origins(loaded, "eval_samples") == ["datasets/mine/manifest.json"]
    overridden = load("dgxa100_8", ["data.path=datasets/mine", "data.classes=7"])
    assert counts(overridden) == (7, 1000, 240)
    assert origins(overridden, "classes") == ["command line"]


def test_a_set_of_one_class_is_refused(folder: Path) -> None:
    write_manifest("datasets/mine", classes=1)
    with refused("^datasets/mine/manifest.json: data.classes: .*, found 1$"):
        load("dgxa100_8", ["data.path=datasets/mine"])


def test_what_is_to_be_drawn_counts_before_what_is_there(folder: Path) -> None:
    """The two are compared before a run; here the config says what it says."""
    write_manifest("datasets/quick")
    loaded = load("quick")
    assert counts(loaded) == QUICK
    assert origins(loaded, "classes") == ["data.synthetic"]


def test_a_manifest_that_is_needed_and_broken_is_one_error(folder: Path) -> None:
    write("set/manifest.json", "{}")
    with refused(r"^set/manifest.json: "):
        load("base", ["data.path=set"])
    three = [f"data.{key}=9" for key in ("classes", "train_samples", "eval_samples")]
    assert counts(load("base", ["data.path=set", *three])) == (9, 9, 9)


# --- paths -------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    write("low/mine.yaml", "data: {path: images}\nsystem: {results: ~/runs}\n")
    write_manifest("images")
    loaded = load("low/mine.yaml")
    assert loaded.run.system.results == "/home/somebody/runs"
    assert loaded.run.data.classes == 3
    reloaded = load(write("results/run/config.yaml", loaded.to_yaml()))
    assert reloaded.run == loaded.run
