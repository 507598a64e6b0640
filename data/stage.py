"""A packed set on the node's own disk: copied once a node, checked on the way, taken up again."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config.atomic import follow_links, open_own, own_folder
from ..config.errors import UserError
from ..config.manifest import MOST_BYTES, SPLITS, SUFFIXES, File, Manifest, load_manifest
from ..config.reading import open_file, read_file
from .journal import partial_folder

_BLOCK_BYTES = 4 << 20
_POLL_S = 0.2


def stage(
    source: Path, target: Path, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> Manifest:
    """Copy the packed set `source` to `target`, which appears when every digest is right.

    What an earlier copy that was killed left is taken up again, after a check of its bytes. A
    target that holds the same set already is left as it is.

    Args:
        source: a packed set.
        target: folder to make, on a disk of this node.
        progress: called with (bytes done, bytes in all).

    Raises:
        UserError: no packed set, another one at `target`, bytes that are not those of the
            manifest, no space.
    """
    manifest, target = load_manifest(source), follow_links(target)
    text = _manifest_text(source)
    total = sum(file.bytes for file in manifest.files.values())
    try:
        with _locked(target):
            if not _is_staged(source, target, manifest, text):
                partial = partial_folder(target)
                own_folder(partial)
                done = 0
                for name, file in manifest.files.items():
                    for copied in _copy(source / name, partial / name, file):
                        progress(done + copied, total)
                    done += file.bytes
                shutil.copyfile(source / "manifest.json", partial / "manifest.json")
                partial.replace(target)
            progress(total, total)
    except OSError as error:
        raise UserError(
            f"{error.filename or target}: cannot write: {error.strerror} "
            "(what is copied stays, the same command goes on; --remove frees the disk)"
        ) from None
    return manifest


def remove(target: Path) -> None:
    """Delete the staged set and what an unfinished copy left; nothing else. Raises UserError:
    `target` is there and is no packed set, or cannot be deleted."""
    target = follow_links(target)
    if target.exists() and any(target.iterdir()):
        load_manifest(target)
    try:
        for name in (*(f"{s}.{x}" for s in SPLITS for x in SUFFIXES), "manifest.json"):
            (target / name).unlink(missing_ok=True)
        if target.exists():
            target.rmdir()
        shutil.rmtree(partial_folder(target), ignore_errors=True)
        _lock_path(target).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{error.filename or target}: cannot remove: {error.strerror}") from None


def wait_until_staged(source: Path, target: Path, timeout_s: float) -> None:
    """What the other ranks of a node do: return when local rank 0 is done. Raises UserError: it was
    not within `timeout_s`."""
    # Of the shared folder once: ranks that wait look at their node's disk alone.
    manifest, text = load_manifest(source), _manifest_text(source)
    deadline = time.monotonic() + timeout_s
    while not _is_staged(source, target, manifest, text, waiting=True):
        if time.monotonic() > deadline:
            raise UserError(f"{target}: a staged set expected within {timeout_s:g} s, found none")
        time.sleep(_POLL_S)


def _manifest_text(folder: Path) -> bytes:
    return read_file(folder / "manifest.json", MOST_BYTES)


def _is_staged(
    source: Path, target: Path, manifest: Manifest, text: bytes, *, waiting: bool = False
) -> bool:
    """The set at `target` is that of `source`, by its manifest's `text` and sizes."""
    if not target.is_dir() or not any(target.iterdir()):
        return False
    if not (target / "manifest.json").is_file() or _manifest_text(target) != text:
        if waiting:
            return False
        raise UserError(
            f"{target}: no folder yet, or the set of {source} expected, found something else "
            "(`rn50 data stage --remove` deletes a set that was staged there)"
        )
    for name, file in manifest.files.items():
        found = (target / name).stat().st_size if (target / name).is_file() else 0
        if found != file.bytes:
            raise UserError(f"{target / name}: {file.bytes} bytes expected, found {found}")
    return True


def _copy(source: Path, target: Path, wanted: File) -> Iterator[int]:
    """Copy a file from where `target` ends on; yields bytes done, checks size and digest."""
    sha = hashlib.sha256()
    done = 0
    with (
        os.fdopen(open_own(target, os.O_RDWR | os.O_APPEND), "r+b") as out,
        open_file(source) as file,
    ):
        out.seek(0)
        if os.fstat(out.fileno()).st_size > wanted.bytes:
            out.truncate(0)
        while block := out.read(_BLOCK_BYTES):
            sha.update(block)
            done += len(block)
            yield done
        file.seek(done)
        while block := file.read(_BLOCK_BYTES):
            out.write(block)
            sha.update(block)
            done += len(block)
            yield done
        out.flush()
        os.fsync(out.fileno())
    if done != wanted.bytes or sha.hexdigest() != wanted.sha256:
        target.unlink()
        raise UserError(
            f"{source}: {wanted.bytes} bytes with SHA-256 {wanted.sha256[:12]}... expected "
            f"(manifest.json), copied {done} with {sha.hexdigest()[:12]}... to {target}"
        )


def _lock_path(target: Path) -> Path:
    return target.parent / f".{target.name}.staging.lock"


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One process on this node at a time; the others wait for it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_own(_lock_path(target), os.O_WRONLY), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
