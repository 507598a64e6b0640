"""The signals that end a process in order. Loads nothing: a command imports it before it can be
interrupted without a traceback."""

from __future__ import annotations

import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Schedulers send the first to end a job, and the second as the warning before it."""


def command_stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a command in order: also those of a terminal that is closed and of its
    keys, unless `nohup` or a shell's background has them ignored."""
    more = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2)
    taken = (
        number for number in more if signal.getsignal(number) is not signal.SIG_IGN
    )
    return (*STOP_SIGNALS, *taken)
