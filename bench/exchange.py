"""What stands in for Horovod's collectives between thin ranks: a sum and an allgather by one hub.

Loads no framework. The hub belongs to the benchmark's driver, so that its work counts as neither
the launcher's nor the ranks'.
"""

from __future__ import annotations

import hashlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..launch.host_limits import raise_open_files

_HEAD = struct.Struct("<cI")
_HELLO = struct.Struct("<I")
_PEER = struct.Struct("3i")
SUM, GATHER = b"s", b"g"


def _address(out: Path) -> str:
    """An abstract Unix socket of the run in `out`: a path may be too long for one."""
    return "\0rn50-" + hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:32]


class Member:
    """A rank's end. All ranks call everything in the same order."""

    def __init__(self, out: Path, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(_address(out))
        self._socket.sendall(_HELLO.pack(rank))

    def sum(self, values: Sequence[float]) -> list[float]:
        """Added up over all ranks."""
        data = self._ask(SUM, np.array(values, np.float64).tobytes())
        return np.frombuffer(data, np.float64).tolist()

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, as many of each, by rank."""
        everyone = self._ask(GATHER, data)
        return [everyone[at : at + len(data)] for at in range(0, len(everyone), len(data))]

    def _ask(self, kind: bytes, data: bytes) -> bytes:
        self._socket.sendall(_HEAD.pack(kind, len(data)) + data)
        _, size = _HEAD.unpack(self._read(_HEAD.size))
        return self._read(size)

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
        self._ranks = ranks
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(_address(out))
        self._listener.listen(4096)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._buffers: dict[socket.socket, bytearray] = {}
        self._rank_of: dict[socket.socket, int] = {}
        self._asked: dict[int, tuple[bytes, bytes]] = {}
        self._closed = False
        self.pids: dict[int, int] = {}
        """Of the ranks that have joined."""
        self.sums: list[list[float]] = []
        """What each sum came to."""
        self.gone_s: float | None = None
        """When (monotonic) the last process of those that had joined was gone."""
        self.cpu_s = 0.0
        self._thread = threading.Thread(target=self._serve, name="exchange", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; ranks that are left find their connection closed."""
        self._closed = True
        self._thread.join()
        for connection in (*self._buffers, self._listener):
            connection.close()
        self._selector.close()

    def _serve(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(0.05):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._listener:
                    self._accept()
                else:
                    self._read(connection)
            self.cpu_s = time.thread_time()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._buffers[connection] = bytearray()
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()
            del self._buffers[connection]
            self._rank_of.pop(connection, None)
            if not self._buffers:
                self.gone_s = time.monotonic()
            return
        buffer = self._buffers[connection]
        buffer += data
        if connection not in self._rank_of and len(buffer) >= _HELLO.size:
            (rank,) = _HELLO.unpack_from(buffer)
            del buffer[: _HELLO.size]
            self._rank_of[connection] = rank
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            self.pids[rank] = _PEER.unpack(peer)[0]
        if len(buffer) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(buffer)
            if len(buffer) >= _HEAD.size + size:
                self._asked[self._rank_of[connection]] = kind, bytes(buffer[_HEAD.size :])
                buffer.clear()  # a rank asks for one thing at a time
        if len(self._asked) == self._ranks:
            self._answer()

    def _answer(self) -> None:
        kind = self._asked[0][0]
        rows = [self._asked[rank][1] for rank in range(self._ranks)]
        self._asked.clear()
        if kind == SUM:
            total = np.sum([np.frombuffer(row, np.float64) for row in rows], axis=0)
            self.sums.append(total.tolist())
            answer = total.tobytes()
        else:
            answer = b"".join(rows)
        for connection in list(self._rank_of):
            with suppress(OSError):  # its end is read next
                connection.sendall(_HEAD.pack(kind, len(answer)) + answer)
