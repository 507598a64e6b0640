"""The watchdog: hears every rank over TCP and says when the job has to end, and because of whom."""

from __future__ import annotations

import json
import resource
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.schema import Watchdog
from ..train.heartbeat import IN_ENGINE_SUFFIX, WATCHDOG_ENV, suspended_s
from .failure import GONE
from .host_limits import describe_silent

DEATH_GRACE_S = 5.0
"""From the end of a rank's process to that of the job, if its launcher does not see to it."""
_TICK_S = 0.25
_MAX_LINE_BYTES = 8192
_JOINING = ("join ranks", "open connections", "agree on weights")
"""Stages of start-up in which a rank waits for others."""


class Beat:
    """What is known of one rank."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""
        self.rank: int | None = None
        self.host = ""
        self.pid = 0
        self.place: tuple[str, int, str] = ("start", 0, "")
        self.heard_s = self.moved_s = time.monotonic()

    @property
    def waits(self) -> bool:
        """Does it most likely wait for other ranks?"""
        phase, _, at = self.place
        return phase in _JOINING or at.endswith(IN_ENGINE_SUFFIX)

    def report(self, reason: str) -> dict[str, Any]:
        phase, step, _ = self.place
        return {
            "rank": self.rank,
            "host": self.host,
            "phase": phase,
            "step": step,
            "reason": reason,
        }


class Monitor:
    """Listens in a thread. Read `verdict`, `failures` and `lost` at any time.

    Args:
        settings: the config's watchdog section.
        ranks: how many will report.
        one_machine: listen on this machine's own address alone.
    """

    def __init__(self, settings: Watchdog, ranks: int, *, one_machine: bool) -> None:
        self._settings = settings
        self._missing = set(range(ranks))
        self._start_s = self._judged_s = time.monotonic()
        self._token = secrets.token_hex(16)
        self._listener = socket.create_server(
            ("127.0.0.1" if one_machine else "", 0), backlog=4096, reuse_port=False
        )
        self._host = "127.0.0.1" if one_machine else socket.gethostname()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection for every rank
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._beats: dict[int, Beat] = {}
        self._over = False
        self._stop_sent = False
        self._stop_wanted = False
        self.failures: list[dict[str, Any]] = []
        """What ranks said of their own end, in this order."""
        self.lost: dict[str, Any] | None = None
        """The first rank whose process ended without a word, and where it was."""
        self._lost_s = 0.0
        self.verdict: dict[str, Any] | None = None
        """The job must end because of this rank."""
        self._thread = threading.Thread(target=self._listen, name="watchdog", daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """What the ranks need to know."""
        port = self._listener.getsockname()[1]
        return {WATCHDOG_ENV: f"{self._host}:{port}:{self._token}"}

    @property
    def unheard(self) -> frozenset[int]:
        """Ranks that have not said a word yet."""
        return frozenset(self._missing)

    def request_stop(self) -> None:
        """Ask all ranks for a checkpoint and an orderly end."""
        self._stop_wanted = True

    def close(self) -> None:
        """Hang up."""
        self._over = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _listen(self) -> None:
        while not self._over:
            for key, _ in self._selector.select(_TICK_S):
                if key.data is None:
                    connection, _address = self._listener.accept()
                    connection.setblocking(False)
                    self._selector.register(connection, selectors.EVENT_READ, Beat(connection))
                else:
                    self._hear(key.data)
            if self._stop_wanted and not self._stop_sent:
                self._stop_sent = True
                for beat in self._beats.values():
                    self._answer(beat, b"stop\n")
            self._judge(time.monotonic())

    def _hear(self, beat: Beat) -> None:
        try:
            data = beat.connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        beat.buffer += data
        lines = beat.buffer.split(b"\n")
        beat.buffer = lines.pop()
        try:
            for line in lines:
                self._take(beat, json.loads(line))
            if len(beat.buffer) > _MAX_LINE_BYTES:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            data = b""  # not one of ours
        if not data:
            self._end(beat)

    def _take(self, beat: Beat, message: Mapping[str, Any]) -> None:
        now_s = time.monotonic()
        if beat.rank is None:
            if not secrets.compare_digest(str(message["token"]), self._token):
                raise ValueError
            beat.rank, beat.host = int(message["rank"]), str(message["host"])[:100]
            beat.pid = int(message["pid"])
            self._beats[beat.rank] = beat
            self._missing.discard(beat.rank)
            if self._stop_sent:  # to those that were there
                self._answer(beat, b"stop\n")
        elif "failure" in message:
            known = ("rank", "host", "phase", "step", "reason", "retryable")
            self.failures.append({name: message["failure"][name] for name in known})
            self._forget(beat)
        elif "done" in message:
            self._forget(beat)
        else:
            place = (str(message["phase"])[:100], int(message["step"]), str(message["at"])[:200])
            if place[:2] != beat.place[:2]:
                beat.moved_s = now_s
            beat.place = place
        beat.heard_s = now_s
        self._answer(beat, b"beat\n")

    def _answer(self, beat: Beat, text: bytes) -> None:
        try:
            beat.connection.send(text)
        except BlockingIOError:
            pass  # its own silence will tell
        except OSError:
            self._end(beat)

    def _forget(self, beat: Beat) -> None:
        """Its end has been explained; whatever it does now is no news."""
        self._beats.pop(beat.rank if beat.rank is not None else -1, None)

    def _end(self, beat: Beat) -> None:
        if beat.connection.fileno() != -1:
            self._selector.unregister(beat.connection)
            beat.connection.close()
        if self._beats.get(beat.rank if beat.rank is not None else -1) is beat:
            self._forget(beat)
            if self.lost is None:
                self.lost = beat.report(GONE)
                self._lost_s = time.monotonic()

    def _judge(self, now_s: float) -> None:
        if self.verdict is not None:
            return
        pause_s, self._judged_s = suspended_s(self._judged_s, now_s), now_s
        if pause_s:
            self._start_s += pause_s
            self._lost_s += pause_s
            for beat in self._beats.values():  # some may have been heard since
                beat.heard_s = min(now_s, beat.heard_s + pause_s)
                beat.moved_s = min(now_s, beat.moved_s + pause_s)
        if self.lost is not None and now_s > self._lost_s + DEATH_GRACE_S:
            self.verdict = self.lost
            return
        if self._missing and now_s > self._start_s + self._settings.start_s:
            absent = Beat(self._listener)
            absent.rank, absent.host = min(self._missing), "an unknown host"
            self.verdict = absent.report(f"not heard of in {self._settings.start_s:g} s")
            return
        silent = [b for b in self._beats.values() if now_s > b.heard_s + self._settings.silence_s]
        if silent:
            beat = min(silent, key=lambda b: b.heard_s)
            here = beat.host == socket.gethostname()
            about = describe_silent(beat.pid, self._token) if here else None
            about = about or "stopped, or its network is cut"
            self.verdict = beat.report(f"silent for {self._settings.silence_s:g} s: {about}")
            return
        still = [b for b in self._beats.values() if now_s > b.moved_s + self._settings.stall_s]
        if still and len(still) == len(self._beats):
            # All wait for one. It is behind the others, or not where one waits for others.
            beat = min(still, key=lambda b: (b.place[1], b.waits))
            self.verdict = beat.report(
                f"no progress for {self._settings.stall_s:g} s, at {beat.place[2]}"
            )


def oom_kills() -> int:
    """Processes that the kernel of this machine has killed for want of memory so far."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, StopIteration):
        return 0
