"""The set that a config names: drawn where it says so, an error that helps where not, once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rn50.config.leaves import Origin
from rn50.config.schema import Data, Synthetic
from rn50.data.dataset import verify
from rn50.data.describe import describe_data
from rn50.data.pack import pack_images
from rn50.data.prepare import prepare
from rn50.data.synthetic import make_images, wnid
from rn50.host.atomic import _machine
from rn50.host.progress import untracked
from tests.conftest import refused, write_file
from tests.data.images import contents, names_in

COUNTS = {"classes": 2, "train_samples": 4, "eval_samples": 2}
SETTINGS = Synthetic(**COUNTS)


def set_in(folder: Path, **settings: Any) -> Data:
    values = {"path": str(folder / "set"), "synthetic": SETTINGS} | COUNTS
    return Data.model_validate(values | settings)


# --- nothing is drawn but what the config says ---------------------------------------------------


@pytest.mark.parametrize(
    ("existing", "settings", "message"),
    [
        (
            "",
            {"synthetic": None},
            "mine.yaml:3: data.path: .* at .*/set, found none.*`rn50",
        ),
        ("set", {}, "found something else"),
        ("set/train.rec", {}, "im2rec.*`rn50 data pack IMAGES ANOTHER_FOLDER`"),
        ("", {"classes": 3}, "data.classes: 2 expected, as in data.synthetic, found 3"),
    ],
)
def test_what_is_not_to_be_drawn_is_named_and_what_is_there_left(
    tmp_path: Path, existing: str, settings: dict[str, Any], message: str
) -> None:
    if existing:
        write_file(tmp_path / existing, "mine")
    contents_before = contents(tmp_path)
    origins = {"data.path": Origin("mine.yaml", 3)}
    with refused(message) as caught:
        prepare(set_in(tmp_path, **settings), untracked, origins)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == contents_before


def test_a_set_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("/file/set: cannot create: "):
        prepare(set_in(tmp_path / "file"), untracked)


def test_a_set_of_another_user_is_a_matter_of_permission(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        with refused(r"/set: a packed .* expected: Permission denied$"):
            prepare(set_in(tmp_path), untracked)
    finally:
        os.seteuid(user)


def test_an_empty_folder_and_a_link_to_another_disk_are_drawn_into(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk/set")
    (tmp_path / "empty").mkdir()
    for name in ("empty", "link"):
        prepare(set_in(tmp_path, path=str(tmp_path / name)), untracked)
        verify(tmp_path / name)
    assert (tmp_path / "link").is_symlink()
    assert names_in(tmp_path) == {"disk", "link", "empty"}
    assert names_in(tmp_path / "disk") == {"set"}


def test_what_is_drawn_is_marked_and_not_taken_for_a_set_drawn_otherwise(
    tmp_path: Path,
) -> None:
    data = set_in(tmp_path)
    manifest = prepare(data, untracked)
    assert manifest.drawn == SETTINGS
    counts = "4 training and 2 evaluation images of 2 classes"
    description = f"DRAWN textures ({tmp_path}/set), {counts}"
    assert describe_data(data, manifest) == describe_data(data) == description
    imagenet = describe_data(Data())
    assert imagenet.startswith("datasets/imagenet, 1,281,167 training and 50,000 ")
    reseeded = set_in(tmp_path, synthetic=Synthetic(**COUNTS, seed=1))
    with refused(r"/set: drawn with .*seed=1 expected, found .*seed=0"):
        prepare(reseeded, untracked)


def test_a_set_that_was_drawn_and_packed_by_hand_is_known_by_its_classes(
    tmp_path: Path,
) -> None:
    images = tmp_path / "images"
    make_images(images, Synthetic(classes=11, train_samples=11, eval_samples=1))
    assert pack_images(images, tmp_path / "drawn").is_drawn
    for split in ("train", "val"):
        (images / split / wnid(0)).rename(images / split / "cat")
    assert not pack_images(images, tmp_path / "mixed").is_drawn


# --- two at once ----------------------------------------------------------------------------------

PREPARE = """
import sys, time
from pathlib import Path
from rn50.config.schema import Data, Synthetic
from rn50.host import lock
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


def start(folder: Path, *more: str) -> psutil.Popen:
    return psutil.Popen(
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
    (tmp_path / f".set.partial-{_machine()}00000000/images").mkdir(parents=True)
    first = start(folder, "wait")
    assert first.stdout.readline() == "drawing images\n"
    second = start(folder)
    waiting = f"{folder}: waiting for process {first.pid} on {os.uname().nodename} ("
    assert second.stderr.readline().startswith(waiting)
    assert not folder.exists()
    if killed:
        first.kill()
    printed, _ = first.communicate("")
    packing = "packing records\nready\n"
    assert printed == ("" if killed else packing)
    # waiting: told once
    expected = f"drawing images\n{packing}" if killed else "ready\n"
    assert second.communicate("") == (expected, "")
    assert names_in(tmp_path) == {"set"}
    assert verify(folder).drawn == SETTINGS
