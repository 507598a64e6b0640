"""stderr.log: what launcher and ranks write to their standard error, bounded in size.

One message of Open MPI, repeated without end, once wrote 100 MB in 90 s onto a shared disk.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType

MOST_BYTES_A_RANK = 10_000_000
_MOST_BYTES = 100_000_000
"""Of all ranks; half of it may be in memory."""
_MOST_REPEATS = 100
_MOST_COUNTED = 10_000
"""Different lines whose repeats are counted; messages that flood are among the first."""


class StderrLog:
    """Writes lines to `path`: the first as they come, the last when it is closed. A line that has
    come 100 times is only counted from then on."""

    def __init__(self, path: Path, ranks: int) -> None:
        self._file = path.open("w+b", buffering=0)
        self._half_bytes = min(MOST_BYTES_A_RANK * ranks, _MOST_BYTES) // 2
        self._lock = threading.Lock()
        self._seen: Counter[str] = Counter()
        self._written_bytes = self._kept_bytes = self._dropped = 0
        self._last: deque[str] = deque()

    def __enter__(self) -> StderrLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, line: str) -> None:
        """Keep a line, or count it. May be called by several threads."""
        with self._lock:
            if line in self._seen or len(self._seen) < _MOST_COUNTED:
                self._seen[line] += 1
                if self._seen[line] > _MOST_REPEATS:
                    return
            if not self._last and self._written_bytes + len(line) <= self._half_bytes:
                self._written_bytes += len(line)
                self._write(line)
                return
            self._last.append(line)
            self._kept_bytes += len(line)
            while self._kept_bytes > self._half_bytes:
                self._kept_bytes -= len(self._last.popleft())
                self._dropped += 1

    def finish(self) -> str:
        """Write the last lines and what was left out; returns the whole text."""
        with self._lock:
            if self._dropped:
                self._write(f"[... {self._dropped:,} lines left out ...]\n")
            for line in self._last:
                self._write(line)
            for line, count in self._seen.items():
                if count > _MOST_REPEATS:
                    self._write(f"[{count - _MOST_REPEATS:,} more lines like this one: ] {line}")
            self._file.seek(0)
            return self._file.read().decode(errors="replace")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # such as a full disk: who stops to read holds up the ranks
            self._file.write(text.encode(errors="replace"))
