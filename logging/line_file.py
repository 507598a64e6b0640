"""A file of lines that a run writes for hours, and that somebody may remove meanwhile."""

import os
import re
from pathlib import Path
from typing import Literal, TextIO

from ..host.atomic import write_file
from ..host.errors import failing_as
from ..host.progress import say_aside
from ..host.reading import open_file

_TAIL_BYTES = 65536


class LineFile:
    """Appends lines, each on disk at once: to a new file, or with `resumed` to what is there. One
    that was removed is put back with all that it had, which the open file still has. Raises
    UserError: it cannot be opened, written or put back."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        self._path = path
        self._file = self._open("a" if resumed else "w")

    def write(self, line: str) -> None:
        """Append a line."""
        self._put_back()
        with failing_as(f"{self._path}: cannot write"):
            self._file.write(f"{line}\n")

    @property
    def size_bytes(self) -> int:
        """The size of the file so far."""
        self._put_back()
        return os.fstat(self._file.fileno()).st_size

    def _open(self, mode: Literal["a", "w"]) -> TextIO:
        with failing_as(f"{self._path}: cannot open"):
            # 1: a line goes to the system when it ends
            return self._path.open(mode, buffering=1)

    def _put_back(self) -> None:
        if self._path.exists():
            return
        with failing_as(
            f"{self._path}: removed while the run was in progress, cannot be put back"
        ):
            # a removed file lives as long as somebody has it open, and Linux shows it here
            write_file(
                self._path, Path(f"/proc/self/fd/{self._file.fileno()}").read_bytes()
            )
        self._file.close()
        self._file = self._open("a")
        say_aside(
            f"rn50: warning: {self._path}: removed while the run was in progress; put back with "
            "all of its lines; training goes on"
        )


def read_end(path: Path, most_bytes: int) -> bytes:
    """The end of such a file. Raises OSError: it is no regular file of its folder."""
    with open_file(path, within=path.parent) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes)


def last_stamp_unix_s(path: Path) -> float:
    """The latest stamp near the end of a log, in seconds since 1970; 0 where there is none."""
    try:
        tail = read_end(path, _TAIL_BYTES)
    except OSError:
        return 0.0
    # a search, as the end of a log may be half a record; 15 digits of milliseconds last long
    stamps = re.findall(rb'"time_ms":\s*(\d{1,15})\b', tail)
    return max(map(int, stamps), default=0) / 1000
