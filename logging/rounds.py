"""Which round a log belongs to, as far as the log itself tells."""

from __future__ import annotations

from .checked_keys import CheckedKeys
from .events import MLL, Event, OddStamps, cut
from .stamps import LATEST_MS

# First month whose logs belong to a round: its checker appeared about then (mlcommons/logging tags
# 0.7 2020-06, 1.0 2021-05, 1.1 2021-10, 2.0 2022-05, 2.1 2022-10, 3.0 2023-05, 3.1 2023-09,
# 4.0 2024-05), and logs are written in the three months before the results are due.
_ROUND_FROM_MS = (
    ("4.0.0", 1_706_745_600_000),  # 2024-02
    ("3.1.0", 1_690_848_000_000),  # 2023-08
    ("3.0.0", 1_675_209_600_000),  # 2023-02
    ("2.1.0", 1_659_312_000_000),  # 2022-08
    ("2.0.0", 1_643_673_600_000),  # 2022-02
    ("1.1.0", 1_627_776_000_000),  # 2021-08
    ("1.0.0", 1_609_459_200_000),  # 2021-01
)

_FIRST_MS = 1_514_764_800_000  # 2018: there was no MLPerf before


def guess_ruleset(dialect: str, events: list[Event]) -> str | None:
    """The round by dialect, else by date; None where no record has a date."""
    if dialect == MLL:
        return "0.6.0"
    dated = [e for e in events if _FIRST_MS <= e.time_ms < LATEST_MS]
    if not dated:
        return None
    start = next((e for e in dated if e.key == "run_start"), dated[0]).time_ms
    return next((name for name, first_ms in _ROUND_FROM_MS if start >= first_ms), "0.7.0")


def stamped_before_mlperf(events: list[Event], keys: CheckedKeys) -> list[OddStamps]:
    """Stamps from before 2018, where no record has a later one: of a clock that was never set, of
    another unit, or moved."""
    if any(_FIRST_MS <= e.time_ms < LATEST_MS for e in events):
        return []
    early = [e for e in events if 0 < e.time_ms < _FIRST_MS]
    if not early:
        return []
    first, checked = early[0], any(e.key in keys for e in early)
    text = f"{first.time_ms:.0f}"
    return [OddStamps("early", checked, len(early), first.line, cut(first.key), text)]
