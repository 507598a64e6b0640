import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rn50.config.leaves import Origin
from rn50.config.manifest import load_manifest
from rn50.config.schema import Data
from rn50.data import dataset, recordio
from rn50.data.dataset import check_before_run, digest_file, load_table, verify
from rn50.data.pack import pack_images
from rn50.host.errors import UserError
from rn50.host.progress import Progress
from tests.conftest import flip_bit, read_json, refused, write_json
from tests.data.images import encode, image_folder

COUNTS: dict[str, Any] = {"classes": 3, "train_samples": 12, "eval_samples": 6}
Spoil = Callable[[Path], object]
HALF = np.float32(2.5).tobytes()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    counts = {}
    for number in range(3):
        counts[f"train/class{number}"] = 4
        counts[f"val/class{number}"] = 2
    pack_images(image_folder(folder / "images", counts), folder / "set")
    return folder / "set"


def config(folder: Path, **settings: int) -> Data:
    return Data(path=str(folder), **COUNTS | settings)


def reseal(folder: Path) -> None:
    """Sizes and digests in the manifest made to fit the files: deeper checks must find the rest."""
    path = folder / "manifest.json"
    manifest = read_json(path)
    for split, content in manifest["splits"].items():
        for suffix in content["files"]:
            file = digest_file(folder / f"{split}.{suffix}")
            content["files"][suffix] = file.model_dump()
    write_json(path, manifest)


def older(folder: Path) -> None:
    """Make of a set one of an older version, which kept no names."""
    manifest = read_json(folder / "manifest.json")
    for split, content in manifest["splits"].items():
        del content["files"]["lst"]
        (folder / f"{split}.lst").unlink()
    write_json(folder / "manifest.json", manifest)


def overwrite(path: Path, offset: int, new: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(new)


def image_place(folder: Path, split: str, number: int) -> tuple[int, int]:
    """(first byte, bytes) of the image of a record."""
    row = load_table(folder, split)[number].tolist()
    offset, length, *_ = row
    return offset + recordio.HEADER_BYTES, length


def records(offset: int, new: bytes) -> Spoil:
    return lambda folder: overwrite(folder / "train.rec", offset, new)


def cut(size: int) -> Spoil:
    def change(folder: Path) -> None:
        path = folder / "train.rec"
        os.truncate(path, path.stat().st_size - size)

    return change


def table(change: Callable[[Any], Any]) -> Spoil:
    def write(folder: Path) -> None:
        path = folder / "train.npy"
        np.save(path, change(np.load(path)))

    return write


def first(field: str, value: int) -> Spoil:
    def change(rows: Any) -> Any:
        rows[field][0] = value
        return rows

    return table(change)


AT_0 = "/set/train.rec: record at byte 0:"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("spoil", "sealed", "message"),
    [
        (shutil.rmtree, False, "a packed image set expected at .*/set, found none"),
        (cut(4), False, r"/set/train.rec: \d+ bytes expected \(manif.*, found \d+"),
        (
            records(0, b"\xff"),
            False,
            "/set/train.rec: a record at byte 0 .* magic 0xced",
        ),
        (records(12, HALF), False, rf"{AT_0} .* expected, found \(2.5, "),
        (cut(40), True, r"/set/train.rec: a record at byte \d+ .* \(truncated\)"),
        (first("label", 3), False, "/set/train.npy: labels below 3 expected, found 3"),
        (first("length", 5), False, f"{AT_0} .* expected, found"),
        (
            table(lambda rows: rows[:-1]),
            True,
            "/set/train.npy: 12 rows expected, found 11",
        ),
        (
            table(lambda _: np.arange(12)),
            True,
            "/set/train.npy: a sample table .* another type",
        ),
    ],
)
def test_a_changed_set_is_one_error_before_the_run(
    packed: Path, spoil: Spoil, sealed: bool, message: str
) -> None:
    """Sealed: the files fit the manifest, but do not fit each other."""
    spoil(packed)
    if sealed:
        reseal(packed)
    with refused(message) as caught:
        check_before_run(config(packed))
    assert "\n" not in str(caught.value)
    with refused(message if sealed else "."):
        verify(packed)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"classes"', '"klasses"', "classes: Field required"),
        ("recordio-1", "recordio-2", "format: Input should be 'rn50-recordio-1'"),
        ('"val"', '"other"', "splits.val: files rec, idx, npy expected"),
        (
            '"part": [\n  0',
            '"part": [\n  3',
            "part: a number below that of parts expected",
        ),
        ("{", "", "JSON: Invalid JSON"),
    ],
)
def test_a_manifest_of_another_shape_names_the_key(
    packed: Path, old: str, new: str, message: str
) -> None:
    path = packed / "manifest.json"
    manifest_json = path.read_text()
    path.write_text(manifest_json.replace(old, new, 1))
    with refused(rf"/set/manifest\.json: {message}"):
        load_manifest(packed)


def test_counts_of_the_config_must_be_those_of_the_set(pristine: Path) -> None:
    """All that differ in one error, each with where it was written."""
    wrong = config(pristine, classes=4, eval_samples=7)
    with pytest.raises(UserError) as caught:
        check_before_run(wrong, {"data.classes": Origin("mine.yaml", 3)})
    manifest = pristine / "manifest.json"
    assert str(caught.value).splitlines() == [
        f"mine.yaml:3: data.classes: 3 expected, as in {manifest}, found 4",
        f"data.eval_samples: 6 expected, as in {manifest}, found 7",
    ]


@pytest.mark.parametrize(
    ("name", "where"),
    [("train.rec", ".* one of 12 records .*record 0, class"), ("val.npy", "")],
)
def test_verify_finds_any_flipped_byte(packed: Path, name: str, where: str) -> None:
    flip_bit(packed / name, -40)
    with refused(f"{name}: SHA-256 .* expected{where}"):
        verify(packed)


@pytest.mark.parametrize("processes", [1, 2])
def test_images_that_do_not_decode_are_found_in_a_sealed_set(
    packed: Path, processes: int
) -> None:
    assert verify(packed, processes=processes) == load_manifest(packed)
    lines = (packed / "val.lst").read_text().splitlines()
    number, label, photo = lines[3].split("\t")
    assert number == "3"
    assert photo.startswith(f"class{label}/")
    start, _ = image_place(packed, "val", 3)
    overwrite(packed / "val.rec", start, bytes(40))
    offset = start - recordio.HEADER_BYTES
    message = rf"val\.rec: record at byte {offset}: an image .*record 3, "
    with refused(rf"{message}{photo}\)"):
        verify(packed)
    reseal(packed)
    for full in (True, False):
        with refused(rf"{message}{photo}\)"):
            verify(packed, full=full, processes=processes)
    older(packed)
    with refused(rf"{message}class{label}\)"):
        verify(packed)


def test_a_set_of_an_older_version_is_the_same_set(packed: Path) -> None:
    digest = load_manifest(packed).digest
    older(packed)
    assert verify(packed).digest == digest
    assert check_before_run(config(packed)).digest == digest


def test_every_bad_record_of_a_split_is_named(packed: Path) -> None:
    """A PNG without its end, as older versions packed it."""
    image = Image.new("RGB", (24, 18))
    png = encode(image, "PNG")[:-12]
    for number in (2, 7):
        start, length = image_place(packed, "train", number)
        overwrite(packed / "train.rec", start, png.ljust(length, b"\0"))
    reseal(packed)
    with refused(r"\(record 2, .*\n.*\(record 7, .*\)$"):
        verify(packed)


def test_verify_shows_bytes_and_records(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "MB", 1)
    last_counts: dict[str, tuple[int, int]] = {}

    def track(name: str) -> Progress:
        return lambda *counts: last_counts.update({name: counts})

    manifest = verify(pristine, track=track)
    total = sum(file.bytes for file in manifest.files.values())
    assert last_counts == {
        "checking bytes, in MB": (total, total),
        "checking records": (18, 18),
    }


def die(*_: object, **__: object) -> list[object]:
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return []


def test_a_worker_that_is_killed_is_one_error(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_find_faults", die)
    with refused("set: not checked: a worker process was killed"):
        verify(pristine)


def test_a_table_is_mapped_not_read(pristine: Path) -> None:
    """So that the ranks of a node have one copy of ImageNet's 25.6 MB in memory."""
    rows = load_table(pristine, "train")
    assert str(pristine / "train.npy") in Path("/proc/self/maps").read_text()
    assert not rows.flags.writeable
