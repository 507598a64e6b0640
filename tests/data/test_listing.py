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
from tests.conftest import refused, write_file
from tests.data.images import noise
from tests.waiting import output_of

TRAIN_TAR = "ILSVRC2012_img_train.tar"
NFC, NFD = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


TEXT = Path(__file__).with_name("layouts.txt").read_text()
BLOCKS = map(str.splitlines, TEXT.split("\n\n"))
LAYOUTS = {block[0]: block[1:] for block in BLOCKS if len(block) == 3}
"""The files of a layout and what is said of it, by its name."""
SPLITS = ("capitals", "other words", "in words", "one up", "splits in classes")


def expanded(files: str) -> list[str]:
    """What a shell makes of braces."""
    lines = output_of(["bash", "-c", f"printf '%s\\n' {files}"]).splitlines()
    return [line for line in lines if line]


def write(folder: Path, names: Iterable[str]) -> Path:
    """Files of these names; photos differ."""
    for number, name in enumerate(names):
        is_photo = name.endswith(("jpg", "JPEG"))
        write_file(folder / name, noise(number) if is_photo else b"")
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_that_is_not_packed_is_described_before_advice(
    tmp_path: Path, name: str
) -> None:
    """Whatever options the first error leads to."""
    files, message = LAYOUTS[name]
    images = write(tmp_path / "photos", expanded(files))
    with refused(message):
        pack_images(images, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    if name in SPLITS:
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
    images = tmp_path / "photos"
    write_file(images / TRAIN_TAR, content)
    with refused(message):
        pack_images(images, tmp_path / "out", hold_out=0.2)


def test_a_class_of_val_may_be_spelt_otherwise_and_copies_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = expanded(f"{{train/{{{NFC},dog}},val/{{{NFD},'Dog '}}}}/{{1,2}}.jpg")
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
