"""The lock of the rank that writes log, metrics and checkpoints: one rank 0 a folder, ever."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from ..config.errors import UserError
from ..data.lock import HeldError, Holder, hold

RANK_LOCK = ".rank_0.lock"


class FolderInUse(UserError):
    """Another process writes into this folder: nothing of it may be touched."""

    def __init__(self, out: Path, holder: Holder | None) -> None:
        who = holder or "another process"
        super().__init__(f"{out}: in use by {who}: wait for its end, or stop it first")


class FolderLock:
    """Rank 0's, until `release`; of the other ranks: none. `lost`: called, from a thread, with the
    reason, if another has taken the folder over: this process was held up for so long that it
    counted as dead."""

    def __init__(self, lost: Callable[[str], object]) -> None:
        self._lost = lost
        self._held = ExitStack()

    def take(self, out: Path) -> None:
        """Be the only rank 0 that writes into `out`.

        Raises:
            FolderInUse: another one is.
            UserError: the folder takes no lock file.
        """

        def tell(holder: Holder | None) -> None:
            print(f"{out}: looking whether {holder or 'its holder'} is still at work", flush=True)

        def taken_over(holder: Holder) -> None:
            self._lost(f"{out}: taken over by {holder}")

        try:
            self._held.enter_context(hold(out / RANK_LOCK, wait=False, tell=tell, lost=taken_over))
        except HeldError as error:
            raise FolderInUse(out, error.holder) from None
        except OSError as error:
            raise UserError(f"{out}: cannot lock: {error.strerror}") from None

    def release(self) -> None:
        """Give it back, where a process ends without unwinding."""
        with suppress(OSError):
            self._held.close()
