"""What runs on the fake GPU have in common: their shapes, and what is left of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ONE_RANK = ("system.ranks_per_node=1",)
SHORT = (
    "schedule.length=2 epochs",
    "schedule.warmup=1 epochs",
    "eval.period=1",
    "eval.offset=0",
)
HALF = ("model.dtype=float16",)


class Done(NamedTuple):
    """A run that ended well."""

    out: Path
    result: dict[str, Any]
    reports: list[dict[str, Any]]
    """Of the fake, by rank."""

    @property
    def counts(self) -> dict[str, int]:
        """What rank 0 asked of the device."""
        return self.reports[0]["counts"]

    def each_step(self, name: str, steps: int) -> float:
        """`name` per step, between the first log point and the last, `steps` apart each."""
        points = self.reports[0]["points"]
        return (points[-1].get(name, 0) - points[0].get(name, 0)) / (
            steps * (len(points) - 1)
        )


GpuRun = Callable[..., Done]
