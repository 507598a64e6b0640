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

from rn50.config.leaves import Origin
from rn50.config.schema import Data, Synthetic
from rn50.data.dataset import verify
from rn50.data.describe import describe_data
from rn50.data.pack import pack_images
from rn50.data.prepare import prepare
from rn50.data.synthetic import make_images, wnid
from tests.conftest import refused
from tests.data.test_pack import names_in

SETTINGS = Synthetic(classes=2, train_samples=4, eval_samples=2)
COUNTS: dict[str, Any] = {"classes": 2, "train_samples": 4, "eval_samples": 2}


def silent(name: str) -> Callable[[int, int], None]:
    return lambda done, total: None


def set_in(folder: Path, **settings: Any) -> Data:
    return Data(
        **({"path": str(folder / "set"), "synthetic": SETTINGS} | COUNTS | settings)
    )


# --- nothing is drawn but what the config says ---------------------------------------------------


@pytest.mark.parametrize(
    ("there", "settings", "told"),
    [
        (
            "",
            {"synthetic": None},
            "mine.yaml:3: data.path: .* at .*/set, found none.*`rn50",
        ),
        ("set", {}, "found something else"),
        ("set/precious", {}, "found something else"),
        ("set/train.rec", {}, "im2rec.*`rn50 data pack IMAGES ANOTHER_FOLDER`"),
        ("set", {"path": "{}/set/below"}, "/set/below: cannot create: "),
        ("", {"classes": 3}, "data.classes: 2 expected, as in data.synthetic, found 3"),
    ],
)
def test_what_is_not_to_be_drawn_is_named_and_what_is_there_left(
    tmp_path: Path, there: str, settings: dict[str, Any], told: str
) -> None:
    if there:
        (tmp_path / there).parent.mkdir(exist_ok=True)
        (tmp_path / there).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    if "path" in settings:
        settings = {"path": settings["path"].format(tmp_path)}
    with refused(told) as caught:
        prepare(
            set_in(tmp_path, **settings), silent, {"data.path": Origin("mine.yaml", 3)}
        )
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_set_of_another_user_is_a_matter_of_permission(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        for act in (
            lambda: prepare(set_in(tmp_path), silent),
            lambda: verify(tmp_path / "set"),
        ):
            with refused(r"/set: a packed .* expected: Permission denied$"):
                act()
    finally:
        os.seteuid(user)


def test_an_empty_folder_and_a_link_to_another_disk_are_drawn_into(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk/set")
    (tmp_path / "empty").mkdir()
    for name in ("empty", "link"):
        prepare(set_in(tmp_path, path=str(tmp_path / name)), silent)
        verify(tmp_path / name)
    assert (tmp_path / "link").is_symlink()
    assert names_in(tmp_path) == {"disk", "link", "empty"}
    assert names_in(tmp_path / "disk") == {"set"}


def test_what_is_drawn_is_marked_and_not_taken_for_a_set_drawn_otherwise(
    tmp_path: Path,
) -> None:
    data = set_in(tmp_path)
    found = prepare(data, silent)
    assert found.drawn == SETTINGS
    words = f"DRAWN textures ({tmp_path}/set), 4 training and 2 evaluation images of 2 classes"
    assert describe_data(data, found) == describe_data(data) == words
    assert describe_data(Data()).startswith(
        "datasets/imagenet, 1,281,167 training and 50,000 "
    )
    other = data.model_copy(
        update={"synthetic": SETTINGS.model_copy(update={"seed": 1})}
    )
    with refused(r"/set: drawn with .*seed=1 expected, found .*seed=0"):
        prepare(other, silent)


def test_a_set_that_was_drawn_and_packed_by_hand_is_known_by_its_classes(
    tmp_path: Path,
) -> None:
    photos = tmp_path / "images"
    make_images(photos, SETTINGS)
    assert pack_images(photos, tmp_path / "drawn").is_drawn
    make_images(
        tmp_path / "many", Synthetic(classes=11, train_samples=11, eval_samples=1)
    )
    assert pack_images(tmp_path / "many", tmp_path / "of_many").is_drawn
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
from rn50.data import lock
from rn50.data.prepare import prepare
lock.STALE_S = 5.0
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


@pytest.mark.parametrize("killed", [False, True])
def test_the_second_waits_for_the_first_and_draws_only_where_that_is_killed(
    tmp_path: Path, killed: bool
) -> None:
    folder = tmp_path / "set"
    # of one that was killed before
    (tmp_path / ".set.images/images").mkdir(parents=True)
    first = start(folder, "wait")
    assert first.stdout is not None
    assert first.stdout.readline() == "drawing images\n"
    second = start(folder)
    assert second.stderr is not None
    line = second.stderr.readline()
    assert line.startswith(
        f"{folder}: waiting for process {first.pid} on {os.uname().nodename} ("
    )
    assert not folder.exists()
    if killed:
        first.send_signal(signal.SIGKILL)
    out, _ = first.communicate("")
    assert (first.returncode, out) == (
        (-9, "") if killed else (0, "packing records\nready\n")
    )
    out, err = second.communicate("")
    drawing = "drawing images\npacking records\n" if killed else ""
    # waiting: told once
    assert (second.returncode, out, err) == (
        0,
        f"{drawing}ready\n",
        "",
    )
    assert names_in(tmp_path) == {"set"}
    assert verify(folder).drawn == SETTINGS
