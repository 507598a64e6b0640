"""The clock of a run: wall-clock time when it began plus monotonic time since. It cannot jump."""

import time
from collections.abc import Callable

from .records import Clocks, Jump

JUMP_S = 0.1
"""The smallest step of the wall clock that is noted: NTP's daemons step by at least 0.128 s, and
for less they slew both clocks."""

Moment = Callable[[], float]
"""When something is done, in seconds of `boot_time_s`; NaN: it is not yet."""


def boot_time_s() -> float:
    """Now, by the clock of every moment: train/kernels/stamp.c and train/gpu/step.c read it too."""
    # CLOCK_MONOTONIC stands still while a machine is suspended: that time counts too
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def present() -> Moment:
    """This moment."""
    now_s = boot_time_s()
    return lambda: now_s


class Clock:
    """Every stamp and every duration of a run comes from one of these. `not_before_unix_s`: the
    last stamp of a run that is resumed; stamps do not go back, even if the wall clock was set back
    in between."""

    def __init__(self, not_before_unix_s: float = 0.0) -> None:
        wall_s, self._begun_monotonic_s = _read_both()
        self._begun_unix_s = max(wall_s, not_before_unix_s)
        self.behind_s = self._begun_unix_s - wall_s
        """How far the wall clock was behind `not_before_unix_s`: by so much the length of the
        interruption is uncertain."""
        self._seen_ahead_s = -self.behind_s
        self.jumps: list[Jump] = []
        """What `look` found: `unix_s` (by this clock) and `by_s`."""

    @property
    def unix_s(self) -> float:
        """Seconds since 1970, never less than before."""
        return self.unix_s_at(boot_time_s)

    def unix_s_at(self, moment: Moment) -> float:
        """A moment in seconds since 1970, the same whenever it is asked; NaN: not yet known."""
        return self._begun_unix_s + (moment() - self._begun_monotonic_s)

    def look(self) -> float | None:
        """Seconds by which the wall clock has jumped since the last look; None: it has not."""
        ahead_s = self._ahead_s()
        # since the last jump, not the last look: slow drift adds up to one too
        by_s = round(ahead_s - self._seen_ahead_s, 3)
        if abs(by_s) < JUMP_S:
            return None
        self._seen_ahead_s = ahead_s
        self.jumps.append(Jump(round(self.unix_s, 3), by_s))
        return by_s

    def comparison(self) -> Clocks:
        """The two clocks at the end, for result.json."""
        return Clocks(round(self._ahead_s(), 3), tuple(self.jumps))

    def _ahead_s(self) -> float:
        """How far the wall clock is ahead of this one."""
        wall_s, monotonic_s = _read_both()
        return wall_s - (self._begun_unix_s + monotonic_s - self._begun_monotonic_s)


def _read_both() -> tuple[float, float]:
    """(wall clock, monotonic clock) of one moment."""
    return time.time(), boot_time_s()
