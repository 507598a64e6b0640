"""Images drawn, and images packed: any layout, bad files among them, killed and continued."""

import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from rn50.config.manifest import load_manifest
from rn50.config.schema import Synthetic
from rn50.data import recordio
from rn50.data.dataset import load_table, verify
from rn50.data.listing import SourceImage
from rn50.data.pack import pack_images
from rn50.data.stage import stage
from rn50.data.synthetic import make_images
from rn50.host.errors import UserError
from tests.conftest import invoke, refused, write_file
from tests.data.images import contents, encode, image_folder, names_in, noise
from tests.waiting import finished

SETTINGS = Synthetic(train_samples=60, eval_samples=20, min_px=40, max_px=56, seed=3)
INTERRUPT = Mock(side_effect=KeyboardInterrupt)


def records_of(folder: Path, split: str) -> list[tuple[str, bytes]]:
    """The photo's name and the image of each record of a packed set, whose list and table fit."""
    classes = load_manifest(folder).classes
    lines = (folder / f"{split}.lst").read_text().splitlines()
    rows = load_table(folder, split).tolist()
    records = []
    with (folder / f"{split}.rec").open("rb") as file:
        for number, (line, row) in enumerate(zip(lines, rows, strict=True)):
            index, listed_label, photo = line.split("\t")
            offset, length, label, height, width = row
            assert (int(index), int(listed_label)) == (number, label)
            assert photo.startswith(classes[label].replace("\n", r"\n"))
            label_of_record, image = recordio.read(file, offset, "x")
            assert label_of_record == label
            assert len(image) == length
            assert Image.open(io.BytesIO(image)).size == (width, height)
            records.append((photo, image))
        assert file.read() == b""
    return records


def photos_of(folder: Path, split: str) -> list[str]:
    """The names in a set's list, sorted."""
    return sorted(photo for photo, _ in records_of(folder, split))


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """Images of two classes, of which b has none in val."""
    counts = {"train/a": 3, "train/b": 1, "val/a": 2}
    return image_folder(tmp_path / "images", counts)


@pytest.fixture(scope="module")
def drawn_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drawn") / "images"
    make_images(out, SETTINGS)
    return out


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 18 parts, with a CMYK JPEG and a PNG in disguise, and what they pack to."""
    folder = tmp_path_factory.mktemp("many")
    images = image_folder(
        folder / "images", {"train/a": 900, "train/b": 900, "val/a": 150, "val/b": 150}
    )
    (images / "train/a/png.JPEG").write_bytes(noise(1, "PNG"))
    cmyk = Image.new("CMYK", (20, 16))
    (images / "train/b/cmyk.JPEG").write_bytes(encode(cmyk))
    pack_images(images, folder / "set", processes=1)
    return folder


# --- what is drawn, what is packed ---------------------------------------------------------------


def times_in(folder: Path) -> dict[Path, int]:
    """When each image below a folder was written."""
    return {
        path.relative_to(folder): path.stat().st_mtime_ns
        for path in folder.rglob("*.JPEG")
    }


def test_drawing_continues_after_a_kill_with_the_same_bytes(
    drawn_images: Path, tmp_path: Path
) -> None:
    """What is whole is not drawn again; the image under way is."""
    out = tmp_path / "images"
    stop_after = 30

    def stop(done: int, _: int) -> None:
        if done == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_images(out, SETTINGS, stop)
    assert names_in(tmp_path) == {".images.partial"}
    partial = tmp_path / ".images.partial"
    times_before = times_in(partial)
    assert len(times_before) == stop_after
    torn, *_ = times_before
    del times_before[torn]
    (partial / torn).write_bytes((partial / torn).read_bytes()[:-1])
    make_images(out, SETTINGS)
    assert names_in(tmp_path) == {"images"}
    files = contents(out)
    assert files == contents(drawn_images)
    assert len(set(files.values())) == 80  # all differ
    assert times_in(out).items() >= times_before.items()


def test_drawing_with_other_settings_begins_anew(tmp_path: Path) -> None:
    out = tmp_path / "images"
    images = tmp_path / ".images.partial"
    reseeded = SETTINGS.model_copy(update={"seed": 1})
    contents_of = []
    for settings in (SETTINGS, reseeded):
        with pytest.raises(KeyboardInterrupt):
            make_images(out, settings, INTERRUPT)
        (image,) = images.rglob("*.JPEG")
        contents_of.append(image.read_bytes())
    assert len(set(contents_of)) == 2


def test_the_packed_set_holds_every_original_byte(
    drawn_images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "set"
    manifest = pack_images(drawn_images, out)
    assert manifest.classes == [f"n{90_000_000 + label}" for label in range(10)]
    for split, of_class in (("train", 6), ("val", 2)):
        images = contents(drawn_images / split)
        assert sorted(records_of(out, split)) == sorted(images.items())
        summary = manifest.splits[split]
        assert summary.samples == 10 * of_class
        assert summary.class_counts == [of_class] * 10
    for name, file in manifest.files.items():
        content = (out / name).read_bytes()
        assert file.bytes == len(content)
        digest = hashlib.sha256(content)
        assert file.sha256 == digest.hexdigest()
    assert names_in(out) == {"manifest.json", *manifest.files}
    labels = load_table(out, "train")["label"].tolist()
    assert labels != sorted(labels)  # shuffled
    offsets = load_table(out, "val")["offset"]
    lines = (out / "val.idx").read_text().splitlines()
    assert lines == [f"{n}\t{offset}" for n, offset in enumerate(offsets)]
    assert verify(out) == manifest


TURNED = Image.Exif()
TURNED[0x0112] = 6  # rotate by 90 degrees on display
SIZE = (20, 16)
AS_THEY_ARE = {
    "a/png.JPEG": noise(7, "PNG"),  # ImageNet has one
    "a/upper.JPG": encode(Image.new("RGB", (40, 30)), exif=TURNED),
    "a/opaque.png": encode(Image.new("RGBA", SIZE, "red"), "PNG"),
    "a/deep.png": encode(Image.new("I;16", SIZE), "PNG", transparency=0),
}
TRANSPARENT = {
    "b/colours.png": encode(Image.new("RGBA", SIZE), "PNG"),
    "b/palette.png": encode(Image.new("P", SIZE), "PNG", transparency=0),
}


def test_what_is_accepted(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A PNG under a .JPEG name, any case of suffix, an EXIF orientation (which does not change the
    size in the table), transparent pixels (packed as white), a class without val images, an empty
    folder as the target, a target whose parents do not exist. What is not packed is listed by
    kind: a Mac's hidden twins of photos, formats that are not read, links to folders, photos of
    no class.
    """
    for photo, image in (AS_THEY_ARE | TRANSPARENT).items():
        (sound / "train" / photo).write_bytes(image)
    for name in ("train/a/more", "train/.thumbnails", "test"):
        (sound / name).mkdir()
    for name in (
        "train/a/readme.txt",
        "train/a/1.webp",
        "train/a/._0.JPEG",
        "train/a/more/notes.TXT",
        "train/loose.jpg",
        "val/loose.jpg",
    ):
        (sound / name).write_text("not an image")
    (sound / "train/a/again").symlink_to("..")
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "new/deep/out"):
        manifest = pack_images(sound, out)
        assert manifest.classes == ["a", "b"]
        assert manifest.splits["train"].class_counts == [7, 3]
        assert manifest.splits["val"].class_counts == [2, 0]
        records = dict(records_of(out, "train"))
        assert records.items() >= AS_THEY_ARE.items()
        for photo in TRANSPARENT:
            pixels = Image.open(io.BytesIO(records[photo])).convert("RGB")
            assert pixels.getcolors() == [(320, (255, 255, 255))]
    line, *_ = capsys.readouterr().err.splitlines()
    assert line == (
        f"{sound}: not packed: 2 hidden files (.thumbnails, a/._0.JPEG), "
        "1 unsupported image (a/1.webp), 1 other file (a/again), "
        "2 lists (a/more/notes.TXT, a/readme.txt), 2 photos (loose.jpg, loose.jpg), "
        "1 folder (test/)"
    )


def test_folders_below_a_class_are_refused_or_packed(tmp_path: Path) -> None:
    counts = {"train/a": 1, "train/a/2023/may": 3, "train/b/x": 4, "val/a/y": 1}
    images = image_folder(tmp_path / "images", counts)
    out = tmp_path / "out"
    message = r"a/2023 \(images: 3\), b/x \(images: 4\); --recursive .* classes a, b$"
    with refused(message):
        pack_images(images, out)
    pack_images(images, out, recursive=True)
    assert photos_of(out, "train") == [
        "a/0.JPEG",
        *(f"a/2023/may/{n}.JPEG" for n in range(3)),
        *(f"b/x/{n}.JPEG" for n in range(4)),
    ]
    assert photos_of(out, "val") == ["a/y/0.JPEG"]
    shutil.rmtree(images / "train")
    image_folder(images, {"train/a": 1, "train/b": 1})
    with refused(r"/val: .* a/y \(images: 1\)"):
        pack_images(images, tmp_path / "again")


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
    assert photos_of(tmp_path / "out", "train") == names


# --- the layouts ---------------------------------------------------------------------------------


def write_tar(path: Path, files: list[Path]) -> None:
    with tarfile.open(path, "w") as tar:
        for file in files:
            tar.add(file, file.name)


def write_devkit(folder: Path, number_of: dict[str, int], truth: list[int]) -> None:
    """ImageNet's development kit in little: its two files as they are in the published tar."""
    fields = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)]
    rows = [(number, name, "word") for name, number in number_of.items()]
    synsets = np.array(rows, np.dtype(fields))
    synsets = synsets.reshape(-1, 1)
    data = folder / "ILSVRC2012_devkit_t12/data"
    data.mkdir(parents=True)
    savemat(data / "meta.mat", {"synsets": synsets}, do_compression=True)
    lines = "".join(f"{number}\n" for number in truth)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text(lines)
    with tarfile.open(folder / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        tar.add(data.parent, data.parent.name)
    shutil.rmtree(data.parent)


def test_every_layout_packs_to_the_same_bytes(tmp_path: Path) -> None:
    """Class folders; ImageNet's tar files with the development kit; the same with val unpacked."""
    images = tmp_path / "folders"
    counts = {"train/n01": 5, "train/n02": 4, "val/n01": 3, "val/n02": 2}
    folders = [*Counter(counts).elements()]
    for number, folder in enumerate(folders, 1):
        split, wnid = folder.split("/")
        stem = "ILSVRC2012_val" if split == "val" else wnid
        write_file(images / folder / f"{stem}_{number:08d}.JPEG", noise(number))
    pack_images(images, tmp_path / "a")
    packed = contents(tmp_path / "a")
    tars = tmp_path / "tars"
    tars.mkdir()
    classes = [tmp_path / "n01.tar", tmp_path / "n02.tar"]
    for path in classes:
        folder_of_class = images / "train" / path.stem
        write_tar(path, [*folder_of_class.iterdir()])
    write_tar(tars / "ILSVRC2012_img_train.tar", classes)
    val = sorted(images.glob("val/*/*.JPEG"), key=lambda path: path.name)
    write_tar(tars / "ILSVRC2012_img_val.tar", val)
    with refused(r"val: a folder for each class, or .*devkit.*tar.gz .* 5 photos"):
        pack_images(tars, tmp_path / "b")
    number_of = {"n02": 1, "n01": 2, "n00": 3}
    truth = [3] * len(folders)
    for path in val:
        number = int(path.stem[-8:])
        truth[number - 1] = number_of[path.parent.name]
    write_devkit(tars, number_of, truth)
    pack_images(tars, tmp_path / "b")
    assert contents(tmp_path / "b") == packed
    (tars / "val").mkdir()
    for path in val:
        shutil.copy(path, tars / "val")
    pack_images(tars, tmp_path / "c")
    assert contents(tmp_path / "c") == packed
    kit = tars / "ILSVRC2012_devkit_t12.tar.gz"
    with tarfile.open(kit) as tar:
        tar.extractall(tars / "ILSVRC2012_devkit_t12", filter="data")
    kit.unlink()
    pack_images(tars, tmp_path / "unpacked")
    assert contents(tmp_path / "unpacked") == packed
    shutil.rmtree(tars / "ILSVRC2012_devkit_t12")
    for wrong_truth, wnid in (([3] * 14, "n00"), ([1], "none")):
        write_devkit(tars, number_of, wrong_truth)
        with refused(rf"a class of train expected, found {wnid}"):
            pack_images(tars, tmp_path / "d")
    (tars / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(b"no tar")
    with refused(r"tar.gz: ImageNet's development kit expected: "):
        pack_images(tars, tmp_path / "d")


def test_a_share_of_every_class_is_held_out(tmp_path: Path) -> None:
    images = tmp_path / "photos"
    names = Counter(cat=20, dog=11, one=1, rare=2)
    for number, name in enumerate(names.elements()):
        write_file(images / name / f"{number}.jpg", noise(number))

    def split(share: float, seed: int = 0) -> list[set[tuple[str, bytes]]]:
        out = tmp_path / f"{share}_{seed}"
        pack_images(images, out, hold_out=share, shuffle_seed=seed)
        return [{*records_of(out, split)} for split in ("train", "val")]

    train, val = split(0.2)
    splits = load_manifest(tmp_path / "0.2_0").splits
    assert splits["train"].class_counts == [16, 9, 1, 1]
    assert splits["val"].class_counts == [4, 2, 0, 1]
    packed = {image for _, image in train | val}
    assert packed == {*map(noise, range(34))}
    assert split(0.2, seed=1)[1] != val
    assert val < split(0.4)[1]
    for name in ("cat", "dog"):
        shutil.rmtree(images / name)
    (images / "rare/32.jpg").unlink()
    with refused(r"--hold-out: .*photos: a class of two images expected"):
        split(0.3)


# --- bad files -----------------------------------------------------------------------------------


def spoil(images: Path, count: int) -> list[str]:
    """Bad files in both splits; their paths."""
    paths = []
    for number in range(count):
        split = ("train", "val")[number % 2]
        path = images / split / f"a/bad{number:03}.jpg"
        path.write_bytes(noise(1, "GIF"))
        paths.append(str(path))
    return sorted(paths)


def test_every_bad_file_of_both_splits_is_named_in_one_go(
    sound: Path, tmp_path: Path
) -> None:
    bad = spoil(sound, 31)
    with pytest.raises(UserError) as caught:
        pack_images(sound, tmp_path / "out", skip_bad=3)
    *lines, last = str(caught.value).splitlines()
    named = [line.partition(": ")[0] for line in lines]
    assert named == bad[:20]
    assert re.match(r"31 bad .* 37 images, .* 3 of --skip-bad.*--skip-bad 31\b", last)
    assert not (tmp_path / "out").exists()


def test_leaving_them_out_continues_with_what_is_packed_and_mended_files_are_read_again(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    bad = spoil(sound, 4)
    with refused("of --skip-bad"):
        pack_images(sound, out, skip_bad=3)
    shutil.copytree(tmp_path / ".out.partial", tmp_path / ".mended.partial")
    command = ("data", "pack", sound, out, "--skip-bad", 4)
    with monkeypatch.context() as patched:
        # the workers are forks of this process
        patched.setattr(SourceImage, "read", None)
        printed = invoke(*command).stdout
    assert "4 bad files left out" in printed
    assert "val has no image of 1 of 2 classes: b\n" in printed
    manifest = verify(out)
    assert sorted(file.path for file in manifest.odd_files) == bad
    for photo, image in records_of(out, "train"):
        assert (sound / "train" / photo).read_bytes() == image
    for path in bad:
        Path(path).write_bytes(noise(5))
    manifest = pack_images(sound, tmp_path / "mended")
    assert manifest.counts == (2, 6, 4)
    assert manifest.odd_files == []
    assert names_in(tmp_path) == {"images", "out", "mended"}


@pytest.mark.parametrize(("where", "named"), [("train/b", "b"), ("val/a", "val")])
def test_a_class_of_nothing_but_bad_files_is_named(
    sound: Path, tmp_path: Path, where: str, named: str
) -> None:
    for path in (sound / where).iterdir():
        path.write_text("bad")
    with refused(rf"/images: {named}: no image that is not bad"):
        pack_images(sound, tmp_path / "out", skip_bad=2)


# --- interrupted, killed, full -------------------------------------------------------------------


def test_a_target_is_left_alone_named_where_it_cannot_be_made_and_whole_or_absent(
    tmp_path: Path, drawn_images: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").write_text("mine")
    (tmp_path / "file").write_text("mine too")
    for out, message in (
        (tmp_path / "out", "a folder that does not exist yet expected"),
        (tmp_path / "file", "a folder that does not exist yet expected"),
        (tmp_path / "file/out", "cannot create: "),
    ):
        with refused(rf"^{out}: {message}"):
            pack_images(drawn_images, out)
    assert contents(tmp_path) == {"out/precious": b"mine", "file": b"mine too"}

    with pytest.raises(KeyboardInterrupt):
        pack_images(drawn_images, tmp_path / "new", progress=INTERRUPT)
    assert names_in(tmp_path) == {"out", "file", ".new.partial"}


def test_images_of_another_folder_are_packed_anew(
    drawn_images: Path, tmp_path: Path
) -> None:
    """They have the same names, as copies of another size do; a link may lead to either."""
    small = tmp_path / "small"
    shutil.copytree(drawn_images, small)
    for path in small.glob("*/*/*"):
        path.write_bytes(noise(1))
    images = tmp_path / "images"
    out = tmp_path / "out"
    images.symlink_to(drawn_images)
    with pytest.raises(KeyboardInterrupt):
        pack_images(images, out, progress=INTERRUPT)
    images.unlink()
    images.symlink_to(small)
    pack_images(images, out)
    packed = {image for _, image in records_of(out, "train")}
    assert packed == {noise(1)}


PACK = """
import os, signal, sys
from pathlib import Path
from rn50.host import lock
from rn50.data.pack import pack_images
lock.BEAT_S = 0.1
lock.STALE_S = 1.0
def progress(done, total):
    if done >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
pack_images(Path(sys.argv[1]), Path(sys.argv[2]), processes=3, progress=progress)
"""


def test_killed_again_and_again_it_ends_with_the_same_bytes(
    many: Path, tmp_path: Path
) -> None:
    """kill -9 of the parent alone, when so many images are packed; workers must follow it."""
    out = tmp_path / "set"
    command = [sys.executable, "-c", PACK, str(many / "images"), str(out)]
    for killed_at in ("128", "900", "2000"):
        done = subprocess.run([*command, killed_at], check=False)
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
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    mounted = finished(mount)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")

    def pack() -> None:
        pack_images(many / "images", disk / "set", processes=2)

    try:
        with refused(r"set.*: cannot write: No space left on device"):
            pack()
        with refused("cannot write: No space left on device"):
            stage(many / "set", disk / "staged")
        assert names_in(disk) == {".set.partial"}
        larger = ["mount", "-o", "remount,size=20m", str(disk)]
        subprocess.run(larger, check=True)
        pack()
        assert contents(disk / "set") == contents(many / "set")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
