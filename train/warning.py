"""What rank 0 warns of during a run."""

from __future__ import annotations

import sys

WARNING = "rn50: warning: "
"""Begins a warning, in stderr.log as well: there the launcher looks for it."""


def warn(message: str) -> None:
    """A warning of rank 0: at once to people, and to stderr.log, which the launcher quotes at the
    end."""
    for stream in (sys.stdout, sys.stderr):
        print(f"{WARNING}{message}", file=stream, flush=True)
