"""The folder in which a set is made piece by piece: the same command continues after a stop."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..host.errors import failing_as
from ..host.lock import hold


@contextmanager
def workspace(out: Path, key: str) -> Iterator[Path]:
    """The folder `.NAME.partial` beside `out`, held by this process alone. It stays behind an
    error, and is emptied where it is for another `key`, which its file `key` has.

    Raises UserError: another process works in it, or a file of it cannot be made or written.
    """
    folder = out.with_name(f".{out.name}.partial")
    lock = out.with_name(f".{out.name}.lock")
    with failing_as(f"{out}: cannot create"):
        folder.mkdir(parents=True, exist_ok=True)
    with hold(lock, out), failing_as(f"{out}: cannot write"):
        key_file = folder / "key"
        if not key_file.is_file() or key_file.read_text() != key:
            shutil.rmtree(folder)
            folder.mkdir()
            key_file.write_text(key)
        yield folder
