"""Sums by one hub, in the place of Horovod's collectives between thin ranks.

The hub is the driver's, so that its work counts as neither the launcher's nor the ranks'.
"""

import asyncio
import hashlib
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rn50.launch.host_limits import raise_open_files

_HEAD = struct.Struct("<I")
_HELLO = struct.Struct("<II")


def _address(out: Path) -> str:
    """An abstract Unix socket of the run in `out`: a path may be too long for one."""
    path = str(out.resolve())
    digest = hashlib.sha256(path.encode()).hexdigest()
    return f"\0rn50-{digest[:32]}"


class Member:
    """A rank's end. All ranks call everything in the same order."""

    def __init__(self, out: Path, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(_address(out))
        hello = _HELLO.pack(rank, os.getpid())
        self._socket.sendall(hello)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Added up over all ranks."""
        data = np.array(values, np.float64).tobytes()
        head = _HEAD.pack(len(data))
        self._socket.sendall(head + data)
        (size,) = _HEAD.unpack(self._read(_HEAD.size))
        total = np.frombuffer(self._read(size), np.float64)
        return total.tolist()

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("the exchange is gone")
            data += piece
        return bytes(data)


class Exchange:
    """The hub, in a thread of its own. Read its attributes at any time."""

    def __init__(self, out: Path, ranks: int) -> None:
        raise_open_files()
        self.pids: dict[int, int] = {}
        """The processes of the ranks that have joined."""
        self.sums: list[list[float]] = []
        """What each sum came to."""
        self.gone_s: float | None = None
        """When (monotonic) the last process of those that had joined was gone."""
        self._ranks = ranks
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._asked: dict[int, bytes] = {}
        self._loop = asyncio.new_event_loop()
        server = asyncio.start_unix_server(self._serve, _address(out), backlog=4096)
        self._server = self._loop.run_until_complete(server)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        hello = await reader.readexactly(_HELLO.size)
        rank, pid = _HELLO.unpack(hello)
        self._writers[rank] = writer
        self.pids[rank] = pid
        try:
            while True:
                head = await reader.readexactly(_HEAD.size)
                (size,) = _HEAD.unpack(head)
                self._asked[rank] = await reader.readexactly(size)
                if len(self._asked) == self._ranks:
                    self._answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            del self._writers[rank]
            if not self._writers:
                self.gone_s = time.monotonic()

    def _answer(self) -> None:
        rows = [np.frombuffer(row, np.float64) for row in self._asked.values()]
        total = np.sum(rows, axis=0)
        self._asked.clear()
        self.sums.append(total.tolist())
        answer = total.tobytes()
        for writer in self._writers.values():
            writer.write(_HEAD.pack(len(answer)) + answer)
