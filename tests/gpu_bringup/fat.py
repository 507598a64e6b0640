"""Small libraries with fat binaries in them, assembled byte by byte."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Code(NamedTuple):
    """One entry to be: kind 1 is PTX, 2 machine code."""

    kind: int
    sm: int
    payload: bytes
    flags: int = 0


def fat_binary(codes: Sequence[Code]) -> bytes:
    body = b"".join(
        struct.pack(
            *("<HHIQIIHHIIIQQQ", code.kind, 0x101, 64, len(code.payload), 0, 0, 0, 8, code.sm),
            *(0, 0, code.flags, 0, 0),
        )
        + code.payload
        for code in codes
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(path: Path, **sections: bytes) -> Path:
    """A shared library with these sections: `nv_fatbin`, `nv_relfatbin`, and any other name."""
    names = {"nv_fatbin": ".nv_fatbin", "nv_relfatbin": "__nv_relfatbin"}
    lines = []
    for name, content in sections.items():
        blob = path.with_name(f"{path.name}.{name}")
        blob.write_bytes(content)
        lines += [f'.section {names.get(name, name)},"a"', ".balign 8", f'.incbin "{blob}"']
    source = path.with_name(f"{path.name}.s")
    source.write_text("\n".join([*lines, ".section .note.GNU-stack", ""]))
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-shared", "-nostdlib", source, "-o", path], check=True)
    for left in path.parent.glob(f"{path.name}.*"):
        left.unlink()
    return path
