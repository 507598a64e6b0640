"""The set that a config names: drawn where it says so, an error that helps where not, once."""

from __future__ import annotations

import os
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
from rn50.data.pack import pack_images
from rn50.data.prepare import prepare
from rn50.data.synthetic import make_images
from tests.conftest import Rn50
from tests.waiting import wait_until

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


def make_photos(folder: Path) -> Path:
    make_images(folder, SETTINGS)
    return folder


def refusal(path: object, origins: dict[str, Origin] | None = None) -> str:
    """The one line with which a config without `synthetic` is refused."""
    with pytest.raises(UserError) as caught:
        prepare(Data(path=str(path), **COUNTS), silent, origins)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- nothing is drawn but what the config says ---------------------------------------------------


def test_a_missing_set_is_named_in_full_with_where_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal("datasets/mine", {"data.path": Origin("mine.yaml", 3)}) == (
        f"mine.yaml:3: data.path: a packed image set expected at {tmp_path}/datasets/mine, found "
        "nothing; make it with `rn50 data pack IMAGES datasets/mine`"
    )
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("datasets/mien", "datasets/mine"),
        ("dataset/mine", "datasets/mine"),
        ("dataset/mein", "datasets/mine"),
        ("datasets/mine_", "datasets/mine"),
        ("datasets/full", "datasets/fill"),  # one that is there, and empty
        ("{here}/datasets/mien", "{here}/datasets/mine"),
    ],
)
def test_a_near_miss_is_named(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, path: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    pack_images(photos, tmp_path / "datasets/mine")
    pack_images(photos, tmp_path / "datasets/fill")
    (tmp_path / "datasets/full").mkdir()
    path, meant = path.format(here=tmp_path), meant.format(here=tmp_path)
    assert f"; did you mean {meant}? Else make it with `rn50 data pack" in refusal(path)


def test_a_path_from_the_wrong_folder_is_named_as_the_yaml_would_have_it(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of a YAML are relative to it: the set lies in the working folder's `datasets`."""
    monkeypatch.chdir(tmp_path)
    pack_images(photos, tmp_path / "datasets/mine")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/own.yaml").write_text("base: quick\ndata: {path: datasets/mine}\n")
    loaded = load("configs/own.yaml")
    with pytest.raises(UserError) as caught:
        prepare(loaded.run.data, silent, loaded.origins)
    told = str(caught.value)
    assert told.startswith(
        "configs/own.yaml:2: data.path: a packed image set expected at "
        f"{tmp_path}/configs/datasets/mine, found nothing; did you mean ../datasets/mine? "
    )
    assert names_in(tmp_path / "configs") == {"own.yaml"}


@pytest.mark.parametrize("base", ["quick", "smoke", "cpu_small"])
def test_another_path_than_the_presets_is_never_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(f"base: {base}\ndata: {{path: datasets/mine}}\n")
    for loaded in (load("own.yaml"), load(base, ["data.path=datasets/mine"])):
        with pytest.raises(UserError, match=r"data\.path: a packed image set expected at /"):
            prepare(loaded.run.data, silent, loaded.origins)
    assert names_in(tmp_path) == {"own.yaml"}


@pytest.mark.parametrize("command", [("launch",), ("data", "prepare")])
def test_the_commands_refuse_a_typo_and_draw_nothing(
    tmp_path: Path, rn50: Rn50, command: tuple[str, ...], photos: Path
) -> None:
    """`data.synthetic` of quick was inherited: images were drawn at the typo and trained on."""
    pack_images(photos, tmp_path / "datasets/mine")
    (tmp_path / "own.yaml").write_text("base: quick\ndata: {path: datasets/mien}\n")
    done = rn50(*command, str(tmp_path / "own.yaml"), f"system.results={tmp_path}/results")
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"rn50: error: {tmp_path}/own.yaml:2: data.path: a packed image set expected at "
        f"{tmp_path}/datasets/mien, found nothing; did you mean datasets/mine? Else make it with "
    )
    assert done.stderr.count("\n") == 1
    assert names_in(tmp_path) == {"own.yaml", "datasets"}
    assert names_in(tmp_path / "datasets") == {"mine"}


def test_without_a_near_miss_the_sets_beside_it_are_named(tmp_path: Path, photos: Path) -> None:
    pack_images(photos, tmp_path / "kittens")
    (tmp_path / "folder").mkdir()
    told = refusal(tmp_path / "zebra")
    assert "found nothing (packed sets beside it: kittens); make it" in told


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (
            lambda path: path.write_text("text"),
            "found a file; make one with `rn50 data pack IMAGES FOLDER`",
        ),
        (lambda path: path.mkdir(), "found an empty folder; make it with"),
        (
            lambda path: (path / "a").mkdir(parents=True),
            "found a folder without manifest.json; make one",
        ),
        (
            lambda path: pack_images(make_photos(path.with_name("photos")), path / "set"),
            "found a folder of packed sets (set); make one with",
        ),
        (lambda path: make_images(path, SETTINGS), "found images that are not packed; pack them"),
        (
            lambda path: (make_images(path, SETTINGS), (path / "train").rename(path / "other")),
            "found a folder without manifest.json;",
        ),
    ],
)
def test_what_is_no_packed_set_is_told_apart(
    tmp_path: Path, make: Callable[[Path], object], found: str
) -> None:
    make(tmp_path / "mine")
    before = names_in(tmp_path)
    assert f"expected at {tmp_path}/mine, {found}" in refusal(tmp_path / "mine")
    assert names_in(tmp_path) == before


def test_a_link_to_nowhere_names_its_target(tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to("nowhere")
    assert f"expected at {tmp_path}/nowhere, found nothing; make it" in refusal(tmp_path / "mine")


def test_images_that_are_not_packed_get_the_whole_command(tmp_path: Path, photos: Path) -> None:
    command = f"pack them with `rn50 data pack {photos} {photos}_packed`"
    assert refusal(photos).endswith(command)
    classes = photos / "train"
    assert f"pack them with `rn50 data pack {classes} {classes}_packed`" in refusal(classes)


def test_records_without_a_manifest_are_no_set(tmp_path: Path, photos: Path) -> None:
    pack_images(photos, tmp_path / "mine")
    (tmp_path / "mine/manifest.json").unlink()
    assert "found records without their manifest.json" in refusal(tmp_path / "mine")


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "found what cannot be read (File name too long)" in refusal(tmp_path / ("a" * 300))


def test_an_unfinished_packing_is_named(tmp_path: Path) -> None:
    (tmp_path / ".mine.partial").mkdir()
    assert "found a packing that is not finished; make it with" in refusal(tmp_path / "mine")


def test_drawing_touches_nothing_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/precious").write_text("mine")
    data = Data(path=str(tmp_path / "set"), synthetic=SETTINGS, **COUNTS)
    with pytest.raises(UserError, match=r"found a folder without manifest\.json"):
        prepare(data, silent)
    assert (tmp_path / "set/precious").read_text() == "mine"
    assert names_in(tmp_path) == {"set"}


def test_an_empty_folder_and_a_link_to_another_disk_are_drawn_into(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk/set")
    (tmp_path / "empty").mkdir()
    for name in ("empty", "link"):
        prepare(Data(path=str(tmp_path / name), synthetic=SETTINGS, **COUNTS), silent)
        verify(tmp_path / name, decode=True)
    assert (tmp_path / "link").is_symlink()
    assert names_in(tmp_path) == {"disk", "link", "empty"}
    assert names_in(tmp_path / "disk") == {"set"}


@pytest.mark.parametrize(("key", "value"), [("seed", 1), ("max_px", 57)])
def test_a_set_that_was_drawn_otherwise_is_not_taken_for_it(
    tmp_path: Path, key: str, value: int
) -> None:
    data = Data(path=str(tmp_path / "set"), synthetic=SETTINGS, **COUNTS)
    prepare(data, silent)
    other = data.model_copy(update={"synthetic": SETTINGS.model_copy(update={key: value})})
    found = getattr(SETTINGS, key)
    told = rf"/set: drawn with data.synthetic.{key} = {value} expected, found {found}; give data"
    with pytest.raises(UserError, match=told):
        prepare(other, silent)


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
    assert line.endswith(", which draws it\n")
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
    verify(folder, decode=True)


def test_an_interrupted_drawing_leaves_nothing(tmp_path: Path) -> None:
    first = started_drawing(tmp_path / "set")
    assert wait_until(lambda: any(name.startswith(".set.images-") for name in names_in(tmp_path)))
    first.send_signal(signal.SIGINT)
    first.communicate()
    assert first.returncode != 0
    assert names_in(tmp_path) == set()
