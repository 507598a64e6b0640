"""metrics.jsonl: one JSON object a line, flushed, rank 0 alone. Written for programs."""

import json
import math
from pathlib import Path
from typing import Any

from .clock import Clock
from .line_file import LineFile


class Metrics:
    """Appends records with a `kind` and the seconds since `start_clock`. `path`: written anew, or
    with `resumed` continued; None: nothing is written. `clock`: of the run. Raises UserError: it
    cannot be opened, or a link or no regular file has its name."""

    def __init__(
        self, path: Path | None, clock: Clock, *, resumed: bool = False
    ) -> None:
        self._file = None if path is None else LineFile(path, resumed=resumed)
        self._clock = clock
        self._start_unix_s = self._clock.unix_s

    def start_clock(self, unix_s: float) -> None:
        """Time 0 of the records, by the run's clock: its `run_start`."""
        self._start_unix_s = unix_s

    @property
    def size_bytes(self) -> int:
        """The size of the file so far."""
        return 0 if self._file is None else self._file.size_bytes

    @property
    def elapsed_s(self) -> float:
        """The seconds since `start_clock`."""
        return self._clock.unix_s - self._start_unix_s

    def write(self, series: str, **values: Any) -> None:
        """Append one record; numbers as they are, nothing rounded; NaN and infinity, which JSON
        has not, as null. Raises UserError where the disk does not take it."""
        if self._file:
            record = {"kind": series, "time_s": self.elapsed_s, **values}
            for name, value in values.items():
                # Python would write NaN, which is no JSON, or refuse the record
                if isinstance(value, float) and not math.isfinite(value):
                    record[name] = None
            self._file.write(json.dumps(record, allow_nan=False))
