"""Copies of GPU libraries without the code that one GPU cannot load.

The payloads of all other entries become holes, so that they compress away; every other byte, sizes
and headers among them, stays. The driver reads headers to choose an entry, then its payload.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from .fatbin import Entry, FatbinError, entries

BLOCK_BYTES = 1 << 24


def unloadable(found: Iterable[Entry], sm: int) -> list[Entry]:
    """The entries that a GPU of compute capability `sm` (90 is 9.0) has no use for.

    Of each fat binary stays the newest machine code that the GPU runs (same major number, no higher
    minor); where there is none the newest PTX that the driver can compile for it; kinds other than
    these two always.
    """
    fatbins: dict[int, list[Entry]] = {}
    for entry in found:
        fatbins.setdefault(entry.fatbin, []).append(entry)
    dropped = []
    for members in fatbins.values():
        known = [entry for entry in members if entry.kind in ("ELF", "PTX")]
        code = [e for e in known if e.kind == "ELF" and e.sm // 10 == sm // 10 and e.sm <= sm]
        usable = code or [e for e in known if e.kind == "PTX" and e.sm <= sm]
        newest = max((entry.sm for entry in usable), default=None)
        kept = {entry.offset for entry in usable if entry.sm == newest}
        dropped += [entry for entry in known if entry.offset not in kept]
    return dropped


def thin(source: Path, target: Path, sm: int) -> int:
    """Copy a library without what `sm` cannot load (0: nothing); how many bytes became holes.

    Raises:
        FatbinError: its GPU code does not read as such.
    """
    dropped = sorted(unloadable(entries(source), sm), key=lambda entry: entry.offset)
    if not dropped:
        shutil.copyfile(source, target)
        return 0
    size = source.stat().st_size
    with source.open("rb") as old, target.open("wb") as new:
        new.truncate(size)
        place = 0
        for start, skip in [*((entry.offset, entry.size) for entry in dropped), (size, 0)]:
            old.seek(place)
            new.seek(place)
            while place < start:
                block = old.read(min(start - place, BLOCK_BYTES))
                if not block:
                    raise FatbinError(f"{source}: {size} bytes expected, found {place}")
                place += new.write(block)
            place = start + skip
    return sum(entry.size for entry in dropped)
