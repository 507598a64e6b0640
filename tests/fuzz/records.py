"""Packed sets and image folders with wrong bytes, lengths, offsets, names and kinds of files."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rn50.config.manifest import FORMAT
from rn50.data import recordio
from rn50.data.dataset import TABLE, digest_file, load_table
from tests.fuzz.case import Case, Step, rng_of
from tests.fuzz.values import NUMBERS, TEXTS, mutate, odd_json, scalar, tree

_CLASSES = ("cat", "dog", "eel")
_ROWS = {"train": 12, "val": 4}
_ODD = "\x1b[2Jred"


def case(seed: int, folder: Path) -> Case:
    """A packed set with one to three faults; and what verifies, reads or describes it."""
    rng = rng_of("records", seed)
    packed = folder / "set"
    packed.mkdir()
    for name, content in _good_set().items():
        (packed / name).write_bytes(content)
    edits = [rng.choice(_SET_EDITS) for _ in range(rng.choice((1, 1, 2, 3)))]
    for edit in edits:
        edit(rng, packed)
    if rng.random() < 0.6:  # else sizes and digests give it away at once
        _fit_manifest(packed)
    steps: tuple[Step, ...] = (
        ("data", "verify", "set", "--processes", "1", "--json"),
        ("data", "verify", "set", "--full", "--processes", "1"),
        ("config", "check", "quick", "data.path=set", "--json"),
        ("config", "show", "quick", "data.path=set", "division=open"),
        ("data", "prepare", "quick", "data.path=set"),
        lambda: load_table(packed, rng.choice(("train", "val"))),
    )
    done = ", ".join(edit.__name__.strip("_") for edit in edits)
    return Case(done, tuple(rng.choices(steps, (4, 4, 1, 1, 2, 2), k=2)))


@lru_cache(maxsize=1)
def _good_set() -> dict[str, bytes]:
    """A set of 16 small images, made without packing: the bytes of each file."""
    files: dict[str, bytes] = {}
    splits: dict[str, Any] = {}
    for split, count in _ROWS.items():
        records, index, rows = b"", "", []
        for number in range(count):
            image, label = _image("JPEG", number), number % len(_CLASSES)
            rows.append((len(records), len(image), label, 24, 24))
            index += f"{number}\t{len(records)}\n"
            records += b"".join(recordio.encode(label, number, image))
        table = io.BytesIO()
        np.save(table, np.array(rows, TABLE))
        for suffix, content in (
            ("rec", records),
            ("idx", index.encode()),
            ("npy", table.getvalue()),
        ):
            files[f"{split}.{suffix}"] = content
        counts = np.bincount([row[2] for row in rows], minlength=3).tolist()
        splits[split] = {"samples": count, "class_counts": counts, "files": {}}
    manifest = {"format": FORMAT, "classes": list(_CLASSES), "shuffle_seed": 0, "splits": splits}
    files["manifest.json"] = json.dumps(manifest).encode()
    return files


def _fit_manifest(packed: Path) -> None:
    """Sizes and digests as the files are now."""
    if not _is_plain(packed / "manifest.json"):
        return
    try:
        manifest = json.loads((packed / "manifest.json").read_bytes())
        for split in _ROWS:
            for suffix in ("rec", "idx", "npy"):
                path = packed / f"{split}.{suffix}"
                if _is_plain(path):
                    found = digest_file(path).model_dump()
                    manifest["splits"][split]["files"][suffix] = found
        (packed / "manifest.json").write_text(json.dumps(manifest))
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        return


def _is_plain(path: Path) -> bool:
    """A small file, and neither link nor FIFO."""
    return not path.is_symlink() and path.is_file() and path.stat().st_size < 1 << 24


def _image(kind: str, number: int, size: tuple[int, int] = (24, 24)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (number * 9 % 256, 90, 200)).save(file, kind)
    return file.getvalue()


# --- faults of a set ----------------------------------------------------------------------------


def _one(rng: random.Random, packed: Path, suffix: str) -> Path:
    return packed / f"{rng.choice(('train', 'val'))}.{suffix}"


def _bytes_of_any(rng: random.Random, packed: Path) -> None:
    path = packed / rng.choice(sorted(_good_set()))
    if path.is_file():
        path.write_bytes(mutate(rng, path.read_bytes()))


def _row(rng: random.Random, packed: Path) -> None:
    """Table and index agree about an offset that is none; or a label, a size."""
    path = _one(rng, packed, "npy")
    try:
        table = load_table(packed, path.stem).copy()  # the mapped file is written over
    except Exception:
        return
    number = rng.randrange(len(table)) if len(table) else 0
    field = rng.choice(TABLE.names or ())
    most = np.iinfo(TABLE[field]).max
    for one in table[number : number + 1]:
        one[field] = rng.choice((0, 1, most, most // 2 + 1, most // 2, 4, 1000)) % (most + 1)
    with path.open("wb") as file:
        np.save(file, table)
    lines = "".join(f"{n}\t{row['offset']}\n" for n, row in enumerate(table))
    path.with_suffix(".idx").write_text(lines)


def _header(rng: random.Random, packed: Path) -> None:
    path = _one(rng, packed, "npy")
    deep = rng.choice((300, 900, 60_000))
    shape = rng.choice(("(12,)", "(10**12,)", "(-1,)", "()", "(12, 1)", "(1000000000000,)", "None"))
    text = rng.choice(
        (
            f"{{'descr': {TABLE.descr}, 'fortran_order': False, 'shape': {shape}, }}",
            "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
            "(" * deep,
            "{" + "1:[" * deep,
            "9" * deep,
            "__import__('os').system('touch owned')",
        )
    ).encode()[:65_000]
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + rng.randbytes(240)
    path.write_bytes(content)


def _other_array(rng: random.Random, packed: Path) -> None:
    path = _one(rng, packed, "npy")
    with path.open("wb") as file:
        if rng.random() < 0.3:
            np.savez(file, np.zeros(12, TABLE))
        elif rng.random() < 0.3:
            np.save(file, np.array([{}] * 12, object), allow_pickle=True)
        else:
            np.save(file, np.zeros(rng.choice((0, 12, 13)), rng.choice(("f8", "u1", TABLE))))


def _index(rng: random.Random, packed: Path) -> None:
    lines = ("", "x", "1\t2\t3", "1", "1e400\t3", "nan\tnan", "9" * 4000, "-1\t-1", "0\t0\n" * 5000)
    text = rng.choice((*lines, "#", "\x00", "0\t18446744073709551616", "0\t0\n1\n"))
    _one(rng, packed, "idx").write_text(text)


def _record(rng: random.Random, packed: Path) -> None:
    """The words before a record: magic, kind of part, length."""
    path = _one(rng, packed, "rec")
    data = bytearray(path.read_bytes()) if path.is_file() else bytearray()
    at = rng.choice((0, 4, 8, 12, max(0, len(data) - 40)))
    word = rng.choice((0, 2**29 - 1, 2**32 - 1, 1 << 29, 2 << 29, 3 << 29, 5, recordio.MAGIC))
    data[at : at + 4] = struct.pack("<I", word)
    path.write_bytes(data)


def _picture(rng: random.Random, packed: Path) -> None:
    """One record whose image is none, or enormous once decoded."""
    path = packed / "val.rec"
    image = odd_image(rng)
    content = b"".join(recordio.encode(0, 0, image))
    path.write_bytes(content)
    rows = np.array([(0, len(image), 0, 24, 24)] * _ROWS["val"], TABLE)
    with path.with_suffix(".npy").open("wb") as file:
        np.save(file, rows)
    path.with_suffix(".idx").write_text("".join(f"{n}\t0\n" for n in range(_ROWS["val"])))


def _manifest(rng: random.Random, packed: Path) -> None:
    path = packed / "manifest.json"
    what = rng.random()
    if what < 0.2:
        path.write_text(odd_json(rng), "utf-8", "surrogatepass")
        return
    try:
        content = json.loads(path.read_bytes())
        if what < 0.5:
            content[rng.choice(("classes", "splits", "format", "odd_files", "drawn", "x"))] = tree(
                rng
            )
        elif what < 0.8:
            split = content["splits"][rng.choice(("train", "val"))]
            split[rng.choice(("samples", "class_counts", "files"))] = tree(rng)
            split["samples"] = rng.choice((*NUMBERS, split["samples"]))
        else:
            names = [rng.choice((_ODD, *TEXTS)) for _ in range(3)]
            content["classes"] = names if rng.random() < 0.5 else [scalar(rng)] * 3
        path.write_text(json.dumps(content))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError):
        return


def odd_file(rng: random.Random, path: Path) -> None:
    """Put something there that is no plain file, or an endless one."""
    path.unlink(missing_ok=True)
    what = rng.randrange(7)
    if what == 0:
        os.mkfifo(path)
    elif what == 1:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/full", "/proc/kmsg", "/dev/tty")))
    elif what == 2:
        path.symlink_to(rng.choice(("../../outside/secret.txt", "../../outside/secret.json")))
    elif what == 3:
        path.symlink_to(path.name)
    elif what == 4:
        path.mkdir()
    elif what == 5:
        with path.open("wb") as file:
            file.truncate(rng.choice((32 << 20, 8 << 30, 1 << 42)))
    else:
        path.symlink_to("gone")


def _odd_file_of_set(rng: random.Random, packed: Path) -> None:
    path = packed / rng.choice(sorted(_good_set()))
    if not path.is_dir():
        odd_file(rng, path)


def _hole(rng: random.Random, packed: Path) -> None:
    """A file with a hole, as long as the manifest says."""
    path = _one(rng, packed, rng.choice(("rec", "idx", "npy")))
    try:
        content = json.loads((packed / "manifest.json").read_bytes())
        file = content["splits"][path.stem]["files"][path.suffix[1:]]
        file["bytes"] = rng.choice((1 << 29, 1 << 31))
        os.truncate(path, file["bytes"])
        (packed / "manifest.json").write_text(json.dumps(content))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError):
        return


def _gone(rng: random.Random, packed: Path) -> None:
    path = packed / rng.choice(sorted(_good_set()))
    if not path.is_dir():
        path.unlink(missing_ok=True)


_Edit = Callable[[random.Random, Path], None]


def _guarded(edit: _Edit) -> _Edit:
    """An edit of what an edit before may have made a folder or a FIFO."""

    def guarded(rng: random.Random, packed: Path) -> None:
        if all(map(_is_plain, packed.iterdir())):
            edit(rng, packed)

    guarded.__name__ = edit.__name__
    return guarded


_SET_EDITS = tuple(
    _guarded(edit)
    for edit in (
        *(_bytes_of_any, _bytes_of_any, _row, _row, _header, _other_array, _index, _record),
        *(_picture, _manifest, _manifest, _odd_file_of_set, _gone, _hole),
    )
)


# --- folders of images --------------------------------------------------------------------------


def odd_image(rng: random.Random) -> bytes:
    """Bytes that look like an image."""
    what = rng.randrange(10)
    good = _image(rng.choice(("JPEG", "PNG")), 3)
    if what == 0:
        return mutate(rng, good)
    if what == 1:
        return good[: rng.randrange(len(good))]
    if what == 2:
        return _png_bomb(rng.choice((2000, 20_000, 60_000, 2**31 - 1)))
    if what == 3:
        return _jpeg_of(rng.choice((0, 1, 65_500, 65_535)), rng.choice((0, 1, 65_500, 65_535)))
    if what == 4:
        return _image(rng.choice(("GIF", "BMP", "TIFF")), 3)
    if what == 5:
        return b"\xff\xd8" + b"\xff\xe0\x00\x02" * rng.choice((10, 100_000))
    if what == 6:
        return b"\xff\xd8" + b"\xff" * 300_000
    if what == 7:
        return jpeg_of_scans(rng.choice((64, 1000, 9400)), rng.choice((1, 300, 5000)))
    return rng.choice((b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", rng.randbytes(300)))


def _png_bomb(side: int) -> bytes:
    """A PNG of a few KB that says it is `side` pixels wide and high."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 << 20)) for _ in range(8)) + packer.flush()
    about = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + about + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def _jpeg_of(height: int, width: int) -> bytes:
    """A small JPEG whose header says another size."""
    data = bytearray(_image("JPEG", 3))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def jpeg_of_scans(side: int, scans: int) -> bytes:
    """A grey progressive JPEG with scans that change nothing, each over all its pixels."""

    def segment(marker: int, content: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content

    components = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    parts = [
        b"\xff\xd8",
        segment(0xDB, bytes([0] + [1] * 64)),
        segment(0xC2, struct.pack(">BHHB", 8, side, side, 3) + components),
        segment(0xC4, bytes([0x00, 1] + [0] * 16)),
        segment(0xC4, bytes([0x10, 1] + [0] * 15 + [0xE0])),
        segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 0, 0])) + bytes(3 * (side // 8 + 1) ** 2 // 8),
    ]
    for number in range(scans):
        band = number % 63 + 1
        parts.append(segment(0xDA, bytes([1, number % 3 + 1, 0, band, band, 0])) + bytes(80))
    return b"".join([*parts, b"\xff\xd9"])


def image_case(seed: int, folder: Path) -> Case:
    """A folder of photos with odd files, names and labels; packed and looked at."""
    rng = rng_of("images", seed)
    images = folder / "photos"
    flat = rng.random() < 0.3
    for split in ("train", "val") if rng.random() < 0.5 else ("",):
        for number in range(6):
            place = images / split / ("" if flat and split == "val" else _CLASSES[number % 3])
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number}.jpg").write_bytes(_image("JPEG", number))
    places = sorted(path for path in images.rglob("*") if path.is_dir())
    done = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.choice(places)
        name = rng.choice((f"{_ODD}.jpg", "odd.png", "odd.JPEG", "a\nb.jpg", "x" * 250 + ".jpg"))
        raw = os.fsencode(place / name) if rng.random() < 0.8 else os.fsencode(place) + b"/\xff.jpg"
        path = Path(os.fsdecode(raw))
        what = rng.choice(("image", "image", "odd file", "link", "folder", "labels", "tar"))
        done.append(what)
        if what == "image" and not os.path.lexists(path):
            path.write_bytes(odd_image(rng))
        elif what == "odd file" and not path.is_dir():
            odd_file(rng, path)
        elif what == "link" and not os.path.lexists(path):
            path.symlink_to(rng.choice(("..", "../..", "0.jpg", "/", "../../../outside")))
        elif what == "folder":
            Path(place, rng.choice((_ODD, "new", "-"))).mkdir(exist_ok=True)
        elif what == "labels":
            text = rng.choice(
                (
                    *TEXTS,
                    "0.jpg cat\n1.jpg dog\n",
                    "0.jpg,x" * 999,
                    "0.jpg " + "9" * 5000,
                    odd_json(rng),
                )
            )
            (images / "val_labels.txt").write_text(text, "utf-8", "surrogatepass")
        elif what == "tar" and not path.exists():
            (images / "ILSVRC2012_img_train.tar").write_bytes(mutate(rng, bytes(2048)))
    words = ["data", "pack", "photos", "out", "--processes", "1"]
    words += ["--skip-bad", "9"] if rng.random() < 0.5 else []
    words += ["--decode"] if rng.random() < 0.5 else []
    words += ["--hold-out", "0.3"] if rng.random() < 0.5 else []
    words += ["--val-labels", "photos/val_labels.txt"] if "labels" in done else []
    words += ["--json"] if rng.random() < 0.5 else []
    again = ("data", "verify", "out", "--full", "--processes", "1", "--json")
    return Case(f"{done} {' '.join(words)}", (tuple(words), again))
