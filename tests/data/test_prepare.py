"""The set that a config names: drawn where it says so, an error that helps where not, once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rn50.config.errors import UserError
from rn50.config.leaves import Origin
from rn50.config.load import load
from rn50.config.manifest import load_manifest
from rn50.config.schema import Data, Synthetic
from rn50.data.dataset import verify
from rn50.data.describe import describe_data
from rn50.data.pack import pack_images
from rn50.data.prepare import prepare
from rn50.data.synthetic import make_images, wnid

SETTINGS = Synthetic(classes=2, train_samples=4, eval_samples=2)
COUNTS: dict[str, Any] = {"classes": 2, "train_samples": 4, "eval_samples": 2}


def silent(name: str) -> Callable[[int, int], None]:
    return lambda done, total: None


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos") / "photos"
    make_images(folder, SETTINGS)
    return folder


def refusal(path: object, origins: dict[str, Origin] | None = None) -> str:
    """The one line with which a config without `synthetic` is refused."""
    with pytest.raises(UserError) as caught:
        prepare(Data(path=str(path), **COUNTS), silent, origins)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- nothing is drawn but what the config says ---------------------------------------------------


def test_a_missing_set_is_named_in_full_with_where_it_was_written(tmp_path: Path) -> None:
    told = refusal(tmp_path / "datasets/mine", {"data.path": Origin("mine.yaml", 3)})
    assert told.startswith(f"mine.yaml:3: data.path: a packed image set expected at {tmp_path}/")
    assert f"`rn50 data pack IMAGES {tmp_path}/datasets/mine`" in told
    assert names_in(tmp_path) == set()


def test_a_near_miss_is_named(tmp_path: Path, photos: Path) -> None:
    for name in ("mine", "fill"):
        pack_images(photos, tmp_path / name)
    assert f"did you mean {tmp_path}/mine?" in refusal(tmp_path / "mien")
    assert f"did you mean {tmp_path}/fill?" in refusal(tmp_path / "zebra")


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda path: path.write_text("text"), "a file"),
        (lambda path: path.mkdir(), "an empty folder"),
        (lambda path: make_images(path, SETTINGS), "a folder with train, val"),
        (lambda path: path.symlink_to("nowhere"), "none (No such file or directory)"),
    ],
)
def test_what_is_there_instead_is_named_and_left(
    tmp_path: Path, make: Callable[[Path], object], found: str
) -> None:
    make(tmp_path / "mine")
    before = names_in(tmp_path)
    assert f", found {found}" in refusal(tmp_path / "mine")
    assert names_in(tmp_path) == before


@pytest.mark.parametrize("base", ["quick", "smoke"])
def test_another_path_than_the_presets_is_never_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(f"base: {base}\ndata: {{path: datasets/mine}}\n")
    for loaded in (load("own.yaml"), load(base, ["data.path=datasets/mine"])):
        with pytest.raises(UserError, match=r"data\.path: a packed image set expected at /"):
            prepare(loaded.run.data, silent, loaded.origins)
    assert names_in(tmp_path) == {"own.yaml"}


def test_drawing_touches_nothing_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/precious").write_text("mine")
    data = Data(path=str(tmp_path / "set"), synthetic=SETTINGS, **COUNTS)
    with pytest.raises(UserError, match="found a folder with precious"):
        prepare(data, silent)
    assert (tmp_path / "set/precious").read_text() == "mine"
    assert names_in(tmp_path) == {"set"}


def test_an_empty_folder_and_a_link_to_another_disk_are_drawn_into(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk/set")
    (tmp_path / "empty").mkdir()
    for name in ("empty", "link"):
        prepare(Data(path=str(tmp_path / name), synthetic=SETTINGS, **COUNTS), silent)
        verify(tmp_path / name)
    assert (tmp_path / "link").is_symlink()
    assert names_in(tmp_path) == {"disk", "link", "empty"}
    assert names_in(tmp_path / "disk") == {"set"}


def test_a_set_that_was_drawn_otherwise_is_not_taken_for_it(tmp_path: Path) -> None:
    data = Data(path=str(tmp_path / "set"), synthetic=SETTINGS, **COUNTS)
    prepare(data, silent)
    other = data.model_copy(update={"synthetic": SETTINGS.model_copy(update={"seed": 1})})
    told = rf"/set: drawn with data.synthetic.seed = 1 expected, found {SETTINGS.seed}; give data"
    with pytest.raises(UserError, match=told):
        prepare(other, silent)


def test_what_is_drawn_is_marked_and_described_so(tmp_path: Path) -> None:
    data = Data(path=str(tmp_path / "set"), synthetic=SETTINGS, **COUNTS)
    found = prepare(data, silent)
    assert found.drawn == SETTINGS
    words = f"DRAWN textures ({tmp_path}/set), 4 training and 2 evaluation images of 2 classes"
    assert describe_data(data, found) == describe_data(data) == words
    assert describe_data(Data()).startswith("datasets/imagenet, 1,281,167 training and 50,000 ")


def test_a_set_that_was_drawn_and_packed_by_hand_is_known_by_its_classes(
    photos: Path, tmp_path: Path
) -> None:
    assert pack_images(photos, tmp_path / "drawn").is_drawn
    (tmp_path / "photos").mkdir()
    for split in ("train", "val"):
        shutil.copytree(photos / split / wnid(0), tmp_path / "photos" / split / "cat")
        shutil.copytree(photos / split / wnid(1), tmp_path / "photos" / split / wnid(1))
    assert not pack_images(tmp_path / "photos", tmp_path / "mixed").is_drawn


# --- two at once ----------------------------------------------------------------------------------

PREPARE = """
import sys, time
from pathlib import Path
from rn50.config.schema import Data, Synthetic
from rn50.data.prepare import prepare
def track(name):
    print(name, flush=True)
    if len(sys.argv) > 2:
        sys.stdin.read()  # until the test goes on
    return lambda done, total: None
settings = dict(classes=2, train_samples=4, eval_samples=2)
prepare(Data(path=sys.argv[1], synthetic=Synthetic(**settings), **settings), track)
print("ready", flush=True)
"""


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(folder), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def started_drawing(folder: Path) -> subprocess.Popen[str]:
    """A process that holds still where it begins to draw."""
    process = start(folder, "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "drawing images\n"
    return process


def told_by(process: subprocess.Popen[str]) -> str:
    """The next line on its stderr."""
    assert process.stderr is not None
    return process.stderr.readline()


def test_the_second_waits_for_the_first_and_uses_its_set(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    first = started_drawing(folder)
    second = start(folder)
    line = told_by(second)
    assert line.startswith(f"{folder}: waiting for process {first.pid} on {os.uname().nodename} (")
    assert not folder.exists()
    out, err = first.communicate("")
    assert (first.returncode, out, err) == (0, "packing records\nready\n", "")
    out, err = second.communicate("")
    assert (second.returncode, out, err) == (0, "ready\n", "")  # drew nothing, told once
    assert names_in(tmp_path) == {"set"}
    assert load_manifest(folder).drawn == SETTINGS


def test_the_second_draws_where_the_first_is_killed_and_clears_up_behind_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "set"
    (tmp_path / ".set.images-older/images").mkdir(parents=True)
    (tmp_path / ".other.images-x").mkdir()
    first = started_drawing(folder)
    second = start(folder)
    assert "waiting for process" in told_by(second)
    leftovers = {name for name in names_in(tmp_path) if name.startswith(".set.images-")}
    assert len(leftovers) == 1
    first.send_signal(signal.SIGKILL)
    first.communicate()
    out, err = second.communicate("")
    assert (second.returncode, err) == (0, "")
    assert out == "drawing images\npacking records\nready\n"
    assert names_in(tmp_path) == {"set", ".other.images-x"}
    verify(folder)
