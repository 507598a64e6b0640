"""The only way to open files not written by this program: regular, bounded, inside their folder.

A FIFO does not hold the program up, a device or a sparse file is not read without end, and a
symbolic link in a foreign folder does not lead to a file outside it. What is refused raises OSError
with its reason as `strerror`, so that callers report it as they report a missing file.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from .errors import UserError, failing_as
from .finding import shown

_OBJECT_BYTES = 16 << 20
"""The largest JSON object of a run's folder: result.json has some kB."""
_BLOCK_BYTES = 4 << 20
_END_BYTES = 1 << 20
"""How much is read of either end of a log: 7,000 lines of metrics.jsonl."""
_STREAMS = {
    "/dev/stdin": "/dev/fd/0",
    "/dev/stdout": "/dev/fd/1",
    "/dev/stderr": "/dev/fd/2",
}
# A FIFO without a writer opens at once, and a terminal does not become this process's own.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

JsonObject: TypeAlias = dict[str, Any]


def open_file(
    path: Path, most_bytes: int | None = None, *, within: Path | None = None
) -> BinaryIO:
    """Open a regular file for reading, without waiting. `most_bytes`: the largest file that makes
    sense; `within`: the folder that it must lie in once every link is followed.

    Raises OSError: it cannot be opened, is not a regular file, is larger, or lies elsewhere.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        # behind the opening: what is checked is what is read, whatever the name means by then
        _check(descriptor, path, most_bytes, within)
    except BaseException:
        os.close(descriptor)
        raise
    # The file object closes the descriptor from here on. A second close would fail, and its error
    # would replace a KeyboardInterrupt that came meanwhile.
    return os.fdopen(descriptor, "rb")


def _check(
    descriptor: int, path: Path, most_bytes: int | None, within: Path | None
) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        reason = f"a regular file expected, found {stat.filemode(status.st_mode)}"
        raise OSError(errno.EINVAL, reason, str(path))
    if most_bytes is not None and status.st_size > most_bytes:
        reason = f"at most {most_bytes:,} bytes expected, found {status.st_size:,}"
        raise OSError(errno.EFBIG, reason, str(path))
    if within is not None:
        # by the descriptor, not by the name: no link can be changed since
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not target.is_relative_to(os.path.realpath(within)):
            reason = f"a link out of {within}, which is not followed"
            raise OSError(errno.EXDEV, reason, str(path))


def read_file(path: Path, most_bytes: int, *, within: Path | None = None) -> bytes:
    """The bytes of a regular file; arguments and errors as of `open_file`."""
    with open_file(path, most_bytes, within=within) as file:
        return file.read(most_bytes)


def blocks_of(
    path: Path, file: BinaryIO, begin: int = 0, end: int = sys.maxsize
) -> Iterator[bytes]:
    """The bytes of a part of an open file. Raises UserError that names it, so that a writer to
    another file can tell a read error from a write error.

    Args:
        path: the name of the file.
        file: the open file.
        begin: the first byte.
        end: the byte behind the last.
    """
    with failing_as(f"{path}: cannot read"):
        file.seek(begin)
        while block := file.read(min(_BLOCK_BYTES, end - file.tell())):
            yield block


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


class Ambiguous(ValueError):
    """JSON that has a name twice in one object, with different values."""


def parse_json(content: bytes | str) -> Any:
    """A JSON value, for a file on whose content others rely. Raises Ambiguous, where Python's
    decoder takes the last value in silence; ValueError: it is no JSON; RecursionError."""
    return json.loads(content, object_pairs_hook=_unambiguous)


def _unambiguous(pairs: list[tuple[str, Any]]) -> JsonObject:
    content = dict(pairs)
    for name, value in pairs if len(content) < len(pairs) else ():
        if content[name] != value:
            raise Ambiguous(f"the name {shown(name)} twice, with different values")
    return content


def read_object(path: Path, most_bytes: int = _OBJECT_BYTES) -> JsonObject:
    """The JSON object in a file; an empty one where there is no file. Raises UserError: the file
    cannot be read, has none, or is not of its folder. What cannot be read is not absent."""
    with failing_as(f"{path}: cannot read"):
        try:
            content = read_file(path, most_bytes, within=path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return {}
    problem = "something else"
    try:
        value = parse_json(content.decode())
        if isinstance(value, dict):
            return value
    except Ambiguous as error:
        problem = str(error)
    except (ValueError, RecursionError):
        pass
    raise UserError(f"{path}: a JSON object expected, found {problem}")


def named_descriptor(path: Path) -> int | None:
    """The open descriptor of this process that /dev/stdin or /dev/fd/N names; None: a file."""
    match = re.fullmatch(r"/dev/fd/(\d{1,9})", _STREAMS.get(str(path), str(path)))
    return int(match[1]) if match else None
