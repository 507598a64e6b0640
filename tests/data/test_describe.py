"""The words for a set, and the mark of a drawn one in its manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.config.manifest import File, Manifest, Split
from rn50.config.schema import Data, Synthetic
from rn50.data.describe import describe_data
from rn50.data.pack import pack_images
from rn50.data.prepare import prepare
from rn50.data.synthetic import make_images, wnid

SETTINGS = Synthetic(classes=3, train_samples=12, eval_samples=6, seed=5)
COUNTS = {"classes": 3, "train_samples": 12, "eval_samples": 6}


def silent(name: str) -> Callable[[int, int], None]:
    return lambda done, total: None


def manifest(classes: list[str], train: int, evaluation: int) -> Manifest:
    def split(samples: int) -> Split:
        files = {"rec": File(bytes=0, sha256="0" * 64)}
        return Split(samples=samples, class_counts=[], files=files)

    splits = {"train": split(train), "val": split(evaluation)}
    return Manifest(format="x", classes=classes, shuffle_seed=0, splits=splits)


def test_a_set_is_its_folder_and_its_manifests_counts() -> None:
    held = manifest([f"class{n}" for n in range(20)], 1000, 240)
    told = "datasets/mine, 1,000 training and 240 evaluation images of 20 classes"
    assert describe_data(Data(path="datasets/mine"), held) == told


def test_without_the_set_the_config_counts() -> None:
    told = "datasets/imagenet, 1,281,167 training and 50,000 evaluation images of 1,000 classes"
    assert describe_data(Data()) == told
    drawn = Data(path="datasets/x", synthetic=SETTINGS, **COUNTS)
    told = "DRAWN textures (datasets/x), 12 training and 6 evaluation images of 3 classes"
    assert describe_data(drawn) == told


def test_what_is_drawn_is_marked_and_said_to_be(tmp_path: Path) -> None:
    data = Data(path=str(tmp_path / "set"), synthetic=SETTINGS, **COUNTS)
    found = prepare(data, silent)
    assert found.drawn == SETTINGS
    assert describe_data(data, found).startswith(f"DRAWN textures ({tmp_path}/set), 12 training ")
    make_images(tmp_path / "images", SETTINGS)  # packed by hand: known by its classes
    assert pack_images(tmp_path / "images", tmp_path / "other").is_drawn


@pytest.mark.parametrize(
    ("classes", "drawn"),
    [
        ([wnid(label) for label in range(10)], True),
        ([wnid(0)], True),
        (["n01440764", "n15102894"], False),
        ([wnid(0), "cat"], False),
        ([f"{wnid(0)}0"], False),
        ([], False),
    ],
)
def test_the_classes_that_only_drawing_makes(classes: list[str], drawn: bool) -> None:
    assert manifest(classes, 2, 1).is_drawn is drawn
