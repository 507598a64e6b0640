"""Checkpoint files: a header of plain JSON, raw arrays, a digest of all. Loads no framework.

    magic (8 bytes) | header length (8, little endian) | header | arrays in turn | digest

Reading one executes nothing: no pickle, every length is held against the file's, the digest
(BLAKE2b of all bytes before it) against its bytes, the header against a schema. A file appears
complete or not at all: temporary file, fsync, rename, fsync of the folder.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from ..config.atomic import create_new, partial_beside
from ..config.errors import UserError
from ..config.reading import open_file
from ..config.renamed import rename_tree
from .state import Count, TrainState

MAGIC = b"RN50CKP1"
DIGEST_BYTES = 32
BEST = "best.ckpt"
_NAME = re.compile(r"step_(\d{10})\.ckpt")
_MAX_HEADER_BYTES = 16 << 20
MOST_BYTES = 4 << 30
"""Of a file: ResNet-50's on 2,048 ranks takes 0.7 GB."""
_MOST_VALUES = 1 << 40


class LossScaleState(BaseModel):
    """Of `LossScaler.state_dict`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    value: float
    growth_tracker: Count = 0
    checks: tuple[tuple[Count, float, bool], ...] = ()
    """(step, scale, were its gradients finite?), not heeded yet."""


class Meta(BaseModel):
    """Where a run was: everything but the arrays."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    state: TrainState
    """How far training had come; with the seed it is the place in the data as well."""
    log_bytes: Count
    metrics_bytes: Count
    run_started_unix_s: float
    previous_lr: float
    """The learning rate of the last step: what momentum correction goes by."""
    loss_scale: LossScaleState
    ranks: Annotated[int, Field(ge=1)]
    seeds: dict[str, int]
    """Of every random stream."""
    config_sha256: str
    config: Annotated[dict[str, Any], AfterValidator(rename_tree)]
    """As `Loaded.to_dict` gave it; a key that had another name then has today's."""

    @property
    def step(self) -> int:
        """The last step in the weights."""
        return self.state.step


class _Array(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    dtype: Literal["float32", "float16", "int32"]
    shape: tuple[Count, ...] = Field(max_length=8)

    @field_validator("shape")
    @classmethod
    def _can_be(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if math.prod(max(1, side) for side in shape) > _MOST_VALUES:
            raise ValueError("sides of an array expected")
        return shape

    @property
    def size_bytes(self) -> int:
        size = np.dtype(self.dtype).itemsize
        for side in self.shape:  # Python's integers: nothing a file says overflows
            size *= side
        return size


class _Header(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    meta: Meta
    arrays: tuple[_Array, ...]


class Checkpoint(NamedTuple):
    path: Path
    meta: Meta
    arrays: Mapping[str, NDArray[Any]]


def file_name(step: int) -> str:
    return f"step_{step:010d}.ckpt"


def write(path: Path, meta: Meta, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a checkpoint. Raises OSError, and leaves nothing behind then."""
    listed = tuple(
        _Array(name=name, dtype=a.dtype.name, shape=a.shape)  # type: ignore[arg-type]
        for name, a in arrays.items()
    )
    header = _Header(meta=meta, arrays=listed).model_dump_json().encode()
    parts: list[Any] = [MAGIC, struct.pack("<Q", len(header)), header]
    parts += [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays.values()]
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    partial = partial_beside(path)
    try:
        with os.fdopen(create_new(partial), "wb") as file:
            for part in parts:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises:
        UserError: it cannot be read, is torn or damaged, or is no checkpoint; one line.
    """
    try:
        with open_file(path, MOST_BYTES) as file:
            return _read(path, file)
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from None
    except MemoryError:
        raise UserError(f"{path}: cannot read: no memory for its arrays") from None


def _read(path: Path, file: BinaryIO) -> Checkpoint:
    """Nothing is allocated that the header does not name and the file does not hold."""
    size = os.fstat(file.fileno()).st_size
    start = len(MAGIC) + 8
    head = file.read(start)
    if not head.startswith(MAGIC) or size < start + DIGEST_BYTES:
        raise UserError(f"{path}: a checkpoint expected, found {size} bytes of something else")
    (length,) = struct.unpack("<Q", head[len(MAGIC) :])
    if length > min(_MAX_HEADER_BYTES, size - start - DIGEST_BYTES):
        raise UserError(
            f"{path}: torn or damaged: a header within the file expected, found one of "
            f"{length} bytes"
        )
    text = file.read(length)
    try:
        header = _Header.model_validate_json(text)
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"msg": "too deep"}
        where = ".".join(map(str, first.get("loc", ())))
        raise UserError(f"{path}: torn or damaged: header: {where}: {first['msg']}"[:400]) from None
    expected = sum(array.size_bytes for array in header.arrays)
    if expected != (found := size - start - length - DIGEST_BYTES):
        raise UserError(
            f"{path}: torn or damaged: {expected} bytes of arrays expected, found {found}"
        )
    digest = hashlib.blake2b(head + text, digest_size=DIGEST_BYTES)
    arrays: dict[str, NDArray[Any]] = {}
    for array in header.arrays:
        values = np.fromfile(file, array.dtype, math.prod(array.shape))
        digest.update(values.data)
        arrays[array.name] = values.reshape(array.shape)
    if digest.digest() != file.read(DIGEST_BYTES):
        raise UserError(f"{path}: torn or damaged: its digest does not fit its {size} bytes")
    return Checkpoint(path, header.meta, arrays)


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of a folder, and what is wrong with those that are newer."""
    problems: list[str] = []
    for path in reversed(listed(folder)):
        try:
            return read(path), problems
        except UserError as error:
            problems.append(str(error))
    return None, problems


def listed(folder: Path) -> list[Path]:
    """Checkpoints by step, oldest first; whole or not."""
    try:
        return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    except OSError:
        return []


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` (the best has a name of its own)."""
    for path in listed(folder)[:-keep]:
        path.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Remove what a writer that was killed has left; nothing where the folder is a link."""
    if folder.is_symlink():
        return
    for path in folder.glob(".*.partial-*"):
        with suppress(OSError):
            path.unlink()


def mark_best(path: Path) -> None:
    """Make `best.ckpt` a second name of `path`."""
    partial = partial_beside(path.with_name(BEST))
    try:
        os.link(path, partial)
        partial.replace(path.with_name(BEST))
    finally:
        partial.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
