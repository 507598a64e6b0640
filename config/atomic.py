"""Files and folders that appear complete or not at all: written beside, then renamed."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import UserError, failing_as
from .reading import blocks_of, named_descriptor, open_file

_REFUSALS = (
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EPERM,
    errno.EACCES,
)
"""What file systems say that cannot do a thing."""


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` at the end; removed on any error. Raises
    UserError: `out` exists and is not an empty folder, or its parent cannot be written."""
    refuse_content(out)
    target = follow_links(out)
    partial = partial_beside(target)
    with failing_as(f"{out}: cannot create"):
        partial.mkdir(parents=True)
    try:
        yield partial
        partial.replace(target)
    except OSError as error:
        raise UserError(
            f"{error.filename or out}: cannot write: {error.strerror}"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_content(out: Path) -> None:
    """Raises UserError where `out` exists and is not an empty folder."""
    if not is_free(out):
        raise UserError(
            f"{out}: a folder that does not exist yet expected, found one with content"
        )


def is_free(folder: Path) -> bool:
    """Whether nothing is there, or an empty folder, or a link to nowhere."""
    if not folder.exists():
        return True
    return folder.is_dir() and not any(folder.iterdir())


def follow_links(path: Path) -> Path:
    """Where a file or folder of this name is or would be made; a rename onto a link replaces it."""
    return Path(os.path.realpath(path))


def in_its_folder(path: Path) -> Path:
    """`path`, where its folder may be another user's and is written to. Raises UserError: it is a
    link out of the folder."""
    target = follow_links(path)
    if not target.is_relative_to(follow_links(path.parent)):
        raise UserError(
            f"{path}: no link out of its folder expected, found one to {target}"
        )
    return path


def partial_beside(target: Path) -> Path:
    """A new name beside `target` for what shall become it."""
    return target.with_name(f".{target.name[:40]}.partial-{secrets.token_hex(4)}")


def sync(path: Path) -> None:
    """What has been written to a file, or to the list of a folder, is on the disk, unless its file
    system cannot promise that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise


def encoded(content: str | bytes) -> bytes:
    """Text as a file has it; a byte of a file's name that is no UTF-8 becomes `\\udcff`."""
    if isinstance(content, bytes):
        return content
    return content.encode(errors="backslashreplace")


def write_file(path: Path, content: str | bytes) -> None:
    """Write `content` to `path`: a regular file is replaced as a whole, also where the machine
    crashes, and keeps its mode if the file system has modes; a device or a FIFO is opened as it is.
    Raises OSError: it cannot be written."""
    data = encoded(content)
    if path.exists() and not _is_replaced(path):
        with path.open("ab") as file:  # /dev/stdout may be a file that `>>` appends to
            file.write(data)
        return
    target = follow_links(path)
    partial = partial_beside(target)
    try:
        partial.write_bytes(data)
        sync(partial)
        if target.exists():
            with suppress(OSError):
                shutil.copymode(target, partial)
        partial.replace(target)
        sync(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def copy_file(source: Path, target: Path) -> None:
    """Copy the bytes of a regular file. Raises UserError: the source cannot be read; OSError: the
    target cannot be written."""
    with failing_as(f"{source}: cannot read"):
        file = open_file(source)
    with file, target.open("wb") as copy:
        for block in blocks_of(source, file):
            copy.write(block)


def _is_replaced(path: Path) -> bool:
    """Whether what exists at `path` is a regular file by its own name."""
    return path.is_file() and named_descriptor(path) is None


def write_json(path: Path, content: Any) -> None:
    """`write_file` of JSON, indented for people."""
    write_file(path, json.dumps(content, indent=1) + "\n")


def write_output(path: Path, content: str | bytes) -> None:
    """Write what an option such as `--out` asked for; `-`: to standard output. Raises UserError."""
    if not is_stdout(path):
        with failing_as(f"{path}: cannot write"):
            write_file(path, content)
        return
    with failing_as("standard output: cannot write"):
        sys.stdout.flush()
        with os.fdopen(os.dup(1), "wb") as file:
            file.write(encoded(content))


def check_output(path: Path) -> None:
    """Refuse a path that `write_output` could not write, before hours of work; touches nothing.
    Raises UserError: a folder, no folder to make it in, or no permission."""
    with failing_as(f"{path}: cannot write"):
        if path.is_dir():
            raise UserError(f"{path}: a file expected, found a folder")
        places = []
        if path.exists():
            places.append(str(path))
        if not path.exists() or _is_replaced(path):
            places.append(f"{follow_links(path).parent}/")  # no file, by the slash
        is_writable = all(os.access(place, os.W_OK) for place in places)
        if not is_stdout(path) and not is_writable:
            raise UserError(f"{path}: cannot write: no folder or no permission")


def is_stdout(path: Path) -> bool:
    """Whether `path` names the standard output."""
    return str(path) in ("-", "/dev/stdout")
