"""The signals that end a command in order."""

from __future__ import annotations

import signal

from ..train.limits import STOP_SIGNALS


def command_stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a command in order: also those of a terminal that is closed and of its
    keys, unless `nohup` or a shell's background has them ignored."""
    more = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2)
    taken = (
        number for number in more if signal.getsignal(number) is not signal.SIG_IGN
    )
    return (*STOP_SIGNALS, *taken)
