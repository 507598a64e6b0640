"""The one door for files that this program did not write: regular, bounded, inside their folder.

A FIFO does not hold the program up, a device or a sparse file is not read without end, and a
symbolic link in a foreign folder does not lead to a file outside it. What is refused raises OSError
with its reason as `strerror`, so a caller words it as it words a missing file.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

_OBJECT_BYTES = 16 << 20
"""The largest JSON object of a run's folder: result.json has some kB."""
_END_BYTES = 1 << 20
"""How much is read of either end of a log: 7,000 lines of metrics.jsonl."""
_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|thread-self))/fd/(\d{1,9})")
_MOST_LINKS = 40  # as Linux follows them
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_file(path: Path, most_bytes: int | None = None, *, within: Path | None = None) -> BinaryIO:
    """Open a regular file for reading, without waiting.

    Raises OSError: it cannot be opened, is not a regular file, is larger, or lies elsewhere.

    Args:
        path: the file; symbolic links are followed.
        most_bytes: the largest file of its kind that makes sense; None: any, for what is streamed.
        within: the folder that the file must lie in once every link is followed; None: anywhere.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            kind = next((name for test, name in _KINDS if test(about.st_mode)), "something else")
            raise OSError(errno.EINVAL, f"a regular file expected, found {kind}", str(path))
        if most_bytes is not None and about.st_size > most_bytes:
            raise OSError(
                errno.EFBIG,
                f"at most {most_bytes:,} bytes expected, found {about.st_size:,}",
                str(path),
            )
        # By the descriptor and not by the name: no link can be changed in between.
        if within is not None and not _lies_in(descriptor, within):
            raise OSError(errno.EXDEV, f"a link out of {within}, which is not followed", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, most_bytes: int, *, within: Path | None = None) -> bytes:
    """The bytes of a regular file; arguments and errors as of `open_file`."""
    with open_file(path, most_bytes, within=within) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:  # it grew
        raise OSError(errno.EFBIG, f"at most {most_bytes:,} bytes expected", str(path))
    return data


def read_ends(path: Path) -> str:
    """The text of a log, of a long one its first and last megabyte; nothing where it cannot be
    read, or is no regular file of its folder."""
    try:
        with open_file(path, within=path.parent) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(_END_BYTES)
            if size > 2 * _END_BYTES:
                file.seek(-_END_BYTES, os.SEEK_END)
                start += b"\n"
            return (start + file.read(_END_BYTES)).decode(errors="replace")
    except OSError:
        return ""


def read_text(path: Path) -> str:
    """The text of a small file of the kernel, such as one in /proc; nothing where there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def read_object(path: Path, most_bytes: int = _OBJECT_BYTES) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is none, or it is not of its folder."""
    try:
        value = json.loads(read_file(path, most_bytes, within=path.parent).decode())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def named_descriptor(path: Path) -> int | None:
    """The open descriptor of this process that a path names, such as /dev/stdin; None: none."""
    name = path.absolute()
    for _ in range(_MOST_LINKS):
        if match := _DESCRIPTOR.fullmatch(str(name)):
            return int(match[1])
        try:
            name = name.parent / name.readlink()
        except OSError:
            return None
    return None


def _lies_in(descriptor: int, folder: Path) -> bool:
    place = Path(f"/proc/self/fd/{descriptor}").readlink()
    return place.is_relative_to(os.path.realpath(folder))
