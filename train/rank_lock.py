"""The locks in the folder of a run: one driver, and one rank that writes log and checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..config.errors import UserError
from ..data.lock import HeldError, Holder, Lost, hold

LOCK, RANK_LOCK = ".lock", ".rank_0.lock"


class FolderInUse(UserError):
    """Another process writes into this folder: nothing of it may be touched."""

    def __init__(self, out: Path, holder: Holder | None) -> None:
        who = holder or "another process"
        super().__init__(f"{out}: in use by {who}: wait for its end, or stop it first")


@contextmanager
def hold_folder(out: Path, name: str, lost: Lost | None = None) -> Iterator[None]:
    """Be the only one that holds the lock file `name` of `out`, within the block. `lost`: as of
    `data.lock.hold`.

    Raises:
        FolderInUse: another process does; its line says which, where and since when.
        UserError: the folder takes no lock file.
    """

    def tell(holder: Holder | None) -> None:
        print(f"{out}: looking whether {holder or 'its holder'} is still at work", file=sys.stderr)

    with ExitStack() as held:
        try:
            held.enter_context(hold(out / name, wait=False, tell=tell, lost=lost))
        except HeldError as error:
            raise FolderInUse(out, error.holder) from None
        except OSError as error:
            raise UserError(f"{out / name}: cannot lock: {error.strerror}") from None
        yield
