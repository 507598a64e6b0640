"""Folders as people have them: photos in class folders, bad files among them, classes missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from rn50.config.errors import UserError
from rn50.config.manifest import load_manifest
from rn50.data.dataset import verify
from rn50.data.listing import Source
from rn50.data.pack import pack_images
from tests.conftest import Rn50
from tests.data.test_synthetic_and_pack import image_folder, names_in, noise


def pack_warned(images: Path, out: Path, **options: object) -> list[str]:
    """Pack; what it warned of."""
    warned: list[str] = []
    pack_images(images, out, warn=warned.append, **options)  # type: ignore[arg-type]
    return warned


def spoil(images: Path, count: int) -> list[str]:
    """Bad files of all kinds, in both splits; their paths."""
    kinds = [b"", b"hello world", noise(1)[:-2], noise(2)[: len(noise(2)) // 2], noise(1, "GIF")]
    paths = []
    for number in range(count):
        split = ("train", "val")[number % 2]
        paths.append(images / f"{split}/a/bad{number:03}.jpg")
        paths[-1].write_bytes(kinds[number % len(kinds)])
    return sorted(map(str, paths))


# --- bad files -----------------------------------------------------------------------------------


def test_every_bad_file_of_both_splits_is_named_in_one_go(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images", {"train/a": 3, "val/a": 2})
    bad = spoil(images, 31)
    with pytest.raises(UserError) as caught:
        pack_images(images, tmp_path / "out", skip_bad=3)
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines[:-1]] == bad[:20]
    assert re.match(r"31 bad .* 36 images, .* 3 of --skip-bad.*--skip-bad 31\b", lines[-1])
    assert not (tmp_path / "out").exists()


def test_leaving_them_out_continues_with_what_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = image_folder(tmp_path / "images", {"train/a": 3, "val/a": 2})
    bad = spoil(images, 4)
    with pytest.raises(UserError, match="of --skip-bad"):
        pack_images(images, tmp_path / "out", skip_bad=3)
    monkeypatch.setattr(Source, "read", None)  # the workers are forks of this process
    manifest = pack_images(images, tmp_path / "out", skip_bad=4)
    assert sorted(file.path for file in manifest.odd_files) == bad
    assert names_in(tmp_path) == {"images", "out"}
    verify(tmp_path / "out")


def test_mended_files_are_read_again(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images", {"train/a": 3, "val/a": 2})
    for path in spoil(images, 2):
        with pytest.raises(UserError, match="of --skip-bad"):
            pack_images(images, tmp_path / "out")
        Path(path).write_bytes(noise(5))
    manifest = pack_images(images, tmp_path / "out")
    assert (manifest.splits["train"].samples, manifest.splits["val"].samples) == (4, 3)
    assert manifest.odd_files == []


@pytest.mark.parametrize(("cut", "kept"), [(-2, False), (-40, False), (None, True)])
def test_a_jpeg_that_is_cut_off_is_bad_and_one_that_only_lacks_its_end_is_kept(
    tmp_path: Path, cut: int | None, kept: bool
) -> None:
    """What Pillow cannot decode to the end DALI refuses in the middle of a training."""
    images = image_folder(tmp_path / "images", {"train/a": 3, "val/a": 2})
    (images / "train/a/9.jpg").write_bytes(noise(1)[:cut] if cut else noise(1) + bytes(5000))
    manifest = pack_images(images, tmp_path / "out", skip_bad=1)
    (odd,) = manifest.odd_files
    assert odd.kept is kept
    assert odd.found == "JPEG without an end marker" if kept else "truncated" in odd.found


def test_a_split_of_nothing_but_bad_files_is_named(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images", {"train/a": 2, "train/b": 0, "val/a": 0, "val/b": 1})
    (images / "train/b/1.jpg").write_text("bad")
    with pytest.raises(UserError, match=r"/images: b: no image that is not bad"):
        pack_images(images, tmp_path / "out", skip_bad=1)
    (images / "val/b/0.JPEG").write_text("bad")
    with pytest.raises(UserError, match=r"/images: val: no image that is not bad"):
        pack_images(images, tmp_path / "other", skip_bad=2)


# --- what lacks, what is passed over -------------------------------------------------------------


def test_classes_that_val_lacks_without_its_bad_files_are_named(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images", {"train/a": 1, "train/b": 1, "val/a": 1, "val/b": 0})
    (images / "val/b/0.jpg").write_text("bad")
    (warned,) = pack_warned(images, tmp_path / "out", skip_bad=1)
    assert warned == "val has no image of 1 of 2 classes: b"


def test_classes_without_images_are_all_named(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images", {"train/a": 1, "val/a": 1})
    for number in range(12):
        (images / f"train/empty{number:02}").mkdir()
        (images / f"val/unknown{number:02}").mkdir()
    with pytest.raises(UserError, match=r"empty00, .*empty09, and 2 more: images .* found none"):
        pack_images(images, tmp_path / "out")
    for number in range(12):
        (images / f"train/empty{number:02}").rmdir()
    with pytest.raises(UserError, match=r"val: classes .* found unknown00, .*09, and 2 more"):
        pack_images(images, tmp_path / "out")


def test_what_is_passed_over_is_counted(tmp_path: Path) -> None:
    """Formats that are not read, a Mac's hidden twins of every photo, folders within a class."""
    images = image_folder(tmp_path / "images", {"train/a": 2, "val/a": 1})
    for name in ("1.webp", "2.WebP", "notes.txt", "._0.JPEG", ".DS_Store", "README"):
        (images / "train/a" / name).write_bytes(b"\0\5\x16\7")
    (images / "train/a/more").mkdir()
    (images / "train/.thumbnails").mkdir()
    (images / "train/loose.jpg").write_bytes(noise(1))
    (images / "val/loose.jpg").write_bytes(noise(1))
    (line,) = pack_warned(images, tmp_path / "out")
    head, _, kinds = line.partition(": not packed: ")
    assert head == str(images)
    assert set(kinds.split(", ")) == {
        "2 hidden",
        "2 .webp",
        "3 outside a class folder",
        "1 .txt",
        "2 without a suffix",
    }
    assert load_manifest(tmp_path / "out").splits["train"].samples == 2


def test_large_photos_are_warned_of(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images", {"train/a": 1, "val/a": 1})
    for split, side in (("train", 1400), ("val", 1450)):
        Image.new("L", (side, side)).save(images / split / "a/large.jpg")
    (images / "train/a/0.JPEG").unlink()
    assert pack_warned(images, tmp_path / "out") == []  # 1.4 megapixels in the mean of three
    (images / "val/a/0.JPEG").unlink()
    (line,) = pack_warned(images, tmp_path / "other")
    assert line.startswith("the mean image has 2.0 megapixels: ")


# --- without a val -------------------------------------------------------------------------------


def packed_names(images: Path, out: Path, **options: object) -> dict[str, list[bytes]]:
    """The image bytes of each split."""
    from rn50.data import recordio
    from rn50.data.dataset import load_table

    pack_images(images, out, **options)  # type: ignore[arg-type]
    found: dict[str, list[bytes]] = {}
    for split in ("train", "val"):
        with (out / f"{split}.rec").open("rb") as file:
            rows = load_table(out, split)
            found[split] = sorted(recordio.read(file, int(r["offset"]), "").image for r in rows)
    return found


@pytest.mark.parametrize("layout", ["", "train/"])
def test_a_share_of_every_class_is_held_out(tmp_path: Path, layout: str) -> None:
    images = tmp_path / "photos"
    numbers = {"cat": range(20), "dog": range(20, 31), "rare": range(31, 33), "one": range(33, 34)}
    for name, images_of in numbers.items():
        (images / layout / name).mkdir(parents=True)
        for number in images_of:
            (images / layout / name / f"{number}.jpg").write_bytes(noise(number))
    warned: list[str] = []
    first = packed_names(images, tmp_path / "a", hold_out=0.2, warn=warned.append)
    counts = {n: s.class_counts for n, s in load_manifest(tmp_path / "a").splits.items()}
    assert counts == {"train": [16, 9, 1, 1], "val": [4, 2, 0, 1]}  # cat, dog, one, rare
    assert warned == ["val has no image of 1 of 4 classes: one"]
    every = sorted(noise(number) for number in range(34))
    assert sorted(first["train"] + first["val"]) == every
    assert packed_names(images, tmp_path / "b", hold_out=0.2) == first
    other = packed_names(images, tmp_path / "c", hold_out=0.2, shuffle_seed=1)
    assert other["val"] != first["val"]
    larger = packed_names(images, tmp_path / "d", hold_out=0.4)
    assert set(first["val"]) < set(larger["val"])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        ({"train/a": 2}, "photos/val: a folder expected .* found none; or take a fifth of every "),
        ({"a": 2, "b": 1}, "photos/val: a folder expected .*--hold-out 0.2$"),
        ({"a": 1, "val/a": 1}, "photos/train: a folder expected .*, found none"),
        ({"": 3}, "photos: a folder for each class expected, found none"),
        ({"a/b": 3}, "photos: images .* expected, found none"),
        ({}, "photos/train: a folder expected"),
    ],
)
def test_folders_of_another_layout_get_an_answer(
    tmp_path: Path, make: dict[str, int], told: str
) -> None:
    image_folder(tmp_path / "photos", {name: count for name, count in make.items() if name})
    if "" in make:
        for number in range(make[""]):
            (tmp_path / "photos").mkdir(exist_ok=True)
            (tmp_path / f"photos/{number}.jpg").write_bytes(noise(number))
    with pytest.raises(UserError, match=told):
        pack_images(tmp_path / "photos", tmp_path / "out")
    assert names_in(tmp_path) <= {"photos"}


def test_what_is_there_to_evaluate_on_is_not_replaced(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "photos", {"train/a": 2, "val/a": 1})
    with pytest.raises(UserError, match=r"--hold-out: no .*photos/val expected, found one"):
        pack_images(images, tmp_path / "out", hold_out=0.2)


# --- the commands --------------------------------------------------------------------------------


def test_packing_and_verifying_by_the_command(tmp_path: Path, rn50: Rn50) -> None:
    images, out = image_folder(tmp_path / "photos", {"a": 4, "b": 1}), tmp_path / "mine"
    (images / "a/notes.txt").write_text("")
    (images / "a/bad.jpg").write_text("bad")
    command = ("data", "pack", str(images), str(out), "--hold-out", "0.25")
    done = rn50(*command)
    bad = f"{images}/a/bad.jpg: a JPEG or PNG image expected, found b'bad' at its start"
    assert done.returncode == 2 and f"rn50: error: {bad}\n" in done.stderr
    done = rn50(*command, "--skip-bad", "1")
    assert done.returncode == 0 and done.stderr.count("rn50: warning: ") == 2
    assert load_manifest(out).splits["train"].class_counts == [3, 1]
    done = rn50("data", "verify", str(out))
    assert done.returncode == 0
    assert "no fault in a sample of 5 of 5 records; --full checks every byte" in done.stdout
    assert "5 records, all decoded" in rn50("data", "verify", str(out), "--full").stdout
    (out / "train.idx").write_text("")
    done = rn50("data", "verify", str(out))
    assert done.returncode == 1 and "train.idx" in done.stderr
