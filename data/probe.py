"""Proof that nothing opens the records before the clock starts: the kernel tells (inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from ..config.errors import UserError

_IN_ACCESS, _IN_OPEN = 0x1, 0x20
_EVENT = struct.Struct("iIII")
_WATCHED = (".rec", ".idx")


class DataProbe:
    """Watches a packed set from its creation on; sees opens and reads by every local process."""

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        watch = -1
        if self._fd >= 0:
            watch = self._libc.inotify_add_watch(
                self._fd, os.fsencode(folder), _IN_OPEN | _IN_ACCESS
            )
        self.active = watch >= 0

    def touched(self) -> list[str]:
        """Names of record and index files opened or read since the last call."""
        names = set()
        while self.active:
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

    def check_untouched(self) -> None:
        """Raise UserError if a record or index file was opened, and stop watching."""
        names = self.touched()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.active = False
        if names:
            raise UserError(f"data set read before run_start: {', '.join(names)} opened")
