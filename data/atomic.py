"""Files and folders that appear complete or not at all: write beside, then rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config.errors import UserError


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` at the end; removed on any error.

    Raises:
        UserError: `out` exists and is not an empty folder, or its parent cannot be written.
    """
    refuse_content(out)
    partial = out.parent / f".{out.name}.partial-{os.getpid()}"
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{out}: cannot create: {error.strerror}") from None
    try:
        yield partial
        partial.replace(out)
    except OSError as error:
        raise UserError(f"{error.filename or out}: cannot write: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_content(out: Path) -> None:
    """Raises UserError where `out` exists and is not an empty folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: a folder that does not exist yet expected, found one with content")


def write_file(path: Path, text: str) -> None:
    """Write `text` to `path` by way of a temporary file in the same folder."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
