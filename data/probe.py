"""The data set before the clock starts: its page caches are dropped, and no process may
have a file of it open."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..host.errors import UserError

_WATCHED = (".rec", ".idx")


def drop_caches(folder: Path) -> None:
    """Evict every file of `folder` from the page cache, as the rules ask before a timed run
    (posix_fadvise DONTNEED, which needs no root).

    Dirty pages cannot be evicted, so they are written first. `rn50 bench scaling` has no folder.
    """
    for path in folder.glob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            with suppress(OSError):  # squashfs has no dirty pages and refuses
                os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


class DataProbe:
    """Watches from its creation on whether this process opens the records of a packed set; the
    interpreter reports what it opens (audit hook)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._opened: set[str] = set()
        self._active = True
        sys.addaudithook(self._audit)

    def check_untouched(self) -> None:
        """End the watch. Raises UserError: this process opened a record or index file."""
        self._active = False  # an audit hook cannot be removed
        if self._opened:
            opened = ", ".join(sorted(self._opened))
            raise UserError(f"data set read before run_start: {opened} opened")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self._active:
            return
        name = arguments[0]
        if isinstance(name, str | bytes | os.PathLike):
            path = Path(os.fsdecode(name))
            folder = path.parent.resolve()
            if path.suffix in _WATCHED and folder == self._folder:
                self._opened.add(path.name)
