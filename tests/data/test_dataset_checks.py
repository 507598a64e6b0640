import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rn50.config.errors import UserError
from rn50.config.leaves import Origin
from rn50.config.manifest import load_manifest
from rn50.config.schema import Data, Synthetic
from rn50.data import recordio
from rn50.data.dataset import check_before_run, digest_file, load_table, verify
from rn50.data.pack import pack_images
from rn50.data.prepare import prepare

TRAIN, VAL, CLASSES = 12, 6, 3
Spoil = Callable[[Path], object]
HALF = np.float32(2.5).tobytes()


def jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (18, 24, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    for split, count in (("train", TRAIN), ("val", VAL)):
        for number in range(count):
            name = folder / "images" / split / f"class{number % CLASSES}"
            name.mkdir(parents=True, exist_ok=True)
            (name / f"{number}.JPEG").write_bytes(jpeg(number))
    pack_images(folder / "images", folder / "set")
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
    manifest = json.loads(path.read_text())
    for split, content in manifest["splits"].items():
        for suffix in content["files"]:
            found = digest_file(folder / f"{split}.{suffix}")
            content["files"][suffix] = found.model_dump()
    path.write_text(json.dumps(manifest))


def edit_bytes(path: Path, change: Callable[[bytearray], object]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def edit_table(folder: Path, split: str, change: Callable[[Any], Any]) -> None:
    path = folder / f"{split}.npy"
    np.save(path, change(np.load(path)))


def flip(content: bytearray, place: int) -> None:
    content[place] ^= 0xFF


def swap_indices(folder: Path) -> None:
    (folder / "val.idx").write_bytes((folder / "train.idx").read_bytes())


def swap_lines(folder: Path) -> None:
    lines = (folder / "train.idx").read_text().splitlines()
    lines[1], lines[2] = lines[2], lines[1]
    (folder / "train.idx").write_text("\n".join(lines) + "\n")


def set_field(field: str, value: int) -> Callable[[Any], Any]:
    def change(table: Any) -> Any:
        table[field][0] = value
        return table

    return change


def test_an_untouched_set_passes(packed: Path) -> None:
    manifest = check_before_run(config(packed))
    assert manifest == load_manifest(packed) == verify(packed)


CHANGED: dict[str, tuple[Spoil, str]] = {
    "no folder": (shutil.rmtree, "/set/manifest.json: a packed image set expected"),
    "records truncated": (
        lambda f: edit_bytes(f / "train.rec", lambda c: c.__delitem__(slice(-4, None))),
        r"/set/train.rec: \d+ bytes expected \(manifest.json\), found \d+",
    ),
    "index line changed": (
        swap_lines,
        r"/set/train.idx:2: does not match train.npy: '1\\t\d+' expected, found '2\\t\d+'$",
    ),
    "table of other labels": (
        lambda f: edit_table(f, "train", set_field("label", 77)),
        "/set/train.rec: record at byte 0: a label below 3 expected, found 77",
    ),
    "table of other lengths": (
        lambda f: edit_table(f, "train", set_field("length", 5)),
        r"/set/train.rec: record at byte 0: 5 bytes expected, found \d+",
    ),
    "records overwritten": (
        lambda f: edit_bytes(f / "train.rec", lambda c: flip(c, 0)),
        r"/set/train.rec: a record \(magic 0xced7230a\) at byte 0 expected, found",
    ),
    "label in the record": (
        lambda f: edit_bytes(f / "train.rec", lambda c: c.__setitem__(slice(12, 16), HALF)),
        "record at byte 0: label . expected, found 2.5",
    ),
}
RESEALED: dict[str, tuple[Spoil, str]] = {
    "index of another split": (swap_indices, "/set/val.idx:[1-7]: does not match val.npy"),
    "records truncated": (
        lambda f: edit_bytes(f / "train.rec", lambda c: c.__delitem__(slice(-40, None))),
        r"/set/train.rec: \d+ bytes in the record at byte \d+ expected, found \d+ \(truncated\)",
    ),
    "a row too few": (
        lambda f: edit_table(f, "train", lambda table: table[:-1]),
        r"/set/train.npy: 12 rows expected \(manifest.json\), found 11",
    ),
    "a table of plain numbers": (
        lambda f: edit_table(f, "train", lambda table: np.arange(12)),
        "/set/train.npy: a sample table expected, found an array of another type",
    ),
    "an index without lines": (
        lambda f: (f / "train.idx").write_text(""),
        r"/set/train.idx:1: does not match train.npy: '0.t0' expected, found None",
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("sealed", "case"),
    [(False, case) for case in CHANGED] + [(True, case) for case in RESEALED],
)
def test_a_changed_set_is_one_error_before_the_run(packed: Path, sealed: bool, case: str) -> None:
    """Sealed: the files fit the manifest, but do not fit each other."""
    spoil, told = (RESEALED if sealed else CHANGED)[case]
    spoil(packed)
    if sealed:
        reseal(packed)
    with pytest.raises(UserError, match=told) as caught:
        check_before_run(config(packed))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=told if sealed else None):
        verify(packed)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"classes"', '"klasses"', "classes: Field required"),
        ('"val"', '"other"', "splits.val: files rec, idx, npy expected"),
        ("recordio-1", "recordio-2", "format: Input should be 'rn50-recordio-1'"),
        ("{", "", "JSON: Invalid JSON"),
    ],
)
def test_a_manifest_of_another_shape_names_the_key(
    packed: Path, old: str, new: str, told: str
) -> None:
    path = packed / "manifest.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=rf"/set/manifest\.json: {told}"):
        load_manifest(packed)


def test_counts_of_the_config_must_be_those_of_the_set(packed: Path) -> None:
    """All that differ in one error, each with where it was written."""
    wrong = config(packed, classes=CLASSES + 1, train_samples=TRAIN, eval_samples=VAL + 1)
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
    edit_bytes(path, lambda content: flip(content, len(content) // 2))
    with pytest.raises(UserError, match=f"{name}: SHA-256 .* the file changed after"):
        verify(packed)


@pytest.mark.parametrize("processes", [1, 2])
def test_images_that_do_not_decode_are_found_in_a_sealed_set(packed: Path, processes: int) -> None:
    assert verify(packed, processes=processes) == load_manifest(packed)
    row = load_table(packed, "val")[3]
    start = int(row["offset"]) + recordio.HEADER_BYTES
    edit_bytes(packed / "val.rec", lambda c: c.__setitem__(slice(start, start + 40), bytes(40)))
    reseal(packed)
    with pytest.raises(UserError, match=rf"val\.rec: record at byte {row['offset']}: an image"):
        verify(packed, processes=processes)


# --- prepare ------------------------------------------------------------------------------------


def silent(name: str) -> Callable[[int, int], None]:
    return lambda done, total: None


def test_prepare_names_a_place_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    drawn = Synthetic(classes=CLASSES, train_samples=TRAIN, eval_samples=VAL)
    data = config(tmp_path / "file/set", synthetic=drawn)
    with pytest.raises(UserError, match="/file/set: cannot create: "):
        prepare(data, silent)


def test_prepare_draws_nothing_of_other_sizes_than_the_config_says(tmp_path: Path) -> None:
    drawn = Synthetic(classes=CLASSES + 1, train_samples=TRAIN, eval_samples=VAL)
    data = config(tmp_path / "deep/set", synthetic=drawn)
    with pytest.raises(
        UserError, match=r"data\.classes: 4 expected, as in data.synthetic, found 3"
    ):
        prepare(data, silent)
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_mapped_not_read(packed: Path) -> None:
    """So that the ranks of a node have one copy of ImageNet's 25.6 MB in memory."""
    table = load_table(packed, "train")
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert str(packed / "train.npy") in {line.split(maxsplit=5)[-1] for line in maps}
    assert len(table) and not table.flags.writeable
