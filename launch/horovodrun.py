"""`python -m rn50.launch.horovodrun`: Horovod's launcher, which leaves nothing in /dev/shm.

Horovod starts each rank through a process that waits for a `multiprocessing.Event`. Such an event
is five named semaphores, and they stay when every process that knew them is killed. A pipe does
not.
"""

from __future__ import annotations

import sys
from multiprocessing.context import BaseContext

from horovod.runner import launch
from horovod.runner.common.util import safe_shell_exec


class PipeEvent:
    """What Horovod uses of a `multiprocessing.Event`: once set it stays so."""

    def __init__(self, context: BaseContext) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)

    def set(self) -> None:
        """Let all processes that wait go on."""
        self._writer.send_bytes(b"set")

    def is_set(self) -> bool:
        """Whether it was set: what `set` sent stays in the pipe."""
        return self._reader.poll()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for `timeout` seconds; whether it was set."""
        return self._reader.poll(timeout)


if __name__ == "__main__":
    sys.argv[0] = "horovodrun"
    safe_shell_exec._create_event = PipeEvent
    launch.run_commandline()
