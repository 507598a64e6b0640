"""The format of a checkpoint: a JSON manifest and safetensors parts. Loads no framework.

    step_0000000020.ckpt                       manifest: state, parts with their digests; its own
    step_0000000020.model.safetensors          rank 0: weights, velocities, masters, statistics
    step_0000000020.rank_00001.safetensors     another rank's batch-norm statistics

A rank whose statistics are rank 0's has no part of its own: that is every rank right after an
evaluation that averaged them. A checkpoint is whole when all parts that its manifest names have the
digests (BLAKE2b) that it names.

Reading one executes nothing: no pickle; sizes, digests and the manifest's schema are checked before
an array is made. A file appears complete or not at all: temporary file, fsync, rename, fsync of the
folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from ..config.atomic import partial_beside
from ..config.errors import UserError, failing_as
from ..config.reading import open_file, read_file
from .state import Count, Meta, Strict

DIGEST_BYTES = 32
BEST = "best.ckpt"
MAX_BYTES = 4 << 30
"""Of all parts: ResNet-50's on 2,048 ranks take 0.66 GB."""
_ROW = struct.Struct(f"<qq{DIGEST_BYTES}s")
_MAX_MANIFEST_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_OLD_FORMAT = b"RN50CKP1"
_OWN_DIGEST = re.compile(rb',"digest":"([0-9a-f]{64})"\}\n')
_OWN_DIGEST_BYTES = len(',"digest":""}\n') + 2 * DIGEST_BYTES
_DTYPES = {"F32": "float32", "F16": "float16"}

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and type (float32) of arrays by name."""


class Part(Strict):
    """One file of a checkpoint, written by one rank."""

    rank: Count
    size_bytes: Count
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @property
    def name(self) -> str:
        return f"rank_{self.rank:05d}.safetensors" if self.rank else "model.safetensors"

    def beside(self, manifest: Path) -> Path:
        """Its file, by that of the manifest; the best's parts have second names, without which a
        later checkpoint could replace them."""
        return manifest.with_name(f"{manifest.stem}.{self.name}")


class _Manifest(Strict):
    format: Literal["rn50 checkpoint 2"] = "rn50 checkpoint 2"
    meta: Meta
    parts: tuple[Part, ...]

    @model_validator(mode="after")
    def _fits(self) -> _Manifest:
        ranks = [part.rank for part in self.parts]
        if ranks[:1] != [0] or ranks != sorted(set(ranks)) or ranks[-1] >= self.meta.ranks:
            raise ValueError("parts of different ranks in order expected, rank 0's first")
        if sum(part.size_bytes for part in self.parts) > MAX_BYTES:
            raise ValueError(f"at most {MAX_BYTES:,} bytes of parts expected")
        return self


class Checkpoint(NamedTuple):
    """A manifest that has been read; its parts are read by `load` and `verify`."""

    path: Path
    meta: Meta
    parts: tuple[Part, ...]

    def file_of(self, part: Part) -> Path:
        best = self.path.with_name(f"best_{self.meta.step:010d}.ckpt")
        return part.beside(best if self.path.name == BEST else self.path)

    def part_of(self, rank: int) -> Part:
        """Where the statistics of `rank` are."""
        return next((part for part in self.parts if part.rank == rank), self.parts[0])

    def load(self, part: Part, shapes: Shapes, *, some: bool = False) -> dict[str, NDArray[Any]]:
        """The arrays of a part, whose digest is checked. Raises UserError: it is torn or damaged,
        or an array is missing, has another shape or type, or is not among `shapes`; one line.
        `some`: the part may hold others, which are left out."""
        from safetensors import SafetensorError, safe_open  # ranks need it, commands do not

        path = self.file_of(part)
        try:
            with (
                _checked(path, part) as file,
                # By the descriptor: what has been checked is what is read.
                safe_open(f"/proc/self/fd/{file.fileno()}", framework="numpy") as tensors,
            ):
                _check_shapes(path, tensors, shapes, some=some)
                return {name: tensors.get_tensor(name) for name in shapes}
        except SafetensorError as error:
            raise UserError(f"{path}: torn or damaged: {error}"[:400]) from None
        except MemoryError:
            raise UserError(f"{path}: cannot read: no memory for its arrays") from None

    def verify(self) -> None:
        """Raise UserError, one line, unless every part is there and has its digest."""
        for part in self.parts:
            _checked(self.file_of(part), part).close()


def file_name(step: int) -> str:
    """Of a manifest."""
    return f"step_{step:010d}.ckpt"


def digest_of(data: bytes) -> str:
    """Of a part in memory."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def row_of(data: bytes, *, busy: bool) -> bytes:
    """What a rank sends the others about its part `data`. `busy`: it still writes its last one."""
    return _ROW.pack(len(data), busy, bytes.fromhex(digest_of(data)))


def parts_of(rows: Sequence[bytes], rank: int) -> tuple[Part, ...] | None:
    """What the rows of all ranks mean on `rank`: on rank 0 the parts of all whose data differ from
    its own, for the manifest; on another its own, if it has one. None: a rank is busy."""
    if any(_ROW.unpack(row)[1] for row in rows):
        return None
    others = range(1, len(rows)) if rank == 0 else (rank,)  # all on each would be their square
    parts = []
    for other in others:
        if rows[other] != rows[0]:
            size_bytes, _, digest = _ROW.unpack(rows[other])
            parts.append(Part(rank=other, size_bytes=size_bytes, digest=digest.hex()))
    return tuple(parts)


def write(
    path: Path,
    meta: Meta,
    arrays: Mapping[str, NDArray[Any]],
    others: Sequence[Part] = (),
    logs: Sequence[Path] = (),
) -> None:
    """Write rank 0's part, `arrays`, and then the manifest `path`. Raises OSError.

    `others`: the parts that other ranks write. `logs`: the files, all in one folder, whose lengths
    `meta` has; they are on the disk before the manifest is.
    """
    from safetensors.numpy import save

    data = save(dict(arrays))
    model = Part(rank=0, size_bytes=len(data), digest=digest_of(data))
    write_part(path, model, data)
    for log in (*logs, *(log.parent for log in logs[:1])):
        _sync(log)
    manifest = _Manifest(meta=meta, parts=(model, *others)).model_dump_json().encode()
    manifest = manifest.removesuffix(b"}")
    _write_whole(path, manifest + f',"digest":"{digest_of(manifest)}"}}\n'.encode())


def write_part(path: Path, part: Part, data: bytes) -> None:
    """Write the part of a rank beside the manifest `path`. Raises OSError."""
    _write_whole(part.beside(path), data)


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears complete or not at all."""
    partial = partial_beside(path)
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """What has been written to a file, or to the list of a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> Checkpoint:
    """Read a manifest. Raises UserError: it cannot be read, is torn or damaged, or is no
    checkpoint; one line."""
    with failing_as(f"{path}: cannot read"):
        with open_file(path, within=path.parent) as file:
            if file.read(len(_OLD_FORMAT)) == _OLD_FORMAT:
                raise UserError(
                    f"{path}: a checkpoint of format 2 expected, found one of format 1, which rn50 "
                    "wrote until 2026-11-22; it cannot be read any more: train again"
                )
        text = read_file(path, _MAX_MANIFEST_BYTES, within=path.parent)
    body, end = text[:-_OWN_DIGEST_BYTES], text[-_OWN_DIGEST_BYTES:]
    found = _OWN_DIGEST.fullmatch(end)
    if not text.startswith(b'{"format":"rn50 checkpoint '):
        raise UserError(f"{path}: a checkpoint expected, found {len(text)} bytes of something else")
    if found is None or digest_of(body) != found[1].decode():
        raise UserError(f"{path}: torn or damaged: its digest does not fit its {len(text)} bytes")
    try:
        manifest = _Manifest.model_validate_json(body + b"}")
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"msg": "too deep"}
        where = ".".join(map(str, first.get("loc", ())))
        raise UserError(f"{path}: torn or damaged: {where}: {first['msg']}"[:400]) from None
    return Checkpoint(path, manifest.meta, manifest.parts)


def _checked(path: Path, part: Part) -> BinaryIO:
    """A part, open, with the size and digest of its manifest; read in small pieces."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with failing_as(f"{path}: cannot read"):
        file = open_file(path, MAX_BYTES, within=path.parent)
        try:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes != part.size_bytes:
                found = f"{part.size_bytes} bytes expected, found {size_bytes}"
                raise UserError(f"{path}: torn or damaged: {found}")
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
            if digest.hexdigest() != part.digest:
                found = f"its digest does not fit its {size_bytes} bytes"
                raise UserError(f"{path}: torn or damaged: {found}")
            return file
        except BaseException:
            file.close()
            raise


def _check_shapes(path: Path, tensors: Any, expected: Shapes, *, some: bool) -> None:
    """Of an open safetensors file, whose library has checked that they fit its size."""
    held = {}
    for name in tensors.keys():  # noqa: SIM118
        about = tensors.get_slice(name)
        dtype = about.get_dtype()
        held[name] = tuple(about.get_shape()), _DTYPES.get(dtype, dtype)
    for name in sorted(expected if some else held.keys() | expected.keys()):
        if held.get(name) != expected.get(name):
            wanted, is_there = (
                "no such array" if pair is None else f"{pair[1]} {list(pair[0])}"
                for pair in (expected.get(name), held.get(name))
            )
            raise UserError(f"{path}: {name[:200]}: {wanted} expected, found {is_there}"[:600])
