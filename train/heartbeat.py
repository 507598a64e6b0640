"""A rank's line to the watchdog in the launcher: where it is, every second; what ended it.

One TCP connection a rank, whatever the launcher and the engine. Its end shows the watchdog at once
that a process is gone, its silence that one is stopped or cut off; its end shows the ranks that the
launcher is gone, so that no rank is left behind. A message is one line of JSON either way; it is
data. To the launcher: who this rank is, then `place` with `line` and `activity`, `begun`, `stop`,
`failure`, `done`. From the launcher: `beat`, `hold`, or `stop_after` with `by`.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ..host.errors import UserError
from ..host.reading import read_text
from .activity import activity_of
from .context import RunContext

WATCHDOG_ENV = "RN50_WATCHDOG"
"""Set by the launcher: HOST:PORT:TOKEN."""
SCRATCH_ENV = "RN50_SCRATCH"
"""Set by the launcher: the folder of the job's temporary files, where it is on one machine."""
PERIOD_S = 1.0
"""The time between two messages; a new phase is sent at once. Ten looks a second, of 56 us of CPU
time each, of 2,048 ranks on one machine took a core."""
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PACKAGE = str(Path(__file__).parent.parent)
_ENGINES = ("/mxnet/", "/horovod/")


class Line(NamedTuple):
    """The place of a thread: a line of this package, or a call of an engine from it, in which a
    rank most likely waits for others."""

    position: str
    in_engine: bool = False

    def __str__(self) -> str:
        return f"{self.position} (in an engine)" if self.in_engine else self.position


class Place(NamedTuple):
    """How far a rank is: the step that its loop is at, the last one that its device has done."""

    phase: str = "start"
    step: int = 0
    done_step: int = 0
    eval_batches: int = 0


class HeartbeatClient:
    """Beats in a thread of its own, also while the main thread is inside an engine.

    Args:
        address: content of `WATCHDOG_ENV`.
        context: of this rank.
        end: called with a reason when the watchdog is gone; must not return.
    """

    def __init__(
        self, address: str, context: RunContext, end: Callable[[str], Any]
    ) -> None:
        host, port, token = address.rsplit(":", 2)
        self._context = context
        self._end = end
        self._patience_s = 3 * context.run.watchdog.silence_s
        try:
            self._socket = socket.create_connection((host, int(port)), self._patience_s)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise UserError(
                    "net.ipv4.ip_local_port_range: a free port of this host expected, found none "
                    f"in {' to '.join(read_text(_PORT_RANGE).split())}"
                ) from None
            raise UserError(
                f"watchdog: the launcher at {host}:{port} expected, cannot reach it: "
                f"{error.strerror or error} (watchdog.enabled=false goes without)"
            ) from None
        self._lock = threading.Lock()
        self._over = False
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        context.timeline.on_phase = lambda: os.eventfd_write(self._news, 1)
        self._send(
            {
                "token": token,
                "rank": context.process.rank,
                "host": context.process.host,
                "pid": os.getpid(),
                "identity": json.dumps(context.identity),
            }
        )
        threading.Thread(target=self._beat, name="watchdog", daemon=True).start()

    def tell(self, **message: Any) -> None:
        """Ask the launcher to stop all ranks (`stop`: the signal that this one got), or tell it why
        this rank ends (`failure`), in case its disk does not take it."""
        with suppress(OSError):
            self._send(message)

    def stop(self) -> None:
        """This rank has done all it had to."""
        self._over = True
        self.tell(done=True)

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _beat(self) -> None:
        context = self._context
        clock = context.stop.clock
        clock.watch()
        last_sent_s = 0.0
        last = Place()
        received = b""
        incoming = select.poll()  # select() takes no descriptor above 1,023
        incoming.register(self._socket, select.POLLIN)
        incoming.register(self._news, select.POLLIN)
        last_received_s = clock.look_s()
        while not self._over:
            now_s = clock.look_s()
            try:
                is_due = now_s >= last_sent_s + PERIOD_S
                if is_due or context.timeline.phase != last.phase:
                    last = self._send_place(last)
                    last_sent_s = now_s
                wait_s = max(0.0, last_sent_s + PERIOD_S - now_s)
                ready = [descriptor for descriptor, _ in incoming.poll(1e3 * wait_s)]
                if self._news in ready:
                    os.eventfd_read(self._news)
                if self._socket.fileno() in ready:
                    data = self._socket.recv(4096)
                    if not data:
                        raise ConnectionResetError
                    last_received_s = now_s
                    *lines, received = (received + data).split(b"\n")
                    for line in lines:
                        self._on_message(json.loads(line))
            except OSError as error:
                if not self._over:
                    why = error.strerror or "closed"
                    self._end(f"no connection to the launcher any more ({why})")
            if now_s > last_received_s + self._patience_s and not self._over:
                self._end(f"no word from the launcher for {self._patience_s:g} s")

    def _send_place(self, last: Place) -> Place:
        """Send how far this rank is; with what its process does, where that is all that goes on
        since `last`: a look at 60 threads takes a millisecond."""
        context = self._context
        current = Place(
            context.timeline.phase,
            context.step,
            context.done_step(),
            context.eval_batches,
        )
        line = main_thread()
        activity = None
        # a host that waits for a GPU polls
        polls = line.in_engine and context.run.system.device == "gpu"
        if current == last and not polls:
            activity = activity_of(os.getpid())
        self._send(
            {
                "place": current,
                "line": line,
                "activity": activity,
                "is_started": context.is_started,
                "grace_s": context.grace_s,
            }
        )
        return current

    def _on_message(self, message: Mapping[str, Any]) -> None:
        stop = self._context.stop
        if "stop_after" in message:
            stop.stop_after(message["stop_after"], message["by"])
        # in start-up there is nothing to save, and no step that all could end with
        elif "hold" in message and self._context.is_started:
            self._send({"begun": stop.hold()})
        elif "hold" in message:
            self._end("asked to stop during start-up")


def main_thread() -> Line:
    """The place of the main thread: the innermost line of this package, and whether an engine has
    it (MXNet, Horovod)."""
    frame = _frames().get(threading.main_thread().ident or 0)
    in_engine = frame is not None and any(
        name in frame.f_code.co_filename for name in _ENGINES
    )
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_PACKAGE):
            file = code.co_filename[len(_PACKAGE) + 1 :]
            return Line(f"{file}:{frame.f_lineno} {code.co_name}", in_engine)
        frame = frame.f_back
    return Line("outside rn50")


def _frames() -> dict[int, FrameType]:
    """The innermost frame of each thread. No garbage is collected meanwhile: until 3.11.8 Python
    does so under the lock with which threads start and end, and a finalizer there lets the thread
    run that waits for this lock with the GIL, for ever (python/cpython#106883)."""
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()
