"""Files and folders that appear complete or not at all: write beside, then rename.

Only a regular file is replaced so. A symbolic link is followed and stays; a device or a FIFO is
opened and written, as a shell's `>` would. What is written beside has a name that nobody can guess
and is made anew (`partial_beside`, `create_new`): who may write in the folder too cannot plant a
link of that name, which would lead to another file of the user's.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import select
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import UserError, failing_as
from .reading import named_descriptor

_STDOUT = 1
_NAME_BYTES = 8
_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS)
"""Why a file cannot be replaced that can be written: its folder is not ours, it belongs to somebody
else, or it is itself a mount point, as a container's `-v FILE:FILE` makes it."""


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
        raise UserError(f"{error.filename or out}: cannot write: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_content(out: Path) -> None:
    """Raises UserError where `out` exists and is not an empty folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: a folder that does not exist yet expected, found one with content")


def follow_links(path: Path) -> Path:
    """Where a file or folder of this name is or would be made; a rename onto a link replaces it."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def write_file(path: Path, content: str | bytes) -> None:
    """Write `content` to `path`: a regular file is replaced as a whole, by way of one beside it.
    The file keeps its mode and owner. One that can be written but not replaced (see `_IN_PLACE`),
    devices and FIFOs are written where they are. Raises OSError: it cannot be written."""
    about = _about(path)
    if about is not None and not stat.S_ISREG(about.st_mode):
        _write_through(path, about, content)
        return
    if about is not None and not os.access(path, os.W_OK):  # a rename would not ask
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    _replace(follow_links(path), about, content)


def write_within(folder: Path, name: str, content: str | bytes, hint: str = "") -> Path:
    """Write a file of a name of ours into a folder that somebody else may have made.

    A regular file is replaced as a whole. A link, a FIFO or a device of that name was made by
    another, and is left alone. `hint` says what else could be done. Returns its path. Raises
    UserError: one line: something else of that name, or it cannot be written.
    """
    path = folder / name
    try:
        write_own(path, content)
    except OSError as error:
        why = "" if error.errno == errno.EINVAL else "cannot write: "  # EINVAL: of write_own
        raise UserError(f"{path}: {why}{error.strerror}{hint}") from None
    return path


def write_own(path: Path, content: str | bytes) -> None:
    """Write a file of ours with a name that others can guess, such as a run's result.json. As
    `write_file`, but nothing is followed, opened or waited for that is no regular file. Raises
    OSError: something else of that name, or it cannot be written."""
    about = os.lstat(path) if os.path.lexists(path) else None
    if about is not None and not stat.S_ISREG(about.st_mode):
        raise OSError(
            errno.EINVAL,
            "a regular file or none expected, found something else of that name",
            str(path),
        )
    _replace(path, about, content)


def write_json(path: Path, content: Any) -> None:
    """`write_own` of JSON, indented for people."""
    write_own(path, json.dumps(content, indent=1) + "\n")


def write_output(path: Path, content: str | bytes) -> None:
    """Write what an option such as `--out` asked for.

    `path`: a file, written by `write_file`, or an open descriptor: `-` (standard output),
    /dev/stdout, /dev/fd/63 (a shell's `>(...)`). `content`: all of it.

    Raises:
        UserError: it cannot be written.
        BrokenPipeError: nobody reads the standard output any more.
    """
    descriptor = _descriptor(path)
    try:
        if descriptor is None:
            write_file(path, content)
            return
        if descriptor == _STDOUT and sys.__stdout__ is None:  # its number may be another file's now
            raise OSError(errno.EBADF, "it is closed")
        _write_descriptor(os.dup(descriptor), content)
    except OSError as error:
        if descriptor == _STDOUT and error.errno == errno.EPIPE:
            raise  # `| head`: the end of every command that prints
        raise UserError(f"{_said(path)}: cannot write: {error.strerror}") from None


def check_output(path: Path) -> None:
    """Refuse a path that `write_output` could not write, before hours of work; touches nothing.
    Raises UserError: a folder, no folder to make it in, or no permission."""
    if _descriptor(path) is not None:
        return
    with failing_as(f"{path}: cannot write"):
        about = _about(path)
    if about is not None and stat.S_ISDIR(about.st_mode):
        raise UserError(f"{path}: a file expected, found a folder")
    target = follow_links(path)
    place = target if about is not None else target.parent
    if not place.exists():
        raise UserError(f"{path}: cannot write: no folder {place}")
    if about is None and not place.is_dir():
        raise UserError(f"{path}: cannot write: {place} is no folder")
    if not os.access(place, os.W_OK):
        raise UserError(f"{path}: cannot write: no permission to write {place}")


def is_stdout(path: Path) -> bool:
    """Whether `path` names the standard output."""
    return _descriptor(path) == _STDOUT


def _said(path: Path) -> str:
    return "standard output" if str(path) == "-" else str(path)


def _descriptor(path: Path) -> int | None:
    """The open descriptor that `path` names, if it does: it is written from where it stands.
    Opening /dev/stdout anew would begin at the start of the file that a shell's `>>` appends to."""
    return _STDOUT if str(path) == "-" else named_descriptor(path)


def _about(path: Path) -> os.stat_result | None:
    """What lies at the end of the links of `path`; None: nothing."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def partial_beside(target: Path) -> Path:
    """A name beside `target` for what shall become it, which nobody can guess."""
    return target.with_name(f".{target.name[:40]}.partial-{secrets.token_hex(_NAME_BYTES)}")


def create_new(path: Path) -> int:
    """A descriptor to write a file that is not there yet; never one that a link leads to. Raises
    OSError: something of that name is there, or it cannot be made."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a file of ours with a name that others can guess, such as a lock's; made
    where it is missing. `flags`: how to open it, such as O_RDWR. Raises OSError: a link or anything
    but a regular file of that name, or it cannot be opened."""
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link, which is not followed", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "a regular file expected", str(path))
    return descriptor


def own_folder(path: Path) -> None:
    """Make a folder of ours with a name that others can guess, unless it is there from before.
    Raises OSError: a link or another thing of that name, or something in it that is no regular
    file: somebody else may have planted it."""
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "a link, which is not followed", str(path))
    for entry in os.scandir(path):
        if not entry.is_file(follow_symlinks=False):
            raise OSError(errno.EINVAL, "a regular file expected", entry.path)


def _replace(target: Path, about: os.stat_result | None, content: str | bytes) -> None:
    """Write a file by way of one beside it, or where it is if that cannot be (`_IN_PLACE`)."""
    partial = partial_beside(target)
    try:
        descriptor = create_new(partial)
        try:
            if about is not None:
                _keep_owner_and_mode(descriptor, about)
        except OSError:
            os.close(descriptor)
            raise
        _write_descriptor(descriptor, content)
        partial.replace(target)
    except OSError as error:
        if about is None or error.errno not in _IN_PLACE:
            raise
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        _write_descriptor(os.open(target, flags), content)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _keep_owner_and_mode(descriptor: int, about: os.stat_result) -> None:
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (about.st_uid, about.st_gid):
        os.fchown(descriptor, about.st_uid, about.st_gid)
    if new.st_mode != about.st_mode:
        os.fchmod(descriptor, stat.S_IMODE(about.st_mode))


def _write_through(path: Path, about: os.stat_result, content: str | bytes) -> None:
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY
    if not stat.S_ISFIFO(about.st_mode):
        _write_descriptor(os.open(path, flags), content)
        return
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
        os.set_blocking(descriptor, True)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        print(f"rn50: {path}: waiting for a reader of this FIFO", file=sys.stderr, flush=True)
        descriptor = os.open(path, flags)
    _write_descriptor(descriptor, content)


def _write_descriptor(descriptor: int, content: str | bytes) -> None:
    """Write all of it and close; an error of either is raised."""
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        left = memoryview(content.encode() if isinstance(content, str) else content)
        while left:
            written = file.write(left)
            if written is None:  # a pipe that is full, opened without blocking by who gave it to us
                select.select([], [file], [])
            else:
                left = left[written:]
