"""Packed sets with wrong bytes, lengths, offsets and kinds of files."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rn50.config.manifest import FORMAT
from rn50.data import recordio
from rn50.data.dataset import TABLE, digest_file, load_table
from tests.fuzz.values import TEXTS, Case, Step, mutate, odd_file, odd_json, rng_of, tree

_CLASSES = ("cat", "dog", "eel")
_ROWS = {"train": 12, "val": 4}
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError)


def case(seed: int, folder: Path) -> Case:
    """A packed set with one to three faults; and what verifies, reads or describes it."""
    rng = rng_of("records", seed)
    packed = folder / "set"
    packed.mkdir()
    for name, content in _good_set().items():
        (packed / name).write_bytes(content)
    edits = [rng.choice(_EDITS) for _ in range(rng.choice((1, 1, 2, 3)))]
    for edit in edits:
        if all(map(_is_plain, packed.iterdir())):  # an edit before may have made a FIFO or a hole
            edit(rng, packed / rng.choice(sorted(path.name for path in packed.iterdir())))
    # Else sizes and digests give it away at once.
    if rng.random() < 0.6 and _is_plain(packed / "manifest.json"):
        with suppress(*_UNREADABLE):
            _fit_manifest(packed)
    steps: tuple[Step, ...] = (
        ("data", "verify", "set", "--processes", "1"),
        ("data", "verify", "set", "--full", "--processes", "1"),
        ("config", "check", "quick", "data.path=set", "--json"),
        ("config", "show", "quick", "data.path=set", "division=open"),
        lambda: load_table(packed, rng.choice(("train", "val"))),
    )
    done = ", ".join(edit.__name__.strip("_") for edit in edits)
    return Case(done, tuple(rng.choices(steps, (4, 4, 1, 1, 2), k=2)))


@lru_cache(maxsize=1)
def _good_set() -> dict[str, bytes]:
    """A set of 16 small images, made without packing: the bytes of each file."""
    files: dict[str, bytes] = {}
    splits: dict[str, Any] = {}
    for split, count in _ROWS.items():
        records, index, rows = b"", "", []
        for number in range(count):
            image, label = _image(number), number % len(_CLASSES)
            rows.append((len(records), len(image), label, 24, 24))
            index += f"{number}\t{len(records)}\n"
            records += b"".join(recordio.encode(label, number, image))
        table = io.BytesIO()
        np.save(table, np.array(rows, TABLE))
        files[f"{split}.rec"] = records
        files[f"{split}.idx"] = index.encode()
        files[f"{split}.npy"] = table.getvalue()
        counts = np.bincount([row[2] for row in rows], minlength=3).tolist()
        splits[split] = {"samples": count, "class_counts": counts, "files": {}}
    manifest = {"format": FORMAT, "classes": list(_CLASSES), "shuffle_seed": 0, "splits": splits}
    return files | {"manifest.json": json.dumps(manifest).encode()}


def _image(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (24, 24), (number * 9 % 256, 90, 200)).save(file, "JPEG")
    return file.getvalue()


def _is_plain(path: Path) -> bool:
    return not path.is_symlink() and path.is_file() and path.stat().st_size < 1 << 24


def _fit_manifest(packed: Path) -> None:
    """Sizes and digests as the files are now."""
    manifest = json.loads((packed / "manifest.json").read_bytes())
    for split in _ROWS:
        for suffix in ("rec", "idx", "npy"):
            path = packed / f"{split}.{suffix}"
            if _is_plain(path):
                manifest["splits"][split]["files"][suffix] = digest_file(path).model_dump()
    (packed / "manifest.json").write_text(json.dumps(manifest))


# --- faults: each of one file -------------------------------------------------------------------


def _bytes(rng: random.Random, path: Path) -> None:
    path.write_bytes(mutate(rng, path.read_bytes()))


def _row(rng: random.Random, path: Path) -> None:
    """Table and index agree about an offset that is none; or a label, a size."""
    split = path.with_name(rng.choice(("train", "val")))
    with suppress(Exception):  # an edit before may have spoilt the table
        table = np.load(split.with_suffix(".npy"))
        field = rng.choice(TABLE.names or ())
        most = np.iinfo(TABLE[field]).max
        table[rng.randrange(len(table))][field] = rng.choice((0, 1, most, most // 2, 4, 1000))
        np.save(split.with_suffix(".npy"), table)
        lines = (f"{number}\t{row['offset']}\n" for number, row in enumerate(table))
        split.with_suffix(".idx").write_text("".join(lines))


def _other_content(rng: random.Random, path: Path) -> None:
    texts = ("", "x", "1\t2\t3", "1e400\t3", "9" * 4000, "-1\t-1", "0\t0\n" * 5000, odd_json(rng))
    path.write_text(rng.choice((*texts, *TEXTS)), "utf-8", "surrogatepass")


def _other_array(rng: random.Random, path: Path) -> None:
    kind = rng.choice(("f8", "u1", TABLE))
    np.save(path.with_name("train.npy"), np.zeros(rng.choice((0, 12, 13)), kind))


def _manifest(rng: random.Random, path: Path) -> None:
    manifest = path.with_name("manifest.json")
    with suppress(*_UNREADABLE):
        content = json.loads(manifest.read_bytes())
        section = rng.choice((content, content["splits"], content["splits"]["train"]))
        section[rng.choice((*section, "x"))] = tree(rng)
        manifest.write_text(json.dumps(content))


def _gone(rng: random.Random, path: Path) -> None:
    path.unlink()


_EDITS: tuple[Callable[[random.Random, Path], None], ...] = (
    *(_bytes, _bytes, _row, _row, _other_content, _other_array, _manifest, _manifest),
    *(odd_file, _gone),
)
