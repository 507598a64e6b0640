"""The model judged on what it was not fitted to: rows left out by system, round and size. Pure.

Each time the constants of `gpu.py` are fitted again without the rows that are asked for, and the
machine files lose those points that are among them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean
from typing import NamedTuple

import numpy as np

from ..config.load import load_system
from ..config.machine import Compute, Performance, Point, System
from .epochs import LEVEL_SIGMAS, read_table
from .gpu import SHEET, Sheet, update_s
from .machine import uses_sheet
from .predict import step_sigma
from .step import build, step_time

LARGE_GPUS = 256
SMALL_GPUS = 128
"""What "small" is where large runs are predicted from small ones."""

_HUBER = 2.0
"""In sigmas: beyond it a row pulls no harder. Four entries of 195 are slower than their sites'
other entries say."""
_SIGMA = 0.05
_ITERATIONS = 20


@dataclass(frozen=True)
class Case:
    """A published step of a machine with a data sheet."""

    machine: str
    system: System
    version: str
    gpus: int
    batch: int
    step_s: float


@dataclass(frozen=True)
class Missed:
    """A case that was left out, and what was expected: sigma is relative."""

    case: Case
    predicted_s: float
    sigma: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.case.step_s - 1

    @property
    def within(self) -> bool:
        """Whether the 90 % interval holds it."""
        spread = 1 + LEVEL_SIGMAS * self.sigma
        return self.predicted_s / spread <= self.case.step_s <= self.predicted_s * spread


@dataclass(frozen=True)
class Score:
    """How well what was left out was predicted."""

    left_out: str
    rows: int
    mean_absolute_error: float
    bias: float
    within_interval: float
    """Share of the rows inside their 90 % intervals."""
    large_rows: int
    large_mean_absolute_error: float
    """Over those of 256 accelerators and more."""


FACTS = {
    *("sources", "fp16", "fp32", "tf32", "other_points", "tensor_flops_per_s", "graphs"),
    *("memory_bytes_per_s", "memory_bytes", "nics", "nic_bytes_per_s", "rack_nodes"),
    *("oversubscription", "groups", "algorithm", "square_torus", "init_s"),
    *("bn_group_samples", "bn_group_ranks"),
}
"""What a data sheet or the entry's own description says, or what no figure hangs on."""


class Constants(NamedTuple):
    """What the model was given, to be held against the number of published figures."""

    free: int
    """Values that neither a data sheet nor a default gives, a value of several machines once."""
    points: int
    """Measured steps of machine files."""


def count_constants(systems: Iterable[System]) -> Constants:
    """Over all described machines, and the four constants that GPUs share."""
    free: set[tuple[str, object]] = {("sheet", value) for value in SHEET}
    points: set[Point] = set()
    default = Performance()
    for about in (system.performance for system in systems if system.performance):
        for name in set(Performance.model_fields) - FACTS:
            if getattr(about, name) != getattr(default, name):
                free.add((name, getattr(about, name)))
        for precision in ("fp16", "fp32", "tf32"):
            compute: Compute | None = getattr(about, precision)
            if compute is not None:
                points.update(compute.points)
                if compute.fixed_s is not None:
                    free.add((precision, compute.fixed_s))
        points.update(about.other_points)
    return Constants(len(free), len(points))


@lru_cache
def cases() -> tuple[Case, ...]:
    """All rows of MLPerf on machines with a data sheet."""
    found = []
    for row in read_table("mlperf_runs.csv"):
        if not row["machine"]:
            continue
        system = load_system(row["machine"])
        if system.performance is None or not uses_sheet(system.performance, "fp16"):
            continue
        system = system.model_copy(update={"ranks_per_node": int(row["accel_per_node"])})
        found.append(
            Case(
                *(row["machine"], system, row["version"], int(row["n_accelerators"])),
                *(int(row["batch_per_accelerator"]), float(row["ms_per_step"]) / 1e3),
            )
        )
    return tuple(found)


def cross_validate() -> list[Score]:
    """By system (from its data sheet alone), by round, by size, and each configuration by itself
    (its machine's other points stay)."""
    every = cases()
    return [
        _score("a system", _left_out(every, lambda case: case.machine)),
        _score("a round", _left_out(every, lambda case: case.version)),
        _score(f"more than {SMALL_GPUS} accelerators", _large_from_small(every)),
        _score("a batch and size", _left_out(every, lambda case: (case.gpus, case.batch))),
    ]


def fit_sheet(rows: Sequence[Case]) -> Sheet:
    """The four constants with the least deviation from `rows`, by iterated least squares on the
    logarithm of the step. Equal configurations share a weight; what a step waits for is taken from
    the present constants."""
    repeats = Counter((case.system.accelerator, case.gpus, case.batch) for case in rows)
    weights, known, terms, measured = [], [], [], []
    for case in rows:
        about = _about(case.system)
        machine = build(case.machine, _without_points(case.system, lambda _: False))
        total_s = step_time(machine, case.gpus, case.batch).total_s
        known.append(total_s - machine.compute_s(case.batch) + update_s(about))
        flops = case.batch / (about.tensor_flops_per_s or math.inf)
        moved = case.batch / about.memory_bytes_per_s
        terms.append((flops, moved, float(about.graphs), float(not about.graphs)))
        measured.append(case.step_s)
        weights.append(repeats[case.system.accelerator, case.gpus, case.batch] ** -0.5 / _SIGMA)
    design = np.array(terms)
    constants = np.array(SHEET)
    for _ in range(_ITERATIONS):
        steps = np.array(known) + design @ constants
        misses = np.log(np.array(measured) / steps) * weights
        pull = np.minimum(1.0, _HUBER / np.maximum(np.abs(misses), 1e-12)) ** 0.5
        slopes = design / steps[:, None] * (np.array(weights) * pull)[:, None]
        # A constant that no row speaks of (launches without graphs) stays as it is.
        change = np.linalg.lstsq(slopes * constants, misses * pull, rcond=None)[0]
        constants = constants * (1 + np.clip(change, -0.5, 0.5))
    return Sheet(*map(float, constants))


def _left_out(every: Sequence[Case], key: Callable[[Case], object]) -> Iterator[Missed]:
    for value in dict.fromkeys(map(key, every)):
        kept = [case for case in every if key(case) != value]
        asked = [case for case in every if key(case) == value]
        yield from _ask(asked, fit_sheet(kept), _is_none_of(asked))


def _large_from_small(every: Sequence[Case]) -> Iterator[Missed]:
    small = [case for case in every if case.gpus <= SMALL_GPUS]
    large = [case for case in every if case.gpus > SMALL_GPUS]
    return _ask(large, fit_sheet(small), lambda point: point.gpus <= SMALL_GPUS)


def _ask(asked: Sequence[Case], sheet: Sheet, keep: Callable[[Point], bool]) -> Iterator[Missed]:
    for case in asked:
        machine = build(case.machine, _without_points(case.system, keep), "fp16", sheet)
        total_s = step_time(machine, case.gpus, case.batch).total_s
        yield Missed(case, total_s, step_sigma(machine, case.gpus, case.batch, total_s))


def _is_none_of(asked: Sequence[Case]) -> Callable[[Point], bool]:
    steps = {(case.gpus, case.batch, round(case.step_s, 5)) for case in asked}
    return lambda point: (point.gpus, point.batch, round(point.step_s, 5)) not in steps


def _without_points(system: System, keep: Callable[[Point], bool]) -> System:
    """`system` with those points alone that `keep` keeps."""
    about = _about(system)
    points = tuple(p for p in about.fp16.points if keep(p)) if about.fp16 else ()
    compute = about.fp16.model_copy(update={"points": points}) if points and about.fp16 else None
    return system.model_copy(
        update={"performance": about.model_copy(update={"fp16": compute, "other_points": ()})}
    )


def _about(system: System) -> Performance:
    assert system.performance is not None
    return system.performance


def _score(left_out: str, found: Iterator[Missed]) -> Score:
    missed = list(found)
    large = [abs(m.error) for m in missed if m.case.gpus >= LARGE_GPUS]
    return Score(
        left_out,
        len(missed),
        mean(abs(m.error) for m in missed),
        mean(m.error for m in missed),
        mean(m.within for m in missed),
        len(large),
        mean(large) if large else 0.0,
    )
