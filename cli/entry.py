"""The entry of `rn50`, and how the errors of every command are printed."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ..host.exit_codes import EXIT_BAD, EXIT_STOPPED, EXIT_USAGE
from ..host.stop_signals import command_stop_signals


def main() -> None:
    """The command. A user error is one line a problem on stderr and exit code 2, never a traceback;
    Ctrl-C and SIGTERM are one line, which says how to go on, and exit code 130."""
    _speak_utf8()
    code: object
    try:
        for number in command_stop_signals():
            signal.signal(number, _interrupt)
        code = _call(sys.argv[1:])
    except KeyboardInterrupt as stop:
        code = stop
    # a second one, or one during Python's own end
    for number in command_stop_signals():
        signal.signal(number, signal.SIG_IGN)
    if isinstance(code, KeyboardInterrupt):
        code = _stopped(code)
    sys.exit(_flush_output(code))


_CHANGED_BY = ("PYTHONINSPECT", "PYTHONOPTIMIZE", "PYTHONWARNINGS")
"""Variables of Python under which a command would do otherwise: without docstrings there is no
help; a prompt or a warning is no end of a command."""


def _speak_utf8() -> None:
    """Whatever the locale and the settings of Python are; to standard streams alone."""
    changed = [name for name in _CHANGED_BY if os.environ.pop(name, "")]
    # Python reads both at its start alone: hence the new start below
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        # file names and pages are UTF-8, whatever the locale
        os.environ["PYTHONUTF8"] = "1"
        changed.append("PYTHONUTF8")
    if changed:
        from ..host.programs import become

        become([sys.executable, *sys.orig_argv[1:]])
    _open_closed()
    backslashes = "backslashreplace"  # file names are bytes, and not always of UTF-8
    # another object captures what is printed, in a test or a program that calls `main`
    if isinstance(sys.stdout, io.TextIOWrapper | None):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(1, "w", closefd=False)),
            "utf-8",
            backslashes,
            line_buffering=getattr(sys.stdout, "line_buffering", False),
            write_through=getattr(sys.stdout, "write_through", False),
        )
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors=backslashes)


def _open_closed() -> None:
    """Descriptors that were closed: else the next file that is opened gets what is printed. An
    output that cannot be written says so; errors have nowhere to go."""
    # a standard output that can only be read: each write to it is an error
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # the lowest free descriptor: this one, as those below are open by now
            os.open(os.devnull, mode)
    if sys.stderr is None:
        raw = io.FileIO(2, "w", closefd=False)
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(raw))


class _Output(io.FileIO):
    """The standard output. Its errors name it, as those of files do."""

    def write(self, data: Any) -> int:
        """Write, with an error that names the output."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "standard output: cannot write"
            raise


def _call(arguments: list[str]) -> object:
    """Run the command and print its error; returns the exit code."""
    from ..host.errors import UserError

    try:
        # within: a package that is missing is an error of the user's machine
        from .main import run

        return run(arguments)
    except SystemExit as done:
        return done.code
    except UserError as error:
        for line in str(error).split("\n"):
            _say(f"error: {line}{_meant(line)}")
    except ImportError as error:
        _say(f"error: {_not_loaded(error)}")
    except BrokenPipeError:
        return EXIT_BAD  # `| head` has what it wants
    except OSError as error:
        line = _refused(error)
        _say(f"error: {line}{_meant(line)}")
    except Exception as error:
        _say(f"error: {_unforeseen(error)}")
    return EXIT_USAGE


def _unforeseen(error: Exception) -> str:
    """An error of ours, with the file that has its traceback."""
    import tempfile
    import traceback

    line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    with suppress(OSError):
        number, name = tempfile.mkstemp(".txt", "rn50-traceback-")
        with os.fdopen(number, "w", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
        line += f" (an error of rn50 itself; its traceback: {name})"
    return line


def _interrupt(number: int, _: FrameType | None) -> None:
    """A handler that makes a signal such as SIGTERM end a command as Ctrl-C does."""
    raise KeyboardInterrupt(signal.Signals(number).name)


_EXTRAS = {
    "horovod": "train",
    "mxnet": "train",
    "nvidia": "train",
    "optuna": "train",
    "safetensors": "train",
    "simplejpeg": "train",
    "yaml": "train",
    "onnx": "onnx",
    "tensorboardX": "tensorboard",
}
"""The extra of pyproject.toml that each imported name belongs to."""


def _not_loaded(error: ImportError) -> str:
    """A package that is gone, that was never installed, or that another one hides."""
    from ..launch.installed import NAMES

    cause = str(error).strip().split("\n")[0]
    foreign = os.environ.get("PYTHONPATH")
    if foreign:
        return f"{cause}: packages of {sys.prefix} alone expected, found PYTHONPATH={foreign} too"
    # of `mxnet.gluon` the package
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None or (extra == "train" and NAMES.is_file()):  # which set-up writes
        return f"{cause}: whole packages expected in {sys.prefix}; scripts/setup.sh makes it anew"
    advice = f"{cause}: pip install 'rn50[{extra}]'"
    if extra == "train":
        return f"{advice} and Horovod, or run scripts/setup.sh in a checkout"
    return advice


def _stopped(stop: KeyboardInterrupt) -> int:
    import shlex

    from ..launch.ending import START_AGAIN, Ending, StoppedBySignal, asked_by

    if isinstance(stop, StoppedBySignal):
        _say(stop.ending.line)
    else:
        command = shlex.join(["rn50", *sys.argv[1:]])
        _say(Ending(f"stopped by {asked_by(stop)}", None, START_AGAIN, command).line)
    return EXIT_STOPPED


def _meant(line: str) -> str:
    """The end of an error that names a path of the command line which is not there, but nearly."""
    from ..config.names import nearest_path

    if "did you mean" in line.lower():
        return ""
    # in front of it stands the command, whose words are no paths
    line = re.sub(r"^rn50 [\w -]+: ", "", line)
    for argument in sys.argv[1:]:
        # an option's name is no path
        if argument.startswith("-") and "=" not in argument:
            continue
        path = Path(argument.partition("=")[2] or argument)
        # neither `log` in "a log" nor the last part of another path
        named = rf"(?<![\w./-]){re.escape(str(path))}(?=[/:,']|$)"
        if re.search(named, line) and (hint := nearest_path(path)):
            return hint
    return ""


def _refused(error: OSError) -> str:
    """What the system refused, and to whom."""
    line = str(error.strerror or error)
    where = error.filename
    try:
        Path.cwd()
    except OSError:  # it was removed: its error names no file
        where = where or "the working folder"
    return f"{where}: {line}" if where else line


def _say(line: str) -> None:
    from ..host.progress import say_aside

    with suppress(OSError):  # such as a closed terminal
        say_aside(f"rn50: {line}")


def _flush_output(code: Any) -> Any:
    """Write what is buffered while its error can still be printed: Python's own end is a traceback.

    Returns the exit code.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # what is still buffered goes nowhere, else Python's own end fails once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError) or code in (EXIT_USAGE, EXIT_STOPPED):
            return code  # `| head` has what it wants; the error or the stop has been printed
        _say(f"error: {error.filename}: {error.strerror}")
        return EXIT_USAGE
    return code


if __name__ == "__main__":
    main()
