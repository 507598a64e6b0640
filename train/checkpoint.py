"""Checkpoint files: a JSON manifest and safetensors parts. Loads no framework.

    step_0000000020.ckpt                       manifest: state, parts with their digests; its own
    step_0000000020.model.safetensors          rank 0: weights, velocities, masters, statistics
    step_0000000020.rank_00001.safetensors     another rank's batch-norm statistics

A rank whose statistics are rank 0's has no part of its own: that is every rank right after an
evaluation that averaged them. A checkpoint is whole when all parts that its manifest names have the
digests (BLAKE2b) that it names; else the one before it counts.

Reading one executes nothing: no pickle; sizes, digests and the manifest's schema are checked before
an array is made. A file appears complete or not at all: temporary file, fsync, rename, fsync of the
folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..config.atomic import create_new, partial_beside
from ..config.errors import UserError
from ..config.reading import open_file, read_file
from ..config.renamed import rename_tree
from .state import Count, TrainState

DIGEST_BYTES = 32
BEST = "best.ckpt"
MAX_BYTES = 4 << 30
"""Of all parts: ResNet-50's on 2,048 ranks take 0.66 GB."""
_MAX_MANIFEST_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_NAME = re.compile(r"(step|best)_\d{10}\.(ckpt|model\.safetensors|rank_\d{5,7}\.safetensors)")
_OWN_DIGEST = re.compile(rb',"digest":"([0-9a-f]{64})"\}\n')
_OWN_DIGEST_BYTES = len(',"digest":""}\n') + 2 * DIGEST_BYTES
_CODES = {"float32": "F32", "float16": "F16"}
_DTYPES = {code: name for name, code in _CODES.items()}

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and type (float32) of arrays by name."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LossScaleState(_Strict):
    """Of `LossScaler.state_dict`."""

    value: float
    growth_tracker: Count = 0
    checks: tuple[tuple[Count, float, bool], ...] = ()
    """(step, scale, were its gradients finite?), not heeded yet."""


class Meta(_Strict):
    """Where a run was: everything but the arrays."""

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


class Part(_Strict):
    """One file of a checkpoint, written by one rank."""

    rank: Count
    size_bytes: Count
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @property
    def name(self) -> str:
        return f"rank_{self.rank:05d}.safetensors" if self.rank else "model.safetensors"


class _Manifest(_Strict):
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
        """Beside the manifest; those of the best have a second name, without which a later
        checkpoint could replace them."""
        stem = f"best_{self.meta.step:010d}" if self.path.name == BEST else self.path.stem
        return self.path.with_name(f"{stem}.{part.name}")

    def part_of(self, rank: int) -> Part:
        """Where the statistics of `rank` are."""
        return next((part for part in self.parts if part.rank == rank), self.parts[0])

    def load(self, part: Part, shapes: Shapes) -> dict[str, NDArray[Any]]:
        """The arrays of a part, whose digest is checked.

        Raises:
            UserError: it is torn or damaged, or an array is missing, has another shape or type, or
                is not among `shapes`; one line.
        """
        from safetensors import SafetensorError, safe_open  # ranks need it, commands do not

        path = self.file_of(part)
        try:
            with (
                _checked(path, part) as file,
                # By the descriptor: what has been checked is what is read.
                safe_open(f"/proc/self/fd/{file.fileno()}", framework="numpy") as tensors,
            ):
                _check_shapes(path, _shapes(tensors), shapes)
                return {name: tensors.get_tensor(name) for name in shapes}
        except SafetensorError as error:
            raise UserError(f"{path}: torn or damaged: {error}"[:400]) from None
        except MemoryError:
            raise UserError(f"{path}: cannot read: no memory for its arrays") from None

    def verify(self) -> None:
        """Raise UserError, one line, unless every part is there and has its digest."""
        for part in self.parts:
            _checked(self.file_of(part), part).close()

    @property
    def is_there(self) -> bool:
        """Have all parts their sizes? No proof that they are whole."""
        try:
            return all(self.file_of(p).stat().st_size == p.size_bytes for p in self.parts)
        except OSError:
            return False


def file_name(step: int) -> str:
    """Of a manifest."""
    return f"step_{step:010d}.ckpt"


def write(
    path: Path, meta: Meta, arrays: Mapping[str, NDArray[Any]], others: Sequence[Part] = ()
) -> None:
    """Write rank 0's part and then the manifest.

    Args:
        path: of the manifest.
        meta: state of the run.
        arrays: rank 0's.
        others: parts that other ranks write.

    Raises:
        OSError: and leaves nothing behind then.
    """
    model = Part(rank=0, size_bytes=0, digest="0" * 64)
    size_bytes, digest = _write_tensors(path.with_name(f"{path.stem}.{model.name}"), arrays)
    model = model.model_copy(update={"size_bytes": size_bytes, "digest": digest})
    manifest = _Manifest(meta=meta, parts=(model, *others)).model_dump_json().encode()
    manifest = manifest.removesuffix(b"}")
    own = hashlib.blake2b(manifest, digest_size=DIGEST_BYTES).hexdigest()
    write_whole(path, [manifest, f',"digest":"{own}"}}\n'.encode()])


def write_part(path: Path, part: Part, data: bytes) -> None:
    """Write the part of a rank above 0 beside the manifest `path`. Raises OSError."""
    write_whole(path.with_name(f"{path.stem}.{part.name}"), [data])


def write_whole(path: Path, pieces: Sequence[Any]) -> tuple[int, str]:
    """Write a file that appears complete or not at all; returns (bytes, digest). Raises OSError."""
    partial = partial_beside(path)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    try:
        with os.fdopen(create_new(partial), "wb") as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            size_bytes = file.tell()
        partial.replace(path)
        _sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)
    return size_bytes, digest.hexdigest()


def _write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> tuple[int, str]:
    """Write a safetensors file array by array; returns (bytes, digest). Raises OSError.

    The bytes are those of the library's `save_file`, which would leave a file of a name of its own
    behind where the process is killed, and read all of it again for the digest.
    """
    in_order = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header, start = {}, 0
    for name, array in in_order:
        dtype, end = _CODES[array.dtype.name], start + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    pieces: list[Any] = [struct.pack("<Q", len(text)), text]
    pieces += [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for _, a in in_order]
    return write_whole(path, pieces)


def digest_of(data: bytes) -> str:
    """Of a part in memory."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _digest_of_file(file: BinaryIO) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def read(path: Path) -> Checkpoint:
    """Read a manifest.

    Raises:
        UserError: it cannot be read, is torn or damaged, or is no checkpoint; one line.
    """
    try:
        text = read_file(path, _MAX_MANIFEST_BYTES, within=path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from None
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
    """A part, open, with the size and digest that its manifest says; read in small pieces."""
    try:
        file = open_file(path, MAX_BYTES, within=path.parent)
        try:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes != part.size_bytes:
                raise UserError(
                    f"{path}: torn or damaged: {part.size_bytes} bytes expected, found {size_bytes}"
                )
            if _digest_of_file(file) != part.digest:
                raise UserError(
                    f"{path}: torn or damaged: its digest does not fit its {size_bytes} bytes"
                )
            return file
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from None


def _shapes(tensors: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Of an open safetensors file, whose library has checked that they fit its size."""
    slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
    return {
        name: (tuple(about.get_shape()), _DTYPES.get(about.get_dtype(), about.get_dtype()))
        for name, about in slices.items()
    }


def _check_shapes(path: Path, held: Shapes, expected: Shapes) -> None:
    for name in sorted(held.keys() | expected.keys()):
        if held.get(name) != expected.get(name):
            wanted, is_there = (
                "no such array" if pair is None else f"{pair[1]} {list(pair[0])}"
                for pair in (expected.get(name), held.get(name))
            )
            raise UserError(f"{path}: {name[:200]}: {wanted} expected, found {is_there}"[:600])


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of a folder, and what is wrong with those that are newer."""
    problems: list[str] = []
    for path in reversed(listed(folder)):
        try:
            found = read(path)
            found.verify()
            return found, problems
        except UserError as error:
            problems.append(str(error))
    return None, problems


def listed(folder: Path) -> list[Path]:
    """Manifests by step, oldest first; whole or not."""
    return sorted(path for path, kind in _files(folder) if (kind, path.suffix) == ("step", ".ckpt"))


def prune(folder: Path, keep: int) -> None:
    """Remove what is older than the newest `keep` checkpoints (the best has names of its own).

    One that lacks a part of another rank, whose disk is slower, does not count yet.
    """
    kept = 0
    for path in reversed(listed(folder)):
        with suppress(UserError):
            kept += read(path).is_there
        if kept == keep:
            _remove_older(folder, "step", path.name)
            return


def mark_best(path: Path, part: Part | None = None) -> None:
    """Give a checkpoint the name `best.ckpt` too, and a part the name that goes with it.

    Each rank does so for its own part, rank 0 (`part` None) for its own and then the manifest.
    """
    found = read(path) if part is None else None
    own = found.parts[0] if found else part
    assert own is not None
    best = path.with_name(f"best_{path.stem.partition('_')[2]}.{own.name}")
    _link(path.with_name(f"{path.stem}.{own.name}"), best)
    if found:
        _link(path, path.with_name(BEST))
        _remove_older(path.parent, "best", best.name, every=True)


def _remove_older(folder: Path, kind: str, name: str, *, every: bool = False) -> None:
    """Files of `kind` of steps before that of `name` (with `every`: and after it)."""
    step = name[: len("step_0000000000")]
    for path, of_kind in sorted(_files(folder)):  # a manifest goes before its parts
        other = path.name[: len(step)]
        if of_kind == kind and (other < step or (every and other != step)):
            path.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Remove what a writer that was killed has left; nothing where the folder is a link."""
    if folder.is_symlink():
        return
    for path in folder.glob(".*.partial-*"):
        with suppress(OSError):
            path.unlink()


def _files(folder: Path) -> list[tuple[Path, str]]:
    """(path, "step" or "best") of all files of checkpoints, but `best.ckpt`."""
    try:
        found = [(path, _NAME.fullmatch(path.name)) for path in folder.iterdir()]
    except OSError:
        return []
    return [(path, name[1]) for path, name in found if name]


def _link(path: Path, name: Path) -> None:
    partial = partial_beside(name)
    try:
        os.link(path, partial)
        partial.replace(name)
    finally:
        partial.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
