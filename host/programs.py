"""The one door to other programs: schedulers, launchers, compilers, checkers, our own processes.

Each is started here, with the environment that `inherited.py` lets through, without an input, in a
session of its own. `ask` reads what a program answers, `call` shows it, and both wait no longer
than they are told; `start` is for those whose caller watches them. None of them raises anything but
NoAnswer, whatever the program prints and however it ends.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

from .atomic import write_file
from .errors import UserError
from .inherited import QUESTION, inherited
from .progress import say_aside

if TYPE_CHECKING:
    from selectors import BaseSelector
    from subprocess import Popen

PIPE = -1
NOWHERE = -3
"""The values of subprocess, which is loaded where a program is started: 10 ms."""
ANSWER_S = 20.0
"""For a program that only has to say something."""
_TELL_AFTER_S = 5.0
_POLL_S = 0.05
_END_S = 2.0
"""The time between asking a program to end and killing it."""
_MOST_BYTES = 16 << 20
"""The most that is kept of a program's output; what comes after is read and forgotten."""
_SHOWN_CHARACTERS = 500


class NoAnswer(UserError):
    """A program did not come to its end in time. `printed`: until then."""

    printed = ""


class NotStarted(NoAnswer):
    """A program could not even be started."""


class Answer(NamedTuple):
    """What a program printed until it ended. `code`: its exit code; minus a signal's number."""

    program: str
    code: int
    out: str
    err: str

    @property
    def ended(self) -> str:
        """How it ended, in words."""
        return f"{self.program} {ended_by(self.code)}"

    def said(self, line: str = "", folder: Path | None = None) -> str:
        """One `line` of its words, or all on one. Where that is not everything, the file that has
        it is named behind: in `folder`, or among the temporary ones."""
        output = "\n".join(filter(None, (self.out.strip(), self.err.strip())))
        excerpt = _on_one_line(line or self.err.strip() or self.out)[:_SHOWN_CHARACTERS]
        with suppress(OSError):
            if _on_one_line(output) != excerpt:
                excerpt += f" (all of it: {_keep(self.program, output, folder)})"
        return excerpt or "nothing"


def _on_one_line(output: str) -> str:
    """Long ones are cut."""
    return " ".join(output[: 8 * _SHOWN_CHARACTERS].split())


@cache
def _keep(program: str, output: str, folder: Path | None) -> Path:
    """The file that has the words of a program; one that says them again has the same."""
    if folder is None:
        number, name = tempfile.mkstemp(".txt", f"rn50-{program}-")
        os.close(number)
        path = Path(name)
    else:
        path = folder / f"{program}.txt"
    write_file(path, output + "\n")
    return path


def ended_by(code: int) -> str:
    """How a process ended, by its exit code as Popen has it."""
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def ask(
    command: Sequence[str],
    limit_s: float = ANSWER_S,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Answer:
    """What `command` prints. Raises NoAnswer.

    Args:
        command: the program and its words.
        limit_s: the longest time to its end.
        environment: what `inherited` gives; None: what a question gets.
        folder: its working folder; None: ours.
    """
    if environment is None:
        environment = inherited(os.environ, QUESTION)
    child = start(command, environment, folder, PIPE, PIPE)
    printed: dict[Any, bytearray] = {
        child.stdout: bytearray(),
        child.stderr: bytearray(),
    }
    try:
        _wait(child, _name(command), limit_s, printed)
    except NoAnswer as error:
        # what it said until then may be the reason
        error.printed = b"".join(printed.values()).decode(errors="replace")
        raise
    out, err = (data.decode(errors="replace") for data in printed.values())
    return Answer(_name(command), child.returncode, out, err)


def call(command: Sequence[str], limit_s: float, environment: Mapping[str, str]) -> int:
    """The exit code of `command`, which prints where we do. Raises NoAnswer."""
    child = start(command, environment)
    _wait(child, _name(command), limit_s, {})
    return child.returncode


def _name(command: Sequence[str]) -> str:
    """What a program is called in messages; of Python, the module that it runs."""
    _, *arguments = command
    return arguments[1] if arguments[:1] == ["-m"] else Path(command[0]).name


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | None = None,
    output: int | IO[bytes] | None = None,
    errors: int | IO[bytes] | None = None,
) -> Popen[str]:
    """The process of `command`, whose end is the caller's to wait for. Raises NotStarted.

    Args:
        command: the program and its words.
        environment: what `inherited` gives.
        folder: its working folder; None: ours.
        output: where its standard output goes; None: where ours does.
        errors: where its errors go; None: where ours do.
    """
    import subprocess

    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches us alone; we end what we have started
        )
    except OSError as error:
        why = str(error.strerror)
        # a bare name, which the system looks for
        if Path(command[0]).name == command[0]:
            why = "not on the PATH"
        raise NotStarted(f"{command[0]}: {why}") from None


def become(command: list[str]) -> NoReturn:
    """Go on as `command`, with this process's environment."""
    os.execv(command[0], command)


def _wait(
    child: Popen[str], program: str, limit_s: float, printed: Mapping[Any, bytearray]
) -> None:
    """Until a process has ended, or is ended after `limit_s`; what it prints meanwhile is
    `printed`. What it has left behind may keep its pipes open for ever."""
    import selectors

    begun_s = time.monotonic()
    is_announced = threading.current_thread() is not threading.main_thread()
    try:
        with selectors.DefaultSelector() as streams:
            for stream in printed:
                streams.register(stream, selectors.EVENT_READ)
            while _read(streams, child, printed) or child.poll() is None:
                waited_s = time.monotonic() - begun_s
                if waited_s > limit_s:
                    raise NoAnswer(f"{program}: no answer in {limit_s:g} s")
                if waited_s > _TELL_AFTER_S and not is_announced:
                    is_announced = True
                    with suppress(OSError):  # such as a closed terminal
                        line = f"rn50: waiting for {program}, up to {limit_s:g} s"
                        say_aside(line)
    finally:
        _end(child)
        for stream in printed:
            stream.close()


def _read(
    streams: BaseSelector, child: Popen[str], printed: Mapping[Any, bytearray]
) -> bool:
    """Whether there was something to read within a moment, or the end of a stream."""
    from subprocess import TimeoutExpired

    if not streams.get_map():
        # both streams are closed, and the process goes on
        with suppress(TimeoutExpired):
            child.wait(_POLL_S)
        return False
    # of a process that has ended only what its pipes still hold
    ready = streams.select(_POLL_S if child.poll() is None else 0)
    for key, _ in ready:
        data = os.read(key.fd, 1 << 16)
        if not data:
            streams.unregister(key.fileobj)
        elif len(printed[key.fileobj]) < _MOST_BYTES:
            printed[key.fileobj] += data
    return bool(ready)


def _end(child: Popen[str]) -> None:
    """End a process that has not, with what it has started."""
    from subprocess import TimeoutExpired

    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            with suppress(ProcessLookupError, TimeoutExpired):
                # its session is its own (`start`), so its number is its group's
                os.killpg(child.pid, number)
                child.wait(_END_S)
