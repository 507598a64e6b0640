"""Where `rn50` begins, and how the errors of every command are printed."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from ..config.errors import UserError
from ..config.finding import printable

EXIT_BAD, EXIT_USAGE, EXIT_STOPPED = 1, 2, 130


def main() -> None:
    """The command. A user error is one line a problem on stderr and exit code 2, never a traceback;
    Ctrl-C and SIGTERM are one line, which says how to go on, and exit code 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names are bytes, and not always of UTF-8
            stream.reconfigure(errors="backslashreplace")
    code: object = 0
    try:
        from .main import run

        run(sys.argv[1:] or ["--help"])
    except SystemExit as done:
        code = done.code
    except UserError as error:
        for line in str(error).split("\n"):
            _say(f"error: {line}")
        code = EXIT_USAGE
    except BrokenPipeError:
        code = EXIT_BAD  # `| head` has what it wants
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"error: {where}{error.strerror or error}")
        code = EXIT_USAGE
    except KeyboardInterrupt as stop:
        code = _stopped(stop)
    sys.exit(_flush_output(code))


def _stopped(stop: KeyboardInterrupt) -> int:
    import shlex

    from ..launch.ending import Stopped, asked_by, stopped

    ending = stop.ending if isinstance(stop, Stopped) else None
    ending = ending or stopped("command", asked_by(stop), shlex.join(["rn50", *sys.argv[1:]]))
    _say(ending.line)
    return EXIT_STOPPED


def _say(line: str) -> None:
    print(printable(f"rn50: {line}"), file=sys.stderr, flush=True)


def _flush_output(code: Any) -> Any:
    """Write what is buffered while its error can still be printed: Python's own end is a traceback.

    Returns the exit code.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError) or code == EXIT_USAGE:
            return code  # `| head` has what it wants; the error has been printed
        _say(f"error: standard output: cannot write: {error.strerror}")
        return EXIT_USAGE
    return code


if __name__ == "__main__":
    main()
