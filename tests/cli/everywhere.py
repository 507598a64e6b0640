"""Runs many commands in one environment: a process each, forked from one that has loaded them.

python everywhere.py TASK    writes beside TASK.json, which is read, what each command has printed
"""

import fcntl
import json
import os
import struct
import sys
import tempfile
import termios
import traceback
from pathlib import Path
from typing import IO, Any

from rn50.cli import entry, main


def run(arguments: list[str], output: str) -> dict[str, Any]:
    """`rn50 WORDS` whose standard output is a file, nothing, or a terminal of so many columns."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        leader = follower = -1
        if output.isdecimal():
            leader, follower = os.openpty()
            size = struct.pack("HHHH", 24, int(output), 0, 0)
            fcntl.ioctl(follower, termios.TIOCSWINSZ, size)
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(err.fileno(), 2)
            if output == "closed":
                os.close(1)
            elif output.startswith("/"):
                os.dup2(os.open(output, os.O_WRONLY), 1)
            else:
                os.dup2(follower if follower >= 0 else out.fileno(), 1)
            os._exit(call(arguments))
        if follower >= 0:
            os.close(follower)
            copy_terminal(leader, out)
        _, status = os.waitpid(child, 0)
        printed = []
        for stream in (out, err):
            stream.seek(0)
            printed.append(stream.read().decode(errors="replace"))
    return {
        "code": os.waitstatus_to_exitcode(status),
        "out": printed[0].replace("\r\n", "\n"),
        "err": printed[1],
    }


def call(arguments: list[str]) -> int:
    """Be the command; returns its exit code."""
    sys.argv = ["rn50", *arguments]
    try:
        entry.main()
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except BaseException:
        traceback.print_exc()
    return 99


def copy_terminal(leader: int, out: IO[bytes]) -> None:
    """What is written to a terminal until its last writer has closed it."""
    try:
        while written := os.read(leader, 1 << 16):
            out.write(written)
    except OSError:
        os.close(leader)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    task = json.loads(path.read_text())
    group: Any = main.Commands()
    for name in group.commands:
        group.get_command(None, name)  # loaded once for all
    os.chdir(task["folder"])
    done = [run(arguments, task["output"]) for arguments in task["commands"]]
    path.with_suffix(".done").write_text(json.dumps(done))
