"""Where `rn50` begins; `rn50 log check` starts without Typer, to be quicker than the official one.

Typer and pydantic, which it loads, take 0.1 s: as much as the official checker altogether.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

from ..config.errors import UserError

_EXIT_USAGE = 2
_FLAGS: dict[str, dict[str, bool]] = {
    "--json": {"as_json": True},
    "--strict": {"strict": True},
    "--official": {"official": True},
    "--no-official": {"official": False},
}


def main() -> None:
    """The command; a standard output that takes no more is one line, as every other error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names are bytes, and not always of UTF-8
            stream.reconfigure(errors="backslashreplace")
    code: object = 0
    try:
        _command()
    except SystemExit as done:
        code = done.code
    sys.exit(_flush_output(code))


def _flush_output(code: Any) -> Any:
    """Write what is buffered while its error can still be told: Python's own end is a traceback.

    Returns the exit code.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError) or code == _EXIT_USAGE:
            return code  # `| head` has what it wants; the error has been told
        print(f"rn50: error: standard output: cannot write: {error.strerror}", file=sys.stderr)
        return _EXIT_USAGE
    return code


def _command() -> None:
    """Help and mistakes of every command are Typer's."""
    try:
        if sys.argv[1:3] == ["log", "check"]:
            code = quick_check(sys.argv[3:])
            if code is not None:
                sys.exit(code)
        from .main import main as with_typer
    except KeyboardInterrupt as stop:
        from ..launch.ending import asked_by, command_stopped
        from .console import EXIT_STOPPED

        line = command_stopped(asked_by(stop), sys.argv[1:]).line
        print(f"rn50: {line}", file=sys.stderr)
        sys.exit(EXIT_STOPPED)
    with_typer()


def quick_check(arguments: list[str]) -> int | None:
    """`rn50 log check` without Typer: the exit code, or None where it is a case for Typer."""
    paths: list[Path] = []
    options: dict[str, Any] = {"strict": False, "official": None, "as_json": False}
    ruleset = None
    rest = iter(arguments)
    for argument in rest:
        if argument in _FLAGS:
            options |= _FLAGS[argument]
        elif argument == "--ruleset":
            ruleset = next(rest, "-")
        else:
            paths.append(Path(argument))
    if not paths or any(str(word).startswith("-") for word in (*paths, ruleset or "")):
        return None
    from .check_command import run_check

    try:
        return run_check(paths, ruleset, **options)
    except (UserError, OSError):
        return None  # nothing is printed yet: the handler of all commands says it


if __name__ == "__main__":
    main()
