"""The signals that end a process in order, and how a command notes them. Loads nothing: a command
imports it before it can be interrupted without a traceback."""

from __future__ import annotations

import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Schedulers send the first to end a job, and the second as the warning before it."""


def command_stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a command in order: also those of a terminal that is closed and of its
    keys, unless `nohup` or a shell's background has them ignored."""
    more = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2)
    obeyed = (
        number for number in more if signal.getsignal(number) is not signal.SIG_IGN
    )
    return (*STOP_SIGNALS, *obeyed)


class StopSignals:
    """Ctrl-C and `command_stop_signals` as facts to look at, from `take` to `release` or within the
    context. A handler that raises does so anywhere: within `Popen.poll` it left a lock held, and
    the wait for that process never ended (one in twenty `scancel`s on a busy machine)."""

    name = ""
    """The first signal's name; empty: none has come."""
    forced = False
    """Ctrl-C a second time. SIGTERM comes twice where a scheduler and its script both send."""

    def take(self) -> StopSignals:
        """Note signals from here on, for a caller that may keep them past its own end."""
        self._previous = {}
        for number in {signal.SIGINT, *command_stop_signals()}:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def release(self) -> None:
        """Give the signals back to whom they belonged."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __enter__(self) -> StopSignals:
        return self.take()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _note(self, number: int, _: FrameType | None) -> None:
        # no more than this: a handler runs between any two steps of the program
        if self.name and number == signal.SIGINT:
            self.forced = True
        self.name = self.name or signal.Signals(number).name
