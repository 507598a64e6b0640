"""What runs on the fake GPU have in common: their shapes, and what is left of one."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ROOT, metrics
from tests.gpu.hardware_body import DEFAULTS
from tests.gpu.on_hardware import Part, Row, outcome
from tests.waiting import output_of

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
    """The fake's reports, by rank."""

    @property
    def log_points(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl about training."""
        return metrics(self.out, "train")

    @property
    def counts(self) -> dict[str, int]:
        """What rank 0 asked of the device."""
        return self.reports[0]["counts"]

    def each_step(self, name: str, steps: int) -> float:
        """`name` per step, between the first log point and the last, `steps` apart each."""
        points = self.reports[0]["points"]
        counts = [point.get(name, 0) for point in points]
        return (counts[-1] - counts[0]) / (steps * (len(points) - 1))


GpuRun = Callable[..., Done]
Body = Callable[..., dict[str, Any]]


def answer_of(
    launcher: Sequence[str], options: dict[str, Any], **environment: str
) -> dict[str, Any]:
    """What plan_body.py prints. `launcher`: its words."""
    printed = output_of(
        [
            *launcher,
            sys.executable,
            str(ROOT / "tests/gpu/plan_body.py"),
            json.dumps(options),
        ],
        env=os.environ | {"FAKECUDA_LAZY": "1", "PYTHONPATH": str(ROOT)} | environment,
        cwd=ROOT,
        timeout=600,
    )
    line = printed.splitlines()[-1]  # horovodrun puts its rank before it
    answer: dict[str, Any] = json.loads(line[line.index("{") :])
    assert answer["errors"] == []
    return answer


def rows_of(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, capability: str = "9.0"
) -> list[Row]:
    """The rows of a part of the page from hardware, of a network at its full size: nothing is
    computed."""
    monkeypatch.setenv("FAKECUDA_COMPUTE", "0")
    monkeypatch.setenv("FAKECUDA_CAPABILITY", capability)
    monkeypatch.setenv("FAKECUDA_MEMORY_GIB", "80")
    options = DEFAULTS._replace(rounds=1, steps=1, overrides=["model.step=plan"])
    rows, failure = outcome(Part(arguments, 360), options)
    assert not failure
    return rows
