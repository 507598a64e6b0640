"""The one door for files that this program did not write: regular, bounded, inside their folder.

A FIFO does not hold the program up, a device or a sparse file is not read without end, and a
symbolic link in a foreign folder does not lead to a file outside it. What is refused raises OSError
with its reason as `strerror`, so a caller words it as it words a missing file.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_file(path: Path, most_bytes: int | None = None, *, within: Path | None = None) -> BinaryIO:
    """Open a regular file for reading, without waiting for anybody.

    Args:
        path: the file; symbolic links are followed.
        most_bytes: the largest file of its kind that makes sense; None: any, for what is streamed.
        within: the folder that the file must lie in once every link is followed; None: anywhere.

    Raises:
        OSError: it cannot be opened, is not a regular file, is larger, or lies elsewhere.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            kind = next((name for test, name in _KINDS if test(about.st_mode)), "something else")
            raise OSError(errno.EINVAL, f"a regular file expected, found {kind}", str(path))
        if about.st_dev in _kernel_devices():
            raise OSError(errno.EINVAL, "a file expected, found one of the kernel", str(path))
        if most_bytes is not None and about.st_size > most_bytes:
            raise OSError(
                errno.EFBIG,
                f"at most {most_bytes:,} bytes expected, found {about.st_size:,}",
                str(path),
            )
        # Asked of the descriptor and not of the name: no link can be changed in between.
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
    if data is None:  # /proc/kmsg says that it is a regular file, and waits
        raise OSError(errno.EAGAIN, "a file that can be read at once expected", str(path))
    if len(data) > most_bytes:  # it grew
        raise OSError(errno.EFBIG, f"at most {most_bytes:,} bytes expected", str(path))
    return data


@functools.cache
def _kernel_devices() -> frozenset[int]:
    """Of /proc and /sys, whose regular files say nothing of their size, and may wait for ever."""
    return frozenset(
        Path(folder).stat().st_dev for folder in ("/proc", "/sys") if Path(folder).is_dir()
    )


def _lies_in(descriptor: int, folder: Path) -> bool:
    place = Path(f"/proc/self/fd/{descriptor}").readlink()
    return place.is_relative_to(os.path.realpath(folder))
