"""A machine's model from small runs of the user. Pure: somebody else reads the logs.

Runs of two batches or more fix both constants of computation; runs on different numbers of GPUs
fix the jitter as well. As many constants as runs leave no residual: what is left over is then no
measure of the fit. The network stays as the base system describes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..config.benchmark import IMAGENET_EVAL_SAMPLES
from ..config.machine import Compute, Performance, Point, System
from .fit import build
from .hardware import Machine
from .step import step_time

JITTERS = [0.002 * number for number in range(51)]
"""Candidates up to 10 %, tried in turn: the function is cheap and may have a flat bottom."""

_MET = 0.005
"""A relative error that the steps of `JITTERS` leave, whatever the runs are."""


class Measurement(NamedTuple):
    """A run of the user's: a step, and the clocks around it where the log has them."""

    gpus: int
    batch: int
    step_s: float
    source: str
    startup_s: float | None = None
    evaluation_s: float | None = None


@dataclass(frozen=True)
class Calibration:
    """The fitted system, and how far it is from the runs it was fitted to."""

    system: System
    fixed_s: float
    per_image_s: float
    jitter: float
    constants: tuple[str, ...]
    """What the runs fixed."""
    error: float
    """Root mean square relative error over the runs."""
    runs: int

    @property
    def residual(self) -> float | None:
        """`error`, or None where as many constants as runs make it nothing by themselves."""
        if self.error < _MET and self.runs <= len(self.constants):
            return None
        return self.error


def calibrate(
    name: str, base: System, runs: Sequence[Measurement], precision: str = "fp16"
) -> Calibration:
    """Fit a machine to one run or more. Raises UserError: runs that no rising line explains.

    Args:
        name: what messages call the machine.
        base: the machine as it is described.
        runs: what was measured on it.
        precision: what the runs computed in.
    """
    performance = base.performance or Performance()
    fixed_s = None
    constants = ["fixed", "per_image"]
    # one batch has one step: it cannot tell what grows with the batch from what does not
    if len({run.batch for run in runs}) == 1:
        constants = ["per_image"]
        fixed_s = 0.0
        if getattr(performance, precision) is not None:
            fixed_s = build(name, base, precision).fixed_s
        shortest_s = min(run.step_s for run in runs)
        # that of another machine may be longer than the whole step here
        fixed_s = min(fixed_s, 0.5 * shortest_s)
    points = tuple(
        Point(gpus=run.gpus, batch=run.batch, step_s=run.step_s, source=run.source)
        for run in runs
    )
    update: dict[str, object] = {
        precision: Compute(points=points, fixed_s=fixed_s),
        "sources": "rn50 predict calibrate",
        **_clocks(performance, runs),
    }
    if precision == "fp16":  # measured on this very machine: nothing to weigh against
        update["tensor_flops_per_s"] = None
    performance = performance.model_copy(update=update)
    jitters = [performance.jitter]
    if len({run.gpus for run in runs}) > 1:
        jitters = JITTERS
        constants.append("jitter")
    fits = []
    for jitter in jitters:
        performance = performance.model_copy(update={"jitter": jitter})
        system = base.model_copy(update={"performance": performance})
        machine = build(name, system, precision)
        fit = Calibration(
            system=system,
            fixed_s=machine.fixed_s,
            per_image_s=machine.per_image_s,
            jitter=jitter,
            constants=tuple(constants),
            error=_error(machine, runs),
            runs=len(runs),
        )
        fits.append(fit)
    usual = Performance().jitter
    # of fits that are as good the one with the usual jitter
    return min(fits, key=lambda fit: (round(fit.error, 6), abs(fit.jitter - usual)))


def _error(machine: Machine, runs: Sequence[Measurement]) -> float:
    """Root mean square relative error of the steps."""
    squares = []
    for run in runs:
        modelled_s = step_time(machine, run.gpus, run.batch).total_s
        squares.append((modelled_s / run.step_s - 1) ** 2)
    return math.sqrt(math.fsum(squares) / len(runs))


def _clocks(performance: Performance, runs: Sequence[Measurement]) -> dict[str, object]:
    """Start-up and evaluation of the largest run, which is nearest to what will be asked."""
    largest = max(runs, key=lambda run: run.gpus)
    update: dict[str, object] = {}
    if largest.startup_s is not None:
        update["startup_s"] = largest.startup_s
    if largest.evaluation_s is not None:
        images_s = IMAGENET_EVAL_SAMPLES / largest.gpus / performance.eval_images_per_s
        update["eval_fixed_s"] = max(0.0, largest.evaluation_s - images_s)
    return update
