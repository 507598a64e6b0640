import hashlib
import io
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from rn50.config.errors import UserError
from rn50.config.manifest import load_manifest
from rn50.config.schema import Synthetic
from rn50.data import recordio, synthetic
from rn50.data.dataset import load_table, verify
from rn50.data.jpeg import read_header
from rn50.data.pack import pack_images
from rn50.data.stage import remove, stage

SETTINGS = Synthetic(classes=10, train_samples=60, eval_samples=20, min_px=40, max_px=56, seed=3)


def encode(image: Image.Image, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def noise(number: int, kind: str = "JPEG", size: tuple[int, int] = (20, 16)) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return encode(Image.fromarray(pixels), kind)


def image_folder(folder: Path, counts: dict[str, int]) -> Path:
    """Images in ImageNet's layout; `counts` maps "train/class" to a number of images."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            (folder / name / f"{number}.JPEG").write_bytes(noise(number))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drawn") / "images"
    assert synthetic.make_images(out, SETTINGS) == 80
    return out


# --- synthetic ----------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_bytes(drawn: Path, tmp_path: Path) -> None:
    synthetic.make_images(tmp_path / "again", SETTINGS)
    assert contents(tmp_path / "again") == contents(drawn)


def test_the_files_are_jpeg_of_varied_sizes_and_no_two_alike(drawn: Path) -> None:
    jpegs = set(contents(drawn).values())
    images = [Image.open(io.BytesIO(jpeg)) for jpeg in jpegs]
    assert len(images) == 80 and {(image.format, image.mode) for image in images} == {
        ("JPEG", "RGB")
    }
    sizes = {image.size for image in images}
    edges = {edge for size in sizes for edge in size}
    assert len(sizes) > 40 and 40 <= min(edges) <= 45 and 51 <= max(edges) <= 56


def test_the_smallest_side_above_the_largest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"min_px: at most max_px \(40\) expected, found 50"):
        synthetic.make_images(tmp_path / "x", Synthetic(min_px=50, max_px=40))
    assert not names_in(tmp_path)


# --- packing ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "set"
    pack_images(drawn, out)
    return out


def test_the_packed_set_holds_every_original_byte(drawn: Path, packed: Path) -> None:
    classes = load_manifest(packed).classes
    for split in ("train", "val"):
        found = []
        with (packed / f"{split}.rec").open("rb") as file:
            for number, row in enumerate(load_table(packed, split)):
                record = recordio.read(file, int(row["offset"]), "x")
                assert record.id == number
                assert record.label == row["label"]
                assert row["length"] == len(record.image)
                assert Image.open(io.BytesIO(record.image)).size == (row["width"], row["height"])
                found.append((classes[int(record.label)], record.image))
            assert file.read() == b""
        expected = [(path.parent.name, path.read_bytes()) for path in (drawn / split).glob("*/*")]
        assert sorted(found) == sorted(expected)


def test_the_manifest_counts_and_signs_every_file(packed: Path) -> None:
    manifest = load_manifest(packed)
    assert manifest.classes == [f"n{90_000_000 + label}" for label in range(10)]
    for split, count in (("train", 60), ("val", 20)):
        assert manifest.splits[split].samples == count
        assert manifest.splits[split].class_counts == [count // 10] * 10
        for suffix in ("rec", "idx", "npy"):
            content = (packed / f"{split}.{suffix}").read_bytes()
            signed = manifest.splits[split].files[suffix]
            assert signed.bytes == len(content)
            assert signed.sha256 == hashlib.sha256(content).hexdigest()
    assert names_in(packed) == {"manifest.json"} | {
        f"{split}.{suffix}" for split in ("train", "val") for suffix in ("rec", "idx", "npy")
    }
    assert verify(packed) == manifest


def test_records_are_shuffled_by_the_seed(drawn: Path, packed: Path, tmp_path: Path) -> None:
    pack_images(drawn, tmp_path / "other", shuffle_seed=1)
    labels, others = (
        load_table(folder, "train")["label"].tolist() for folder in (packed, tmp_path / "other")
    )
    assert labels != sorted(labels) == sorted(others) and others != labels


def test_what_is_accepted(tmp_path: Path) -> None:
    """A PNG under a .JPEG name (ImageNet has one), any case of suffix, a class without val images,
    an empty folder as the target, a target whose parents do not exist; other files are left out.
    """
    images = image_folder(tmp_path / "images", {"train/b": 1, "train/a": 1, "val/a": 1})
    png = noise(7, "PNG", (31, 17))
    (images / "train/a/png.JPEG").write_bytes(png)
    (images / "train/a/upper.JPG").write_bytes(noise(8))
    (images / "train/a/readme.txt").write_text("not an image")
    (images / "readme.txt").write_text("neither a split")
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "new/deep/out"):
        manifest = pack_images(images, out)
        assert manifest.classes == ["a", "b"]
        assert manifest.splits["train"].class_counts == [3, 1]
        assert manifest.splits["val"].class_counts == [1, 0]
        rows = load_table(out, "train")
        (row,) = rows[(rows["height"] == 17) & (rows["width"] == 31)]
        with (out / "train.rec").open("rb") as file:
            assert recordio.read(file, int(row["offset"]), "x").image == png


NO_IMAGE = "train/a/9.JPEG: a JPEG or PNG image expected"


def image(content: bytes) -> Callable[[Path], object]:
    return lambda images: (images / "train/a/9.JPEG").write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (image(b"hello world"), f"{NO_IMAGE}, found b'hello wo' at its start"),
        (image(b""), f"{NO_IMAGE}, found an empty file"),
        (image(noise(1)[:20]), NO_IMAGE),
        (image(noise(1, "PNG", (70_000, 1))), f"{NO_IMAGE}, found 70000 x 1 pixels"),
        (lambda i: (i / "train/a/9.JPEG").mkdir(), "train/a/9.JPEG: cannot read: Is a directory"),
        (
            lambda i: (i / "train/a/9.JPEG").symlink_to("nowhere"),
            "train/a/9.JPEG: cannot read: No such file",
        ),
        (lambda i: (i / "val").rename(i / "test"), "val: a folder expected"),
        (lambda i: (i / "train").rename(i / "t"), "train: a folder expected"),
        (lambda i: (i / "val/a/0.JPEG").unlink(), "val: images .* expected, found none"),
    ],
)
def test_a_bad_image_folder_is_named_and_nothing_is_left(
    tmp_path: Path, spoil: Callable[[Path], object], told: str
) -> None:
    images = image_folder(tmp_path / "images", {"train/a": 2, "val/a": 1})
    spoil(images)
    with pytest.raises(UserError, match=rf"images/{told}") as caught:
        pack_images(images, tmp_path / "out")
    kept = {".out.partial"} if "--skip-bad" in str(caught.value) else set()
    assert names_in(tmp_path) == {"images"} | kept


def write(out: Path, images: Path, kind: str) -> None:
    if kind == "make":
        synthetic.make_images(out, SETTINGS)
    else:
        pack_images(images, out)


@pytest.mark.parametrize("kind", ["make", "pack"])
def test_an_existing_target_is_left_alone(tmp_path: Path, drawn: Path, kind: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").write_text("mine")
    (tmp_path / "file").write_text("mine too")
    for name in ("out", "file"):
        with pytest.raises(UserError, match=rf"/{name}: a folder that does not exist yet expected"):
            write(tmp_path / name, drawn, kind)
    assert contents(tmp_path) == {"out/precious": b"mine", "file": b"mine too"}
    assert names_in(tmp_path) == {"out", "file"}


@pytest.mark.parametrize("kind", ["make", "pack"])
def test_a_target_that_cannot_be_made_is_named(tmp_path: Path, drawn: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file/out", Path("/proc/rn50/out")):
        with pytest.raises(UserError, match=rf"^{out}: cannot (create|write): "):
            write(out, drawn, kind)
    assert names_in(tmp_path) == {"file"}


@pytest.mark.parametrize("kind", ["make", "pack"])
def test_an_interrupted_write_leaves_no_output(tmp_path: Path, drawn: Path, kind: str) -> None:
    def interrupt(done: int, total: int) -> None:
        if done >= total // 2:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        if kind == "make":
            synthetic.make_images(out, SETTINGS, interrupt)
        else:
            pack_images(drawn, out, progress=interrupt)
    assert names_in(tmp_path) == (set() if kind == "make" else {".out.partial"})


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 30 chunks, with a CMYK JPEG and a PNG in disguise, and what they pack to."""
    folder = tmp_path_factory.mktemp("many")
    images = image_folder(folder / "images", {"train/a": 1, "train/b": 1, "val/a": 1, "val/b": 1})
    jpegs = [noise(number) for number in range(20)]
    for number in range(3000):
        (images / f"train/{'ab'[number % 2]}/{number}.JPEG").write_bytes(jpegs[number % 20])
    for number in range(500):
        (images / f"val/{'ab'[number % 2]}/{number}.JPEG").write_bytes(jpegs[number % 20])
    (images / "train/a/png.JPEG").write_bytes(noise(1, "PNG"))
    (images / "train/b/cmyk.JPEG").write_bytes(encode(Image.new("CMYK", (20, 16))))
    pack_images(images, folder / "set", processes=1)
    return folder


PACK = """
import os, signal, sys
from pathlib import Path
from rn50.data.pack import pack_images
from rn50.data.stage import remove, stage
def progress(done, total):
    if done >= int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
pack_images(Path(sys.argv[1]), Path(sys.argv[2]), processes=int(sys.argv[3]), progress=progress)
"""


@pytest.mark.parametrize("processes", [1, 3])
def test_killed_again_and_again_it_ends_with_the_same_bytes(
    many: Path, tmp_path: Path, processes: int
) -> None:
    """kill -9 of the parent alone, when so many images are packed; workers must follow it."""
    out = tmp_path / "set"
    command = [sys.executable, "-c", PACK, str(many / "images"), str(out), str(processes)]
    for wanted in (128, 700, 1500, 2900, 3100, 3300):
        done = subprocess.run([*command, str(wanted)], check=False)
        assert done.returncode == -signal.SIGKILL
        assert not out.exists()
    subprocess.run([*command, "1000000"], check=True)
    assert contents(out) == contents(many / "set")
    assert names_in(tmp_path) == {"set"}


def test_odd_files_are_kept_and_named(many: Path) -> None:
    named = {Path(odd.path).name: odd.found for odd in load_manifest(many / "set").odd_files}
    assert named == {"png.JPEG": "PNG", "cmyk.JPEG": "CMYK JPEG"}
    assert all(odd.kept for odd in load_manifest(many / "set").odd_files)


def test_every_layout_packs_to_the_same_bytes(tmp_path: Path) -> None:
    """Folders; a tar for each class and a flat val; a tar of tars and a tar, with Kaggle's CSV or
    ImageNet's development kit."""
    counts = {"train/n01": 5, "train/n02": 4, "val/n01": 3, "val/n02": 2}
    images = image_folder(tmp_path / "folders", dict.fromkeys(counts, 0))
    number = 0
    for name, count in counts.items():
        for _ in range(count):
            stem = name[6:] if name.startswith("train") else "ILSVRC2012_val"
            (images / name / f"{stem}_{number:08d}.JPEG").write_bytes(noise(number))
            number += 1
    pack_images(images, tmp_path / "a")
    tars, nested = tmp_path / "tars", tmp_path / "nested"
    (tars / "train").mkdir(parents=True)
    (tars / "val").mkdir()
    nested.mkdir()
    with tarfile.open(nested / "ILSVRC2012_img_train.tar", "w") as outer:
        for name in ("n01", "n02"):
            with tarfile.open(tars / f"train/{name}.tar", "w") as tar:
                for path in (images / "train" / name).iterdir():
                    tar.add(path, path.name)
            outer.add(tars / f"train/{name}.tar", f"{name}.tar")
    val = sorted((images / "val").rglob("*.JPEG"), key=lambda path: path.name)
    with tarfile.open(nested / "ILSVRC2012_img_val.tar", "w") as tar:
        for path in val:
            shutil.copy(path, tars / "val")
            tar.add(path, path.name)
    (tars / "val_labels.txt").write_text("\n".join(path.parent.name for path in val) + "\n")
    rows = [f"{path.stem},{path.parent.name} 1 2 3 4" for path in val]
    (nested / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows]))
    for layout in (tars, nested):
        pack_images(layout, tmp_path / f"{layout.name}-set")
        assert contents(tmp_path / f"{layout.name}-set") == contents(tmp_path / "a")
    (nested / "LOC_val_solution.csv").unlink()
    number_of = {"n02": 1, "n01": 2, "n00": 3}
    of_image = {int(path.stem[-8:]): number_of[path.parent.name] for path in val}
    truth = [of_image.get(number, 3) for number in range(1, max(of_image) + 1)]
    write_devkit(nested, number_of, truth)
    pack_images(nested, tmp_path / "by-devkit")
    assert contents(tmp_path / "by-devkit") == contents(tmp_path / "a")
    write_devkit(nested, number_of, [3] * len(truth))
    with pytest.raises(UserError, match=r"a class of train/ expected, found n00"):
        pack_images(nested, tmp_path / "b")
    write_devkit(nested, number_of, [1])
    with pytest.raises(UserError, match=r"expected, found those of 1 images"):
        pack_images(nested, tmp_path / "b")
    (tars / "val_labels.txt").write_text("n01\nn07\n")
    with pytest.raises(UserError, match=r"val_labels.txt:2: a class of train/.*found 'n07'"):
        pack_images(tars, tmp_path / "b")


def write_devkit(folder: Path, number_of: dict[str, int], truth: list[int]) -> None:
    """ImageNet's development kit in little: its two files as they are in the published tar."""
    kind = np.dtype([("ILSVRC2012_ID", object), ("WNID", object), ("words", object)])
    rows = [(number, name, "word") for name, number in number_of.items()]
    data = folder / "ILSVRC2012_devkit_t12/data"
    data.mkdir(parents=True)
    savemat(
        data / "meta.mat", {"synsets": np.array(rows, kind).reshape(-1, 1)}, do_compression=True
    )
    lines = "".join(f"{number}\n" for number in truth)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text(lines)
    with tarfile.open(folder / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        tar.add(data.parent, data.parent.name)
    shutil.rmtree(data.parent)


def test_a_full_disk_is_named_and_packing_goes_on_when_there_is_room(
    many: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    try:
        (disk / "earlier").write_text("precious")
        with pytest.raises(UserError, match=r"set.*: cannot write: No space left on device"):
            pack_images(many / "images", disk / "set", processes=2)
        assert names_in(disk) == {"earlier", ".set.partial"}
        with pytest.raises(UserError, match="cannot write: No space left on device"):
            stage(many / "set", disk / "staged")
        assert not (disk / "staged").exists()
        remove(disk / "staged")
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        pack_images(many / "images", disk / "set", processes=2)
        assert contents(disk / "set") == contents(many / "set")
        assert (disk / "earlier").read_text() == "precious"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_sizes_are_those_stored_whatever_exif_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees on display
    out = io.BytesIO()
    Image.new("RGB", (40, 30)).save(out, "JPEG", exif=exif)
    assert read_header(out.getvalue()) == (30, 40, "")
