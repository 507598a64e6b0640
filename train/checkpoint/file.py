"""The format of a checkpoint: one safetensors file, `step_0000000020.ckpt`. Loads no framework.

Its arrays are weights, velocities, float32 masters and batch-norm statistics. Statistics have a row
for each rank, or one row where they are the same on all ranks, as after an evaluation that averaged
them. The metadata of the file holds the state of training, and a digest (BLAKE2b) of the file as it
was before the digest took its place in it.

Reading one executes nothing: no pickle; size, digest and schema are checked before an array is
made. A file appears complete or not at all: temporary file, fsync, rename, fsync of the folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

from numpy.typing import NDArray
from pydantic import Field, ValidationError

from ...host.atomic import partial_beside, sync
from ...host.errors import UserError, failing_as
from ...host.reading import open_file
from .state import Meta, Strict

DIGEST_BYTES = 32
BEST = "best.ckpt"
MAX_BYTES = 4 << 30
"""ResNet-50's on 2,048 ranks takes 0.66 GB."""
_MAX_HEADER_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_LENGTH_BYTES = 8
_NO_DIGEST = "-" * 2 * DIGEST_BYTES
"""Stands in the place of the digest while it is computed, so that no length changes."""
_DTYPES = {"F32": "float32", "F16": "float16"}

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and type (float32) of arrays by name."""


class _Metadata(Strict):
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    meta: str


class Checkpoint(NamedTuple):
    """A checkpoint whose metadata has been read; its arrays are read by `load`."""

    path: Path
    meta: Meta
    digest: str

    def load(self, shapes: Shapes) -> dict[str, NDArray[Any]]:
        """The arrays of these names in the file, whose digest is checked. Raises UserError: it is
        torn or damaged, or an array is missing or has another shape or type; one line."""
        # ranks need it, commands do not
        from safetensors import SafetensorError, safe_open

        path = self.path
        try:
            with (
                self._checked() as file,
                # By the descriptor: what has been checked is what is read.
                safe_open(
                    f"/proc/self/fd/{file.fileno()}", framework="numpy"
                ) as tensors,
            ):
                _check_shapes(path, tensors, shapes)
                return {name: tensors.get_tensor(name) for name in shapes}
        except SafetensorError as error:
            raise UserError(f"{path}: torn or damaged: {error}"[:400]) from None
        except MemoryError:
            raise UserError(f"{path}: cannot read: no memory for its arrays") from None

    def verify(self) -> None:
        """Raise UserError, one line, unless the file has its digest."""
        self._checked().close()

    def _checked(self) -> BinaryIO:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        with failing_as(f"{self.path}: cannot read"):
            file = open_file(self.path, MAX_BYTES, within=self.path.parent)
            try:
                header = _read_header(file)
                # the digest is of the file as it was before the digest was in it
                digest.update(_with_digest(header, self.digest, _NO_DIGEST))
                while piece := file.read(_PIECE_BYTES):
                    digest.update(piece)
                if digest.hexdigest() != self.digest:
                    raise UserError(
                        f"{self.path}: torn or damaged: its digest does not fit"
                    )
                return file
            except BaseException:
                file.close()
                raise


def file_name(step: int) -> str:
    """The name of a checkpoint."""
    return f"step_{step:010d}.ckpt"


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint."""
    return int(path.stem.partition("_")[2])


def write_checkpoint(
    path: Path,
    meta: Meta,
    arrays: Mapping[str, NDArray[Any]],
    logs: Sequence[Path] = (),
) -> None:
    """Write a file that appears complete or not at all. Raises OSError.

    Args:
        path: where it appears.
        meta: everything but the arrays.
        arrays: by their names.
        logs: the files whose lengths `meta` has; they are on the disk before it.
    """
    import numpy as np
    from safetensors.numpy import save

    metadata = {"digest": _NO_DIGEST, "meta": meta.model_dump_json()}
    # Of another array than a contiguous one safetensors would take other elements.
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    data = memoryview(save(contiguous, metadata))
    digest = hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = _with_digest(bytes(data[:end]), _NO_DIGEST, digest)
    for path_of_run in (*logs, *{log.parent for log in logs}):
        sync(path_of_run)
    # one name for all steps: a run may never come to the step of a dead writer again
    with partial_beside(path.with_name("step.ckpt")) as partial:
        with partial.open("wb") as file:
            file.write(header)
            file.write(data[end:])
        sync(partial)
        partial.replace(path)
    sync(path.parent)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the metadata of a checkpoint. Raises UserError: it cannot be read, is torn or damaged,
    or is no checkpoint; one line."""
    with (
        failing_as(f"{path}: cannot read"),
        open_file(path, MAX_BYTES, within=path.parent) as file,
    ):
        header = _read_header(file)[_LENGTH_BYTES:]
    try:
        metadata = _Metadata.model_validate(json.loads(header)["__metadata__"])
        return Checkpoint(
            path, Meta.model_validate_json(metadata.meta), metadata.digest
        )
    except ValidationError as error:
        first = error.errors()[0]
        content = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        content = "something else"
    problem = f"torn or damaged: a checkpoint of this rn50 expected, found {content}"
    raise UserError(f"{path}: {problem}"[:400])


def _with_digest(header: bytes, present: str, digest: str) -> bytes:
    return header.replace(f'"{present}"'.encode(), f'"{digest}"'.encode(), 1)


def _read_header(file: BinaryIO) -> bytes:
    """The length of safetensors' header and the header."""
    length = file.read(_LENGTH_BYTES)
    size = int.from_bytes(length, "little")
    return length + file.read(min(size, _MAX_HEADER_BYTES))


def _check_shapes(path: Path, tensors: Any, expected: Shapes) -> None:
    """Check an open safetensors file, whose library has checked that they fit its size."""
    names = set(tensors.keys())
    for name, (shape, dtype) in sorted(expected.items()):
        form = f"{dtype} {list(shape)}"
        present = "no such array"
        if name in names:
            array = tensors.get_slice(name)
            type_held = array.get_dtype()
            present = f"{_DTYPES.get(type_held, type_held)} {list(array.get_shape())}"
        if present != form:
            raise UserError(
                f"{path}: {name[:200]}: {form} expected, found {present}"[:600]
            )
