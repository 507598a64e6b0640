"""Files and folders that appear complete or not at all: written beside, then renamed.

What is not complete yet is called `.NAME.partial-TOKEN`, and its writer holds a lock on it, which
the kernel gives back however the writer ends. The next writer of the name removes what dead writers
have left. Of another machine (the first four digits of the token differ), or where a file system
has no locks, a file is dead that has not changed for a minute by the file system's clock, and a
folder for a day.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from .errors import UserError, failing_as
from .reading import blocks_of, named_descriptor, open_file, read_text

_REFUSALS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EACCES)
"""What file systems say that cannot do a thing."""
_FILE_STALE_S = 60.0
_FOLDER_STALE_S = 86_400.0
"""Ranks may compute for hours in a scratch folder."""


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` at the end; removed on any error. Raises
    UserError: `out` exists and is not an empty folder, or its parent cannot be written."""
    refuse_content(out)
    target = follow_links(out)
    try:
        with partial_beside(target, is_folder=True) as partial:
            yield partial
            partial.replace(target)
    except OSError as error:
        raise UserError(
            f"{error.filename or out}: cannot write: {error.strerror}"
        ) from None


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
    """The path at which a file or folder of this name is or would be made: a rename onto a link
    replaces the link."""
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


@contextmanager
def partial_beside(target: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """A new file or folder beside `target`, for its writer to rename to it within the block;
    otherwise it is removed at the end. What dead writers of this name have left is removed first.
    Raises OSError; one of the new file names `target`, because the new file is gone by then."""
    token = _machine() + secrets.token_hex(4)
    # a name has at most 255 bytes, and a character up to four
    partial = target.with_name(f".{target.name[:40]}.partial-{token}")
    try:
        descriptor = None
        # again where another writer took it for a dead one's before it was locked
        while descriptor is None:
            if is_folder:
                partial.mkdir(parents=True)
            else:
                partial.touch(exist_ok=False)
            descriptor = _lock_new(partial)
        try:
            remove_dead(target.parent, target.name, partial)
            yield partial
        finally:
            _remove(partial)
            os.close(descriptor)
    except OSError as error:
        if error.filename is not None:
            error.filename = str(error.filename).replace(str(partial), str(target))
        raise


@cache
def _machine() -> str:
    """Four digits, the same for all processes of a kernel, those in containers too."""
    boot = read_text(Path("/proc/sys/kernel/random/boot_id"))
    return hashlib.sha256(boot.encode()).hexdigest()[:4]


def _lock_new(partial: Path) -> int | None:
    """Lock a file that was just made; returns its descriptor. None: another writer came before the
    lock, and has removed the file."""
    with suppress(FileNotFoundError):
        descriptor = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        # who removes a dead file holds its lock: it is there now, so it stays
        if partial.exists():
            return descriptor
        os.close(descriptor)
    return None


def remove_dead(folder: Path, name: str | None = None, new: Path | None = None) -> None:
    """Remove what dead writers of `name`, by default of any, have left in a folder, unless that is
    a link. `new`: was made there just now, and tells the age of others; without it the locks of
    this machine alone decide."""
    if folder.is_symlink():
        return
    pattern = "*" if name is None else glob.escape(name[:40])
    for path in folder.glob(f".{pattern}.partial-*"):
        token = path.name.rpartition("-")[2]
        if re.fullmatch("[0-9a-f]{8,12}", token):
            with suppress(OSError):  # renamed or removed meanwhile, or another user's
                _remove_if_dead(path, token, new)


def _remove_if_dead(path: Path, token: str, new: Path | None) -> None:
    # for a lock that excludes others NFS wants a file that is open for writing
    mode = os.O_RDONLY if path.is_dir() else os.O_RDWR
    descriptor = os.open(path, mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if _is_dead(path, descriptor, token, new):
            _remove(path)
    finally:
        os.close(descriptor)


def _is_dead(path: Path, descriptor: int, token: str, new: Path | None) -> bool:
    if token.startswith(_machine()):
        try:
            # a writer of this kernel that is alive holds a shared lock
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            pass
    if new is None:
        return False
    # a folder's own time does not change when a file in it is written to
    changed_s = max(entry.lstat().st_mtime for entry in (path, *path.rglob("*")))
    stale_s = _FOLDER_STALE_S if path.is_dir() else _FILE_STALE_S
    return new.stat().st_mtime - changed_s > stale_s


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
    # a device must not become a regular file by a rename
    if path.exists() and not _is_replaced(path):
        with path.open("ab") as file:  # /dev/stdout may be a file that `>>` appends to
            file.write(data)
        return
    target = follow_links(path)
    with partial_beside(target) as partial:
        partial.write_bytes(data)
        # before the rename: else a crash may leave the new name on an empty file
        sync(partial)
        if target.exists():
            with suppress(OSError):
                shutil.copymode(target, partial)
        partial.replace(target)
        # the rename itself is in the folder's list
        sync(target.parent)


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
        # what was printed before comes first; a copy, as the block closes its descriptor
        sys.stdout.flush()
        with os.fdopen(os.dup(1), "wb") as file:
            file.write(encoded(content))


def check_output(path: Path) -> None:
    """Refuse a path that `write_output` could not write, before hours of work; touches nothing.
    Raises UserError: a folder, no folder to make it in, or no permission."""
    with failing_as(f"{path}: cannot write"):
        if path.is_dir():
            raise UserError(f"{path}: a file expected, found a folder")
        written = []
        if path.exists():
            written.append(str(path))
        if not path.exists() or _is_replaced(path):
            written.append(f"{follow_links(path).parent}/")  # no file, by the slash
        is_writable = all(os.access(path_written, os.W_OK) for path_written in written)
        if not is_stdout(path) and not is_writable:
            raise UserError(f"{path}: cannot write: no folder or no permission")


def is_stdout(path: Path) -> bool:
    """Whether `path` names the standard output."""
    return str(path) in ("-", "/dev/stdout")
