"""Folders of photos as people have them are packed, or refused by what lies there, with advice that
leads to the set that is meant."""

import io
import tarfile
import unicodedata
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rn50.config.manifest import load_manifest
from rn50.data.pack import pack_images
from tests.conftest import refused
from tests.data.images import noise

TRAIN_TAR = "ILSVRC2012_img_train.tar"
FLAT_VAL = "val/ILSVRC2012_val_00000001.JPEG"
NFC, NFD = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


def of_classes(*folders: str) -> list[str]:
    return [
        f"{folder}/{name}/{n}.jpg" for folder in folders for name in "ab" for n in "12"
    ]


def classes(*names: str) -> list[str]:
    return [f"{name}/{n}.jpg" for name in names for n in "12"]


LAYOUTS = {
    # spellings of splits
    "capitals": (
        of_classes("Train", "Val"),
        r"Train/, Val/.* rename .*\(Train to train, Val to",
    ),
    "other words": (
        of_classes("training", "validation"),
        "training to train, validation to val",
    ),
    "in words": (of_classes("training_set", "test_set"), "training_set to train"),
    "twice": (
        of_classes("seg_train/seg_train", "seg_test/seg_test"),
        "seg_train to train",
    ),
    "split among classes": (
        classes("a", "b", "Test"),
        "Test to test.* what is a class",
    ),
    "most are splits": (
        [*classes("train2017", "val2017"), "notes/x.json"],
        "val2017 to val",
    ),
    "val twice": (
        of_classes("train", "val/val"),
        "move what .*/photos/val/val holds up into",
    ),
    "val without train": (classes("a", "val/a"), "found 2 folders .* what is a class"),
    "splits in classes": (
        classes("a/train", "a/test", "b/train"),
        "folders of classes",
    ),
    "splits in train": (
        of_classes("train/train", "train/val"),
        "pack .*/photos/train, which",
    ),
    "train is a class": (
        classes("a", "b", "train"),
        "found a/, b/ beside it; .* what is a class",
    ),
    "other splits beside": (
        of_classes("train", "validation", "test"),
        r"2 folders \(test/, validation/\).*--hold-out 0.2$",
    ),
    # one folder too high, or too deep
    "one up": (
        of_classes("photos/train", "photos/val"),
        "pack .*/photos/photos, which has a tr",
    ),
    "classes one up": (
        of_classes("photos"),
        "in photos/ 2 folders .* pack .*/photos/photos",
    ),
    "Kaggle": (
        [
            *classes("ILSVRC/Data/CLS-LOC/train/n01"),
            "LOC_val_solution.csv",
            "ILSVRC/Other/x.xml",
        ],
        r"1 list \(LOC_val_solution.csv\).* pack .*/ILSVRC/Data/CLS-LOC, which",
    ),
    "flat val": (
        [*of_classes("train"), FLAT_VAL, "LOC_val_solution.csv"],
        r"devkit_t12.* \(lists of val: .*LOC_val_solution.csv\).* found 1 photo",
    ),
    "tiny-imagenet": (
        [*classes("train/a", "train/b", "val/images"), "val/annotations.txt"],
        r"val: classes of train expected, found 1 folder \(images/\)",
    ),
    "other classes": (
        of_classes("train") + classes(*(f"val/u{number}" for number in range(12))),
        r"found 12 folders \(u0/, u1/, u10/, \.\.\.\)",
    ),
    # what is not photos in folders
    "nothing": ([], "photos: a folder expected .* found none"),
    "flat": (
        ["cat.0.jpg", "dog.0.jpg"],
        r"2 photos \(cat.0.jpg, .*; sort .* cat.0.jpg into cat/",
    ),
    "flat train": (
        ["train/cat.0.jpg", "test/1.jpg"],
        r"train: .* 1 photo \(cat.0.jpg\); sort",
    ),
    "one class": (
        classes("a"),
        r"two classes expected, found 1 folder \(a/\); in a/ 2 photos",
    ),
    "empty classes": (
        ["a/x.txt", "b/.x", *classes("c")],
        r"photos/a: .* in b, expected, found 1 list \(x.txt\)",
    ),
    "webp": (
        ["a/1.webp", "b/2.webp"],
        r"found 1 unsupported image \(1.webp\); convert",
    ),
    "list of labels": (
        ["train.csv", *classes("images")],
        "1 list .* in images/ 2 photos .* sort",
    ),
    "tars of classes": (
        ["train/n01.tar", "train/n02.tar", FLAT_VAL],
        "2 tars .*; unpack the tar",
    ),
    "half unpacked": (
        [*of_classes("train"), "train/c.tar"],
        r"1 tar \(c.tar\); unpack the tar",
    ),
    "TFRecords": (
        ["train/train-00000-of-01024", FLAT_VAL],
        "1 TFRecord .*; write their images",
    ),
    "more TFRecords": (["a.tfrecord", "b.tfrecord"], "2 TFRecords"),
    "WebDataset": (["train-000000.tar"], "1 tar .* WebDataset's shards"),
    "parquet": (
        ["README.md", "data/0.parquet"],
        r"in data/ 1 data file \(0.parquet\); write",
    ),
    "pickles": (["data_batch_1", "test_batch"], "2 data files"),
    "archives": (["train.zip"], r"1 archive \(train.zip\); unpack it"),
    "compressed": ([f"{TRAIN_TAR}.gz", FLAT_VAL], "1 compressed tar .*; decompress it"),
    # names that look alike
    "forms of an accent": (classes(NFC, NFD), r"'cafe\\u0301' and 'caf\\xe9'"),
    "case": (classes("cat", "Cat"), "'Cat' and 'cat'"),
    "blank": (classes("cat", "cat "), "'cat' and 'cat '"),
    "dot": (classes("cat", "cat."), "'cat' and 'cat.'"),
    "another blank": (classes("a cat", "a\u00a0cat"), r"'a cat' and 'a\\xa0cat'"),
    "no width": (classes("cat", "c\u200bat"), r"'cat' and 'c\\u200bat'"),
    "variation": (classes("cat", "cat\ufe0f"), r"'cat' and 'cat\\ufe0f'"),
    "Cyrillic": (classes("cat", "c\u0430t"), r"'cat' and 'c\\u0430t'"),
    "in val": (
        of_classes("train") + classes("val/a", "val/A"),
        "val: class names .*'A' and 'a'",
    ),
}


def write(folder: Path, names: Iterable[str]) -> Path:
    """Files of these names; photos differ."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise(number) if name.endswith(("jpg", "JPEG")) else b"")
    return folder


@pytest.mark.parametrize(("names", "message"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_folder_that_is_not_packed_is_described_before_advice(
    tmp_path: Path, names: list[str], message: str
) -> None:
    """Whatever options the first error leads to."""
    images = write(tmp_path / "photos", names)
    with refused(message):
        pack_images(images, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    splits = ("capitals", "other words", "in words", "one up", "splits in classes")
    if names in [LAYOUTS[name][0] for name in splits]:
        with refused(message):
            pack_images(images, tmp_path / "out", hold_out=0.2, recursive=True)


def tar_of(*names: str, mode: Any = "w") -> bytes:
    """A tar with photos, or with tars of two photos, under these names."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name in names:
            content = noise(zlib.crc32(name.encode()))
            if name.endswith(".tar"):
                content = tar_of(f"{name}_1.JPEG", f"{name}_2.JPEG")
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar_of("n01.tar", "._n01.tar", "n02.tar"), None),
        (tar_of("n01.tar", "n02.tar", mode="w:gz"), "compressed by gzip: decompress"),
        (tar_of("n01.tar", "n02.tar", mode="w:xz"), "compressed by xz: decompress"),
        (
            tar_of("train/a/1.JPEG", "train/b/2.JPEG"),
            r"2 photos \(train/a/1.JPEG.*; unpack it",
        ),
        (tar_of("n01.tar"), r"two classes expected, found 1 tar \(n01.tar\)"),
        (tar_of("n01.tar.gz"), r"1 compressed tar \(n01.tar.gz\)"),
        (
            tar_of("n01.tar", "n02.tar")[:5000],
            "a tar at byte .* unexpected end of data",
        ),
    ],
)
def test_tars_are_packed_or_described(
    tmp_path: Path, content: bytes, message: str | None
) -> None:
    images = write(tmp_path / "photos", [])
    images.mkdir()
    (images / TRAIN_TAR).write_bytes(content)
    with refused(message):
        pack_images(images, tmp_path / "out", hold_out=0.2)


def test_a_class_of_val_may_be_spelt_otherwise_and_copies_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = classes(f"train/{NFC}", "train/dog", f"val/{NFD}", "val/Dog ")
    images = write(tmp_path / "photos", names)
    photo = (images / "train/dog/1.jpg").read_bytes()
    for name in (f"train/{NFC}/copy.jpg", "val/Dog /copy.jpg"):
        (images / name).write_bytes(photo)
    pack_images(images, tmp_path / "out")
    manifest = load_manifest(tmp_path / "out")
    assert manifest.classes == [NFC, "dog"]
    assert manifest.splits["val"].class_counts == [2, 3]
    first, second, *copies = capsys.readouterr().err.splitlines()
    assert first.endswith("val: 'Dog ' is taken as 'dog' of train")
    assert second.endswith(r"val: 'cafe\u0301' is taken as 'caf\xe9' of train")
    of_val, in_two = copies
    assert "photos of val that are in train as well: 1 (val/Dog /copy.jpg is " in of_val
    assert "photos that lie in more than one class: " in in_two
