import io
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

from rn50.config.errors import UserError
from rn50.config.leaves import Origin
from rn50.config.manifest import load_manifest
from rn50.config.schema import Data
from rn50.data import dataset, recordio
from rn50.data.dataset import check_before_run, digest_file, load_table, verify
from rn50.data.pack import pack_images
from tests.conftest import read_json, refused, write_json
from tests.data.test_pack import image_folder

TRAIN = 12
VAL = 6
CLASSES = 3
Spoil = Callable[[Path], object]
HALF = np.float32(2.5).tobytes()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    counts = {
        f"{split}/class{number}": count // CLASSES
        for split, count in (("train", TRAIN), ("val", VAL))
        for number in range(CLASSES)
    }
    pack_images(image_folder(folder / "images", counts), folder / "set")
    return folder / "set"


@pytest.fixture
def packed(pristine: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "set"))


def config(folder: Path, **settings: Any) -> Data:
    counts = {"classes": CLASSES, "train_samples": TRAIN, "eval_samples": VAL}
    return Data(path=str(folder), **(counts | settings))


def reseal(folder: Path) -> None:
    """Sizes and digests in the manifest made to fit the files: deeper checks must find the rest."""
    path = folder / "manifest.json"
    manifest = read_json(path)
    for split, content in manifest["splits"].items():
        for suffix in content["files"]:
            found = digest_file(folder / f"{split}.{suffix}")
            content["files"][suffix] = found.model_dump()
    write_json(path, manifest)


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def records(change: Callable[[bytes], bytes]) -> Spoil:
    return lambda folder: edit(folder / "train.rec", change)


def table(change: Callable[[Any], Any]) -> Spoil:
    return lambda folder: np.save(
        folder / "train.npy", change(np.load(folder / "train.npy"))
    )


def first(field: str, value: int) -> Callable[[Any], Any]:
    """A change of the first row."""

    def change(rows: Any) -> Any:
        rows[field][0] = value
        return rows

    return change


AT_0 = "/set/train.rec: record at byte 0:"
SPOILT: list[tuple[Spoil, bool, str]] = [
    (shutil.rmtree, False, "a packed image set expected at .*/set, found none"),
    (
        records(lambda c: c[:-4]),
        False,
        r"/set/train.rec: \d+ bytes expected \(manif.*, found \d+",
    ),
    (
        records(lambda c: b"\xff" + c[1:]),
        False,
        "/set/train.rec: a record at byte 0 .* magic 0xced",
    ),
    (
        records(lambda c: c[:12] + HALF + c[16:]),
        False,
        rf"{AT_0} .* expected, found \(2.5, ",
    ),
    (
        records(lambda c: c[:-40]),
        True,
        r"/set/train.rec: a record at byte \d+ .* \(truncated\)",
    ),
    (
        table(first("label", 3)),
        False,
        "/set/train.npy: labels below 3 expected, found 3",
    ),
    (table(first("length", 5)), False, f"{AT_0} .* expected, found"),
    (table(lambda rows: rows[:-1]), True, "/set/train.npy: 12 rows expected, found 11"),
    (
        table(lambda rows: np.arange(12)),
        True,
        "/set/train.npy: a sample table .* another type",
    ),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("spoil", "sealed", "told"), SPOILT)
def test_a_changed_set_is_one_error_before_the_run(
    packed: Path, spoil: Spoil, sealed: bool, told: str
) -> None:
    """Sealed: the files fit the manifest, but do not fit each other."""
    spoil(packed)
    if sealed:
        reseal(packed)
    with refused(told) as caught:
        check_before_run(config(packed))
    assert "\n" not in str(caught.value)
    with refused(told if sealed else "."):
        verify(packed)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"classes"', '"klasses"', "classes: Field required"),
        ('"val"', '"other"', "splits.val: files rec, idx, npy expected"),
        ("recordio-1", "recordio-2", "format: Input should be 'rn50-recordio-1'"),
        (
            '"part": [\n  0',
            '"part": [\n  3',
            "part: a number below that of parts expected",
        ),
        ("{", "", "JSON: Invalid JSON"),
    ],
)
def test_a_manifest_of_another_shape_names_the_key(
    packed: Path, old: str, new: str, told: str
) -> None:
    path = packed / "manifest.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with refused(rf"/set/manifest\.json: {told}"):
        load_manifest(packed)


def test_counts_of_the_config_must_be_those_of_the_set(packed: Path) -> None:
    """All that differ in one error, each with where it was written."""
    wrong = config(
        packed, classes=CLASSES + 1, train_samples=TRAIN, eval_samples=VAL + 1
    )
    with pytest.raises(UserError) as caught:
        check_before_run(wrong, {"data.classes": Origin("mine.yaml", 3)})
    manifest = packed / "manifest.json"
    assert str(caught.value).splitlines() == [
        f"mine.yaml:3: data.classes: {CLASSES} expected, as in {manifest}, found {CLASSES + 1}",
        f"data.eval_samples: {VAL} expected, as in {manifest}, found {VAL + 1}",
    ]


@pytest.mark.parametrize("name", ["train.rec", "train.idx", "val.npy"])
def test_verify_finds_any_flipped_byte(packed: Path, name: str) -> None:
    path = packed / name
    edit(path, lambda c: c[:-40] + bytes([c[-40] ^ 1]) + c[-39:])
    where = ".* one of 12 records .*record 0, class" if name == "train.rec" else ""
    with refused(f"{name}: SHA-256 .* expected{where}"):
        verify(packed)


@pytest.mark.parametrize("processes", [1, 2])
def test_images_that_do_not_decode_are_found_in_a_sealed_set(
    packed: Path, processes: int
) -> None:
    assert verify(packed, processes=processes) == load_manifest(packed)
    row = load_table(packed, "val")[3]
    start = int(row["offset"]) + recordio.HEADER_BYTES
    number, label, photo = (packed / "val.lst").read_text().splitlines()[3].split("\t")
    assert (number, label) == ("3", str(row["label"]))
    assert photo.startswith(f"class{label}/")
    edit(packed / "val.rec", lambda c: c[:start] + bytes(40) + c[start + 40 :])
    told = rf"val\.rec: record at byte {row['offset']}: an image .*record 3, "
    with refused(rf"{told}{photo}\)"):
        verify(packed, processes=processes)
    reseal(packed)
    for full in (True, False):
        with refused(rf"{told}{photo}\)"):
            verify(packed, full=full, processes=processes)
    older(packed)
    with refused(rf"{told}class{label}\)"):
        verify(packed, processes=processes)


def older(folder: Path) -> None:
    """Make of a set one of an older version, which kept no names."""
    manifest = read_json(folder / "manifest.json")
    for split, content in manifest["splits"].items():
        del content["files"]["lst"]
        (folder / f"{split}.lst").unlink()
    write_json(folder / "manifest.json", manifest)


def test_a_set_of_an_older_version_is_the_same_set(packed: Path) -> None:
    digest = load_manifest(packed).digest
    older(packed)
    assert verify(packed).digest == check_before_run(config(packed)).digest == digest


def test_every_bad_record_of_a_split_is_named(packed: Path) -> None:
    """A PNG without its end, as older versions packed it."""
    out = io.BytesIO()
    Image.new("RGB", (24, 18)).save(out, "PNG")
    rows = load_table(packed, "train")[[2, 7]]
    content = bytearray((packed / "train.rec").read_bytes())
    for row in rows:
        start = int(row["offset"]) + recordio.HEADER_BYTES
        content[start : start + row["length"]] = out.getvalue()[:-12].ljust(
            row["length"], b"\0"
        )
    (packed / "train.rec").write_bytes(content)
    reseal(packed)
    with pytest.raises(UserError) as caught:
        verify(packed)
    lines = str(caught.value).splitlines()
    assert [line.partition("(")[2].partition(",")[0] for line in lines] == [
        "record 2",
        "record 7",
    ]


def die(*_: object, **__: object) -> list[object]:
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return []


def test_a_worker_that_is_killed_is_one_error(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_find_faults", die)
    with refused("set: not checked: a worker process was killed"):
        verify(packed, processes=2)


def test_a_table_is_mapped_not_read(packed: Path) -> None:
    """So that the ranks of a node have one copy of ImageNet's 25.6 MB in memory."""
    rows = load_table(packed, "train")
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert str(packed / "train.npy") in {line.split(maxsplit=5)[-1] for line in maps}
    assert len(rows)
    assert not rows.flags.writeable
