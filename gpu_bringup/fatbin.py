"""The GPU code inside a library: which architectures its fat binaries hold.

    python gpu_bringup/fatbin.py LIBRARY...       a table per library

nvcc puts fat binaries one after the other into the ELF sections `.nv_fatbin` and `__nv_relfatbin`;
the driver picks from each the entry it can load. All little-endian, as read from the wheels:

    fat binary  u32 magic BA55ED50 | u16 version | u16 header bytes | u64 bytes of its entries
    entry       u16 kind (1 PTX, 2 ELF) | u16 version | u32 header bytes | u64 payload bytes
                u32 compressed bytes | u32 | u16 minor | u16 major | u32 sm | u32 | u32
                u64 flags | u64 | u64 uncompressed bytes | ... payload
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = 0xBA55ED50
SECTIONS = (".nv_fatbin", "__nv_relfatbin")
KINDS = {1: "PTX", 2: "ELF"}
COMPRESSED = 0x2000 | 0x8000  # LZ4, and zstd since CUDA 12.8

_FATBIN = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")


class FatbinError(ValueError):
    """A library that does not read as one; the message is one line that names it."""


class Entry(NamedTuple):
    section: str
    fatbin: int
    """Where its fat binary starts in the file: the driver picks one entry of each."""
    offset: int
    """Where its payload starts in the file."""
    size: int
    """Bytes of the payload as stored."""
    kind: str
    """ELF (machine code), PTX, or the number of another kind."""
    sm: int
    compressed: bool


def entries(path: Path) -> Iterator[Entry]:
    """Every entry of every fat binary of a library, in file order; none where it has no GPU code.

    Raises:
        FatbinError: not a 64-bit little-endian ELF, or broken off or garbled somewhere.
    """
    with path.open("rb") as file:
        if path.stat().st_size < 64:
            raise FatbinError(f"{path}: an ELF file expected, found {path.stat().st_size} bytes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for name, start, size in _sections(path, data):
                if name in SECTIONS:
                    yield from _read_section(path, data, name, start, start + size)


def _sections(path: Path, data: mmap.mmap) -> Iterator[tuple[str, int, int]]:
    """(name, offset, bytes) of each section that occupies the file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise FatbinError(f"{path}: a 64-bit little-endian ELF expected, found {data[:6].hex()}")
    (table,) = struct.unpack_from("<Q", data, 40)
    step, count, names_at = struct.unpack_from("<HHH", data, 58)
    if count == 0:
        return
    if step < _SECTION.size or names_at >= count or table + step * count > len(data):
        raise FatbinError(
            f"{path}: {count} section headers at byte {table} expected, found {len(data)} bytes"
        )
    headers = [_SECTION.unpack_from(data, table + step * number) for number in range(count)]
    names, names_size = headers[names_at][4:6]
    for name, kind, _, _, offset, size, *_ in headers:
        if kind in (0, 8):  # unused; without bytes in the file
            continue
        if offset + size > len(data) or name >= names_size:
            raise FatbinError(
                f"{path}: a section of {size} bytes at byte {offset} expected, "
                f"found a file of {len(data)}"
            )
        end = data.find(b"\0", names + name, names + names_size)
        yield data[names + name : max(end, names + name)].decode("ascii", "replace"), offset, size


def _read_section(
    path: Path, data: mmap.mmap, section: str, start: int, end: int
) -> Iterator[Entry]:
    place = start
    while (place := _skip_padding(data, place, end)) < end:
        if end - place < _FATBIN.size:
            raise FatbinError(f"{path}: byte {place}: a fat binary expected, found {section}'s end")
        magic, _, header, size = _FATBIN.unpack_from(data, place)
        if magic != MAGIC:
            raise FatbinError(f"{path}: byte {place}: a fat binary expected, found {magic:08x}")
        stop = place + header + size
        if header < _FATBIN.size or stop > end:
            raise FatbinError(
                f"{path}: byte {place}: a fat binary of {header} + {size} bytes expected, "
                f"found {end - place} to the end of {section}"
            )
        yield from _read_fatbin(path, data, section, place, place + header, stop)
        place = stop


def _skip_padding(data: mmap.mmap, place: int, end: int) -> int:
    while place < end and data[place] == 0:
        place += 1
    return place


def _read_fatbin(
    path: Path, data: mmap.mmap, section: str, fatbin: int, place: int, stop: int
) -> Iterator[Entry]:
    while place < stop:
        if stop - place < _ENTRY.size:
            raise FatbinError(
                f"{path}: byte {place}: an entry expected, found its fat binary's end at {stop}"
            )
        kind, _, header, size, _, _, _, _, sm, _, _, flags, _, _ = _ENTRY.unpack_from(data, place)
        if header < _ENTRY.size or place + header + size > stop:
            raise FatbinError(
                f"{path}: byte {place}: an entry of {header} + {size} bytes expected, "
                f"found {stop - place} to the end of its fat binary"
            )
        yield Entry(
            section,
            fatbin,
            place + header,
            size,
            KINDS.get(kind, str(kind)),
            sm,
            bool(flags & COMPRESSED),
        )
        place += header + size


def architectures(path: Path) -> dict[str, set[int]]:
    """What a library holds: kind of code to compute capabilities (80 is 8.0)."""
    found: dict[str, set[int]] = {}
    for entry in entries(path):
        found.setdefault(entry.kind, set()).add(entry.sm)
    return found


def table(path: Path) -> str:
    """What a library holds, as lines: section, kind, architecture, entries, megabytes."""
    number: Counter[tuple[str, str, int]] = Counter()
    stored: Counter[tuple[str, str, int]] = Counter()
    packed: Counter[tuple[str, str, int]] = Counter()
    for entry in entries(path):
        key = (entry.section, entry.kind, entry.sm)
        number[key] += 1
        stored[key] += entry.size
        packed[key] += entry.compressed
    lines = [f"{path}: {sum(number.values())} entries, {sum(stored.values()) / 1e6:.1f} MB"]
    lines += [
        f"  {section:15} {kind:4} sm_{sm:<4} {number[key]:6} entries, {packed[key]:6} compressed "
        f"{stored[key] / 1e6:8.1f} MB"
        for key in sorted(number)
        for section, kind, sm in [key]
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    for name in arguments:
        try:
            print(table(Path(name)))
        except (FatbinError, OSError) as error:
            print(f"fatbin: error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
