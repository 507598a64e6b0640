"""Proof that nothing reads the records before the clock starts: kernel and interpreter tell."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Any

from ..config.errors import UserError

_IN_ACCESS, _IN_OPEN = 0x1, 0x20
_EVENT = struct.Struct("iIII")
_WATCHED = (".rec", ".idx")


class DataProbe:
    """Watches a packed set from its creation on.

    inotify sees every open and read on this node. It does not say whose, and another run may use
    the same set, so an event counts against this process if the interpreter saw it open the file
    (audit hook) or if the file is open or mapped (/proc/self).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._opened: set[str] = set()
        self.active = True
        sys.addaudithook(self._audit)
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            libc.inotify_add_watch(self._fd, os.fsencode(folder), _IN_OPEN | _IN_ACCESS)

    def touched(self) -> list[str]:
        """Names of record and index files opened or read by anybody on this node since last."""
        names = set()
        while self._fd >= 0:
            try:
                block = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                break
            position = 0
            while position < len(block):
                _, _, _, length = _EVENT.unpack_from(block, position)
                position += _EVENT.size
                name = block[position : position + length].rstrip(b"\0").decode(errors="replace")
                position += length
                if name.endswith(_WATCHED):
                    names.add(name)
        return sorted(names)

    def check_untouched(self) -> list[str]:
        """End the watch; returns the names of files that other processes read meanwhile. Raises
        UserError: this process opened a record or index file."""
        names = self.touched()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.active = False  # an audit hook cannot be removed
        if mine := sorted(self._opened | self._held()):
            raise UserError(f"data set read before run_start: {', '.join(mine)} opened")
        return names

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self.active and isinstance(arguments[0], str | bytes | os.PathLike):
            path = Path(os.fsdecode(arguments[0]))
            if path.name.endswith(_WATCHED) and path.parent.resolve() == self._folder:
                self._opened.add(path.name)

    def _held(self) -> set[str]:
        """Watched files that are open or mapped in this process now."""
        held = {os.path.realpath(entry) for entry in Path("/proc/self/fd").glob("*")}
        maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        held |= {line.split(maxsplit=5)[-1] for line in maps}
        paths = (Path(text) for text in held)
        return {p.name for p in paths if p.parent == self._folder and p.name.endswith(_WATCHED)}
