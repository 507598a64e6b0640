"""MXNet's RecordIO, written and read: bytes of images with a label, one record an image.

A record is magic, length word, payload, zero padding to 4 bytes; the payload starts with a 24-byte
header (flag u32, label f32, id u64, id2 u64). Where the payload itself holds the magic number at
an aligned place the record is split there and the number left out, as dmlc-core does
(dmlc-core src/recordio.cc), so that a reader can find record starts in a damaged file.
"""

from __future__ import annotations

import re
import struct
from typing import BinaryIO, NamedTuple

import numpy as np

from ..config.errors import UserError

MAGIC = 0xCED7230A
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_WORDS = struct.Struct("<II")
_HEADER = struct.Struct("<IfQQ")
HEADER_BYTES = _WORDS.size + _HEADER.size
_LENGTH_BITS = 29
_MAX_LENGTH = (1 << _LENGTH_BITS) - 1
_WHOLE = 0
_FIRST = 1
_MIDDLE = 2
_LAST = 3


class Record(NamedTuple):
    label: float
    id: int
    image: bytes


def encode(label: float, record_id: int, image: bytes) -> list[bytes]:
    """One record as pieces to write one after the other. The image has less than 512 MiB."""
    header = _HEADER.pack(0, label, record_id, 0)
    length = len(header) + len(image)
    # 8 us for 110 kB, where `in` takes 150. The header has it nowhere: no label or number does.
    if not (np.frombuffer(image, "<u4", len(image) // 4) == MAGIC).any():
        return [_WORDS.pack(MAGIC, length) + header, image, bytes(-length % 4)]
    parts = _split_at_magic(header + image)
    flags = (
        [_FIRST, *[_MIDDLE] * (len(parts) - 2), _LAST] if len(parts) > 1 else [_WHOLE]
    )
    chunks = []
    for flag, part in zip(flags, parts, strict=True):
        words = _WORDS.pack(MAGIC, flag << _LENGTH_BITS | len(part))
        chunks += [words, part, bytes(-len(part) % 4)]
    return chunks


def is_split(record: list[bytes]) -> bool:
    """Whether an encoded record lies in several parts (its image is then not contiguous)."""
    return bool(_WORDS.unpack_from(record[0])[1] >> _LENGTH_BITS != _WHOLE)


def read(file: BinaryIO, offset: int, name: str) -> Record:
    """The record at byte `offset` of `file`. Raises UserError naming file and offset."""
    try:
        file.seek(offset)
        payload = _read_payload(file)
        _, label, record_id, _ = _HEADER.unpack_from(payload)
    except (struct.error, ValueError, OverflowError, OSError) as error:
        raise UserError(
            f"{name}: a record at byte {offset} expected: {error}"
        ) from None
    return Record(label, record_id, bytes(payload[_HEADER.size :]))


def _read_payload(file: BinaryIO) -> bytearray:
    """Raises ValueError, struct.error: the file ends, or has no record there."""
    payload = bytearray()
    while True:
        words = file.read(_WORDS.size)
        if len(words) < _WORDS.size:
            raise ValueError("found the end of the file")
        magic, word = _WORDS.unpack(words)
        if magic != MAGIC:
            raise ValueError(f"magic {MAGIC:#x} expected, found {magic:#x}")
        flag = word >> _LENGTH_BITS
        length = word & _MAX_LENGTH
        part = file.read(length)
        if len(part) < length:
            raise ValueError(f"{length} bytes expected, found {len(part)} (truncated)")
        payload += part
        file.seek(-length % 4, 1)
        if flag in (_WHOLE, _LAST):
            return payload
        payload += _MAGIC_BYTES


def _split_at_magic(payload: bytes) -> list[bytes]:
    parts = []
    start = 0
    for found in re.finditer(re.escape(_MAGIC_BYTES), payload):  # two cannot overlap
        if found.start() % 4 == 0:
            parts.append(payload[start : found.start()])
            start = found.end()
    return [*parts, payload[start:]]
