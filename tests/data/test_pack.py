"""Images drawn, and images packed: any layout, bad files among them, killed and continued."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from rn50.config.errors import UserError
from rn50.config.manifest import load_manifest
from rn50.config.schema import Synthetic
from rn50.data import recordio, synthetic
from rn50.data.dataset import load_table, verify
from rn50.data.listing import SourceImage
from rn50.data.pack import pack_images
from rn50.data.stage import stage
from tests.conftest import Rn50, refused

SETTINGS = Synthetic(
    classes=10, train_samples=60, eval_samples=20, min_px=40, max_px=56, seed=3
)


def encode(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def noise(number: int, kind: str = "JPEG", size: tuple[int, int] = (20, 16)) -> bytes:
    pixels = np.random.default_rng(number).integers(
        0, 256, (size[1], size[0], 3), np.uint8
    )
    return encode(Image.fromarray(pixels), kind)


def image_folder(folder: Path, counts: dict[str, int]) -> Path:
    """Images in ImageNet's layout; `counts` maps "train/class" to a number of images."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (folder / name / f"{number}.JPEG").write_bytes(noise(number))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def records_of(folder: Path, split: str) -> list[tuple[str, bytes]]:
    """(class, image) of each record of a packed set."""
    classes = load_manifest(folder).classes
    found = []
    with (folder / f"{split}.rec").open("rb") as file:
        for number, row in enumerate(load_table(folder, split)):
            record = recordio.read(file, int(row["offset"]), "x")
            assert record.id >= number
            assert record.label == row["label"]
            assert row["length"] == len(record.image)
            assert Image.open(io.BytesIO(record.image)).size == (
                row["width"],
                row["height"],
            )
            found.append((classes[int(record.label)], record.image))
        assert file.read() == b""
    return found


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drawn") / "images"
    synthetic.make_images(out, SETTINGS)
    return out


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 30 parts, with a CMYK JPEG and a PNG in disguise, and what they pack to."""
    folder = tmp_path_factory.mktemp("many")
    images = image_folder(
        folder / "images", {"train/a": 1, "train/b": 1, "val/a": 1, "val/b": 1}
    )
    jpegs = [noise(number) for number in range(20)]
    for split, count in (("train", 3000), ("val", 500)):
        for number in range(count):
            path = images / split / "ab"[number % 2] / f"{number}.JPEG"
            path.write_bytes(jpegs[number % 20])
    (images / "train/a/png.JPEG").write_bytes(noise(1, "PNG"))
    (images / "train/b/cmyk.JPEG").write_bytes(encode(Image.new("CMYK", (20, 16))))
    pack_images(images, folder / "set", processes=1)
    return folder


# --- what is drawn, what is packed ---------------------------------------------------------------


def test_drawn_files_are_jpeg_of_varied_sizes_and_the_same_for_a_seed(
    drawn: Path, tmp_path: Path
) -> None:
    synthetic.make_images(tmp_path / "again", SETTINGS)
    assert contents(tmp_path / "again") == contents(drawn)
    jpegs = set(contents(drawn).values())
    images = [Image.open(io.BytesIO(jpeg)) for jpeg in jpegs]
    assert {(image.format, image.mode) for image in images} == {("JPEG", "RGB")}
    sizes = {image.size for image in images}
    edges = {edge for size in sizes for edge in size}
    assert len(images) == 80
    assert len(sizes) > 40
    assert 40 <= min(edges) <= 45
    assert 51 <= max(edges) <= 56


def test_the_packed_set_holds_every_original_byte(drawn: Path, tmp_path: Path) -> None:
    packed = tmp_path / "set"
    manifest = pack_images(drawn, packed)
    assert manifest.classes == [f"n{90_000_000 + label}" for label in range(10)]
    for split, count in (("train", 60), ("val", 20)):
        expected = [
            (path.parent.name, path.read_bytes())
            for path in (drawn / split).glob("*/*")
        ]
        assert sorted(records_of(packed, split)) == sorted(expected)
        check_names(packed, drawn, split)
        assert manifest.splits[split].samples == count
        assert manifest.splits[split].class_counts == [count // 10] * 10
    for name, signed in manifest.files.items():
        content = (packed / name).read_bytes()
        assert signed.bytes == len(content)
        assert signed.sha256 == hashlib.sha256(content).hexdigest()
    assert names_in(packed) == {"manifest.json", *manifest.files}
    labels = load_table(packed, "train")["label"].tolist()
    assert labels != sorted(labels)  # shuffled
    offsets = load_table(packed, "val")["offset"]
    assert (packed / "val.idx").read_text() == "".join(
        f"{n}\t{at}\n" for n, at in enumerate(offsets)
    )
    assert verify(packed) == manifest


def test_what_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A PNG under a .JPEG name (ImageNet has one), any case of suffix, an EXIF orientation (which
    does not change the size in the table), a class without val images, an empty folder as the
    target, a target whose parents do not exist. What is not packed is listed by kind: a Mac's
    hidden twins of photos, formats that are not read, links to folders, photos of no class.
    """
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees on display
    images = image_folder(tmp_path / "images", {"train/b": 1, "train/a": 1, "val/a": 1})
    png = noise(7, "PNG", (31, 17))
    (images / "train/a/png.JPEG").write_bytes(png)
    turned = encode(Image.new("RGB", (40, 30)), exif=exif)
    (images / "train/a/upper.JPG").write_bytes(turned)
    for name in ("readme.txt", "1.webp", "._0.JPEG"):
        (images / "train/a" / name).write_text("not an image")
    (images / "train/a/more").mkdir()
    (images / "train/a/more/notes.TXT").write_text("not an image")
    (images / "train/a/again").symlink_to("..")
    (images / "train/.thumbnails").mkdir()
    (images / "train/loose.jpg").write_bytes(png)
    (images / "val/loose.jpg").write_bytes(png)
    (images / "test").mkdir()
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "new/deep/out"):
        manifest = pack_images(images, out)
        assert manifest.classes == ["a", "b"]
        assert manifest.splits["train"].class_counts == [3, 1]
        assert manifest.splits["val"].class_counts == [1, 0]
        assert {("a", png), ("a", turned)} < {*records_of(out, "train")}
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"{images}: not packed: ")
        for kind in (
            "1 .webp (a/1.webp)",
            "2 .txt (a/more/notes.TXT, a/readme.txt)",
            "1 hidden (a/._0.JPEG)",
            "1 without suffix (a/again)",
            "3 beside the class folders (.thumbnails, loose.jpg, loose.jpg)",
            "1 beside train (test/)",
        ):
            assert kind in line


def test_folders_below_a_class_are_refused_or_packed(tmp_path: Path) -> None:
    counts = {
        "train/a": 2,
        "train/a/2023/may": 3,
        "train/a/2024": 1,
        "train/b/x": 4,
        "val/a/y": 1,
    }
    images = image_folder(tmp_path / "images", counts)
    with pytest.raises(UserError) as caught:
        pack_images(images, tmp_path / "out")
    for named in (
        "a/2023 (images: 3)",
        "a/2024 (images: 1)",
        "b/x (images: 4)",
        "--recursive",
    ):
        assert named in str(caught.value)
    manifest = pack_images(images, tmp_path / "out", recursive=True)
    assert manifest.splits["train"].class_counts == [6, 4]
    assert sorted(photos_of(tmp_path / "out", "train"))[:4] == [
        "a/0.JPEG",
        "a/1.JPEG",
        "a/2023/may/0.JPEG",
        "a/2023/may/1.JPEG",
    ]
    assert photos_of(tmp_path / "out", "val") == ["a/y/0.JPEG"]
    for name in ("2023", "2024"):
        shutil.rmtree(images / "train/a" / name)
    shutil.rmtree(images / "train/b/x")
    (images / "train/b/0.JPEG").write_bytes(noise(0))
    with refused(r"/val: .* a/y \(images: 1\)"):
        pack_images(images, tmp_path / "again")


def check_names(packed: Path, images: Path, split: str) -> None:
    """Every name of a set's list is that of the photo in its record."""
    photos = [(images / split / name).read_bytes() for name in photos_of(packed, split)]
    assert photos == [image for _, image in records_of(packed, split)]


def photos_of(folder: Path, split: str) -> list[str]:
    """The names in a set's list, whose numbers and labels are those of its records."""
    lines = (folder / f"{split}.lst").read_text().splitlines()
    labels = load_table(folder, split)["label"].tolist()
    rows = [line.split("\t") for line in lines]
    assert [(int(number), int(label)) for number, label, _ in rows] == [
        *enumerate(labels)
    ]
    return [name for _, _, name in rows]


@pytest.mark.parametrize(
    ("kind", "options", "on_white"),
    [
        ("RGBA", {}, True),
        ("LA", {}, True),
        ("P", {"transparency": 0}, True),
        ("RGB", {"transparency": (0, 0, 0)}, True),
        ("RGB", {}, False),
        ("I;16", {}, False),
    ],
)
def test_transparent_pixels_are_packed_as_white(
    tmp_path: Path, kind: str, options: dict[str, Any], on_white: bool
) -> None:
    """All other bytes are packed as they are, those of a PNG whose pixels are all opaque too."""
    images = image_folder(tmp_path / "images", {"train/a": 0, "train/b": 1, "val/a": 1})
    png = encode(Image.new(kind, (20, 16)), "PNG", **options)
    (images / "train/a/0.png").write_bytes(png)
    opaque = encode(Image.new("RGBA", (20, 16), "red"), "PNG")
    (images / "train/a/opaque.png").write_bytes(opaque)
    pack_images(images, tmp_path / "out")
    packed = {
        image for name, image in records_of(tmp_path / "out", "train") if name == "a"
    }
    assert opaque in packed
    assert (png in packed) == (not on_white)
    (image,) = packed - {opaque}
    if on_white:
        assert Image.open(io.BytesIO(image)).convert("RGB").getcolors() == [
            (320, (255,) * 3)
        ]


def test_names_of_any_bytes_are_packed_and_read_again(tmp_path: Path) -> None:
    strange = os.fsdecode(b"K\xe4fer")
    counts = {f"train/{strange}": 2, f"val/{strange}": 1, "train/two\nlines": 1}
    images = image_folder(tmp_path / "images", counts)
    (images / "train" / strange / f"{strange}.jpg").write_text("bad")
    pack_images(images, tmp_path / "out", skip_bad=1)
    manifest = verify(tmp_path / "out")
    assert manifest.classes == [r"K\xe4fer", "two\nlines"]
    assert manifest.odd_files[0].path.endswith(r"/K\xe4fer/K\xe4fer.jpg")
    names = [r"K\xe4fer/0.JPEG", r"K\xe4fer/1.JPEG", r"two\nlines/0.JPEG"]
    assert sorted(photos_of(tmp_path / "out", "train")) == names


# --- the layouts ---------------------------------------------------------------------------------


def test_every_layout_packs_to_the_same_bytes(tmp_path: Path) -> None:
    """Class folders; ImageNet's tar files with the development kit; the same with val unpacked."""
    counts = {"train/n01": 5, "train/n02": 4, "val/n01": 3, "val/n02": 2}
    images = image_folder(tmp_path / "folders", dict.fromkeys(counts, 0))
    number = 0
    for name, count in counts.items():
        for _ in range(count):
            number += 1
            stem = name[6:] if name.startswith("train") else "ILSVRC2012_val"
            (images / name / f"{stem}_{number:08d}.JPEG").write_bytes(noise(number))
    pack_images(images, tmp_path / "a")
    tars = tmp_path / "tars"
    tars.mkdir()
    with tarfile.open(tars / "ILSVRC2012_img_train.tar", "w") as outer:
        for name in ("n01", "n02"):
            with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
                for path in (images / "train" / name).iterdir():
                    tar.add(path, path.name)
            outer.add(tmp_path / f"{name}.tar", f"{name}.tar")
    val = sorted((images / "val").rglob("*.JPEG"), key=lambda path: path.name)
    with tarfile.open(tars / "ILSVRC2012_img_val.tar", "w") as tar:
        for path in val:
            tar.add(path, path.name)
    with refused(r"val: a folder for each class, or .*devkit.*tar.gz, exp"):
        pack_images(tars, tmp_path / "b")
    number_of = {"n02": 1, "n01": 2, "n00": 3}
    of_image = {int(path.stem[-8:]): number_of[path.parent.name] for path in val}
    truth = [of_image.get(number, 3) for number in range(1, max(of_image) + 1)]
    write_devkit(tars, number_of, truth)
    pack_images(tars, tmp_path / "b")
    assert contents(tmp_path / "b") == contents(tmp_path / "a")
    (tars / "val").mkdir()
    for path in val:
        shutil.copy(path, tars / "val")
    pack_images(tars, tmp_path / "c")
    assert contents(tmp_path / "c") == contents(tmp_path / "a")
    for other, found in (([3] * len(truth), "n00"), ([1], "none")):
        write_devkit(tars, number_of, other)
        with refused(rf"a class of train expected, found {found}"):
            pack_images(tars, tmp_path / "d")
    (tars / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(b"no tar")
    with refused(r"tar.gz: ImageNet's development kit expected: "):
        pack_images(tars, tmp_path / "d")


def write_devkit(folder: Path, number_of: dict[str, int], truth: list[int]) -> None:
    """ImageNet's development kit in little: its two files as they are in the published tar."""
    kind = np.dtype([("ILSVRC2012_ID", object), ("WNID", object), ("words", object)])
    rows = [(number, name, "word") for name, number in number_of.items()]
    data = folder / "ILSVRC2012_devkit_t12/data"
    data.mkdir(parents=True)
    savemat(
        data / "meta.mat",
        {"synsets": np.array(rows, kind).reshape(-1, 1)},
        do_compression=True,
    )
    lines = "".join(f"{number}\n" for number in truth)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text(lines)
    with tarfile.open(folder / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        tar.add(data.parent, data.parent.name)
    shutil.rmtree(data.parent)


@pytest.mark.parametrize("layout", ["", "train/"])
def test_a_share_of_every_class_is_held_out(tmp_path: Path, layout: str) -> None:
    images = tmp_path / "photos"
    numbers = {
        "cat": range(20),
        "dog": range(20, 31),
        "rare": range(31, 33),
        "one": range(33, 34),
    }
    for name, images_of in numbers.items():
        (images / layout / name).mkdir(parents=True)
        for number in images_of:
            (images / layout / name / f"{number}.jpg").write_bytes(noise(number))

    def split(
        name: str, hold_out: float, seed: int = 0
    ) -> list[set[tuple[str, bytes]]]:
        pack_images(
            images,
            tmp_path / name,
            hold_out=hold_out,
            shuffle_seed=seed,
        )
        return [set(records_of(tmp_path / name, split)) for split in ("train", "val")]

    first = split("a", 0.2)
    counts = {
        n: s.class_counts for n, s in load_manifest(tmp_path / "a").splits.items()
    }
    # cat, dog, one, rare
    assert counts == {
        "train": [16, 9, 1, 1],
        "val": [4, 2, 0, 1],
    }
    every = {noise(number) for number in range(34)}
    assert {image for _, image in first[0] | first[1]} == every
    assert split("b", 0.2) == first
    assert split("c", 0.2, seed=1)[1] != first[1]
    assert first[1] < split("d", 0.4)[1]
    for name in ("cat", "dog"):
        shutil.rmtree(images / layout / name)
    (images / layout / "rare/31.jpg").unlink()
    with refused(r"--hold-out: .*photos: a class of two images expected"):
        split("e", 0.2)


EMPTY = {f"train/e{number:02}": 0 for number in range(12)}
UNKNOWN = {f"val/u{number:02}": 0 for number in range(12)}
GOOD = {"train/a": 2, "train/b": 1, "val/a": 1}


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({}, "photos: a folder expected"),
        ({"": 3}, "photos: a folder for each class expected, found none"),
        ({"a": 0, "b": 3}, "photos: a: images .* expected, found none"),
        ({"a": 3}, "photos: folders of two classes expected, found a alone"),
        (GOOD | {"val/a": 0, "validation/a": 1, "test/a": 1}, "photos/val: images"),
        (
            {"train/a": 2, "train/b": 1, "validation/a": 1, "test/a": 1},
            "photos/val: a folder expected .* test/, validation/.*--hold-out 0.2$",
        ),
        ({"a": 1, "val/a": 1}, "photos/train: a folder expected .*, found none"),
        (
            GOOD | EMPTY,
            "photos: e00, .*e09, and 2 more: images .* expected, found none",
        ),
        (
            GOOD | UNKNOWN,
            "photos/val: classes of train expected, found u00, .*u09, and 2 more",
        ),
    ],
)
def test_folders_of_another_layout_get_an_answer(
    tmp_path: Path, counts: dict[str, int], told: str
) -> None:
    images = image_folder(tmp_path / "photos", counts)
    with refused(told):
        pack_images(images, tmp_path / "out")
    if "val/a" in counts:
        with refused(r"photos"):
            pack_images(images, tmp_path / "out", hold_out=0.2)
    assert names_in(tmp_path) <= {"photos"}


# --- bad files -----------------------------------------------------------------------------------


SOUND = {"train/a": 3, "train/b": 1, "val/a": 2}


def with_thumbnail(jpeg: bytes) -> bytes:
    """A JPEG with another, whole one in its EXIF segment, as cameras write it."""
    exif = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + noise(2)
    return jpeg[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + jpeg[2:]


def spoil(images: Path, count: int) -> list[str]:
    """Bad files of all kinds, in both splits; their paths."""
    kinds = [
        b"",
        b"hello world",
        noise(1)[:-2],
        noise(2)[: len(noise(2)) // 2],
        noise(1, "GIF"),
    ]
    paths = []
    for number in range(count):
        split = ("train", "val")[number % 2]
        paths.append(images / f"{split}/a/bad{number:03}.jpg")
        paths[-1].write_bytes(kinds[number % len(kinds)])
    return sorted(map(str, paths))


def test_every_bad_file_of_both_splits_is_named_in_one_go(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images", SOUND)
    bad = spoil(images, 31)
    with pytest.raises(UserError) as caught:
        pack_images(images, tmp_path / "out", skip_bad=3)
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines[:-1]] == bad[:20]
    assert re.match(
        r"31 bad .* 37 images, .* 3 of --skip-bad.*--skip-bad 31\b", lines[-1]
    )
    assert not (tmp_path / "out").exists()


def test_leaving_them_out_continues_with_what_is_packed_and_mended_files_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = image_folder(tmp_path / "images", SOUND)
    bad = spoil(images, 4)
    with refused("of --skip-bad"):
        pack_images(images, tmp_path / "out", skip_bad=3)
    shutil.copytree(tmp_path / ".out.partial", tmp_path / ".mended.partial")
    with monkeypatch.context() as patched:
        # the workers are forks of this process
        patched.setattr(SourceImage, "read", None)
        manifest = pack_images(images, tmp_path / "out", skip_bad=4)
    assert sorted(file.path for file in manifest.odd_files) == bad
    verify(tmp_path / "out")
    check_names(tmp_path / "out", images, "train")
    for path in bad:
        Path(path).write_bytes(noise(5))
    manifest = pack_images(images, tmp_path / "mended")
    assert (manifest.splits["train"].samples, manifest.splits["val"].samples) == (6, 4)
    assert manifest.odd_files == []
    assert names_in(tmp_path) == {"images", "out", "mended"}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"hello world", "b'hello wo' at its start"),
        (b"", "b'' at its start"),
        (noise(1)[:20], ""),
        (noise(1)[:-2], "truncated"),
        (with_thumbnail(noise(1)[:-40]), "truncated"),
        (with_thumbnail(noise(1)), None),
        (encode(Image.new("L", (90, 90)), progressive=True)[:-60], "truncated"),
        (noise(1, "PNG")[:-12], "cut off"),
        (noise(1, "PNG") + bytes(5000), None),
        (noise(1, "PNG", (70_000, 1)), "70000 x 1 pixels"),
        (
            encode(Image.new("1", (10_000, 9_000)), "PNG"),
            "10000 x 9000 pixels, .*89,478,485",
        ),
        (os.mkfifo, "a regular file expected"),
        (lambda path: path.symlink_to("nowhere"), "No such file"),
        (noise(1) + bytes(5000), None),
    ],
)
def test_what_does_not_decode_is_bad(
    tmp_path: Path, content: bytes | Callable[[Path], object], found: str | None
) -> None:
    """Nor is what is cut off taken, which ends a training: Pillow decodes a PNG without its end."""
    images = image_folder(tmp_path / "images", SOUND)
    path = images / "train/a/9.jpg"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    manifest = pack_images(images, tmp_path / "out", skip_bad=1)
    named = [f"{file.path}: {file.found}" for file in manifest.odd_files]
    assert manifest.splits["train"].samples == (4 if named else 5)
    assert bool(named) == (found is not None)
    assert all(
        re.match(f"{path}: a JPEG or PNG image expected, .*{found}", line)
        for line in named
    )


@pytest.mark.parametrize("where", ["train/b", "val/a"])
def test_a_class_of_nothing_but_bad_files_is_named(tmp_path: Path, where: str) -> None:
    images = image_folder(tmp_path / "images", {"train/a": 2, "train/b": 1, "val/a": 1})
    (images / where / "0.JPEG").write_text("bad")
    told = rf"/images: {'b' if where == 'train/b' else 'val'}: no image that is not bad"
    with refused(told):
        pack_images(images, tmp_path / "out", skip_bad=1)


# --- interrupted, killed, full -------------------------------------------------------------------


def test_a_target_is_left_alone_named_where_it_cannot_be_made_and_whole_or_absent(
    tmp_path: Path, drawn: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").write_text("mine")
    (tmp_path / "file").write_text("mine too")
    for out, told in (
        (tmp_path / "out", "a folder that does not exist yet expected"),
        (tmp_path / "file", "a folder that does not exist yet expected"),
        (tmp_path / "file/out", "cannot create: "),
        (Path("/proc/rn50/out"), "cannot create: "),
    ):
        with refused(rf"^{out}: {told}"):
            pack_images(drawn, out)
    assert contents(tmp_path) == {"out/precious": b"mine", "file": b"mine too"}

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_images(drawn, tmp_path / "new", progress=interrupt)
    assert names_in(tmp_path) == {"out", "file", ".new.partial"}


PACK = """
import os, signal, sys
from pathlib import Path
from rn50.data import lock
from rn50.data.pack import pack_images
lock.BEAT_S = 0.1
lock.STALE_S = 1.0
def progress(done, total):
    if done >= int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
pack_images(Path(sys.argv[1]), Path(sys.argv[2]), processes=int(sys.argv[3]), progress=progress)
"""


def test_killed_again_and_again_it_ends_with_the_same_bytes(
    many: Path, tmp_path: Path
) -> None:
    """kill -9 of the parent alone, when so many images are packed; workers must follow it."""
    out = tmp_path / "set"
    command = [sys.executable, "-c", PACK, str(many / "images"), str(out), "3"]
    for wanted in (128, 1500, 3300):
        done = subprocess.run([*command, str(wanted)], check=False)
        assert done.returncode == -signal.SIGKILL
        assert not out.exists()
    subprocess.run([*command, "1000000"], check=True)
    assert contents(out) == contents(many / "set")
    assert names_in(tmp_path) == {"set"}


def test_a_full_disk_is_named_and_packing_goes_on_when_there_is_room(
    many: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    try:
        (disk / "earlier").write_text("precious")
        with refused(r"set.*: cannot write: No space left on device"):
            pack_images(many / "images", disk / "set", processes=2)
        assert names_in(disk) == {"earlier", ".set.partial"}
        with refused("cannot write: No space left on device"):
            stage(many / "set", disk / "staged")
        assert names_in(disk) == {"earlier", ".set.partial"}
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        pack_images(many / "images", disk / "set", processes=2)
        assert contents(disk / "set") == contents(many / "set")
        assert (disk / "earlier").read_text() == "precious"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_bad_files_are_left_out_and_a_spoilt_set_is_refused_by_the_command(
    tmp_path: Path, rn50: Rn50
) -> None:
    images = image_folder(tmp_path / "images", SOUND)
    spoil(images, 1)
    out = tmp_path / "mine"
    done = rn50(
        "data",
        "pack",
        str(images),
        str(out),
        "--skip-bad",
        "1",
    )
    assert done.returncode == 0
    assert "1 bad files left out" in done.stdout
    assert load_manifest(out).splits["train"].class_counts == [3, 1]
    (out / "train.idx").write_text("")
    assert "train.idx" in rn50.error("data", "verify", str(out))
