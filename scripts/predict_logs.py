"""Step times from MLPerf logs: what `rn50 predict --calibrate` fits a machine to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ..config.benchmark import IMAGENET_TRAIN_SAMPLES
from ..config.errors import UserError
from ..config.load import load
from ..logging.parse import Event, read_events
from ..logging.summary import find_log
from ..scaling.calibrate import Measurement


def read_measurement(argument: str) -> Measurement:
    """A run from `PATH` (a run's folder, or a log in one) or `PATH:GPUS` (any MLPerf log).

    Raises:
        UserError: unreadable, no epochs in it, or nobody says on how many GPUs it ran.
    """
    path, gpus = _split(argument)
    log = find_log(path)
    events = read_events(log)
    if gpus is None:
        gpus = _ranks_of_run(log)
    batch = _number(events, "global_batch_size", log)
    samples = _number(events, "train_samples", log, IMAGENET_TRAIN_SAMPLES)
    if batch % gpus:
        raise UserError(f"{log}: a global batch of {batch} is no multiple of {gpus} GPUs")
    run_start = [event.time_ms for event in events if event.key == "run_start"]
    first = [e.time_ms for e in events if e.key in ("block_start", "epoch_start")]
    startup_s = (first[0] - run_start[0]) / 1e3 if first and run_start else None
    evaluations = [stop - start for start, stop, _ in _intervals(events, "eval")]
    return Measurement(
        gpus=gpus,
        batch=batch // gpus,
        step_s=_epoch_s(events, log) / math.ceil(samples / batch),
        source="".join(c if c.isprintable() else "?" for c in str(log)[-200:]),
        startup_s=startup_s if startup_s is None or startup_s > 0 else None,
        evaluation_s=median(evaluations) / 1e3 if evaluations else None,
    )


def _split(argument: str) -> tuple[Path, int | None]:
    head, colon, tail = argument.rpartition(":")
    if colon and tail.isdecimal() and not Path(argument).exists():
        if int(tail) < 1:
            raise UserError(f"{argument}: GPUs after the colon from 1 expected, found {tail}")
        return Path(head), int(tail)
    return Path(argument), None


def _ranks_of_run(log: Path) -> int:
    """Ranks from the resolved config that a run of ours keeps beside its log."""
    config = log.parent / "config.yaml"
    if not config.is_file():
        raise UserError(
            f"{log}: LOG:GPUS expected (a log does not say on how many GPUs it ran, and no "
            "config.yaml is beside it)"
        )
    system = load(config).run.system
    return system.nodes * system.ranks_per_node


def _epoch_s(events: Sequence[Event], log: Path) -> float:
    """Median over blocks of (block - evaluations inside) / epochs; the first and last do not count.

    Stamps of single epochs are too early where the engine is asynchronous (scaling.md 13).
    """
    inside = [(start, stop) for start, stop, _ in _intervals(events, "eval")]
    figures = []
    for start, stop, details in _intervals(events, "block"):
        epochs = details.get("epoch_count")
        if isinstance(epochs, int | float) and epochs >= 1:
            paused = sum(b - a for a, b in inside if start <= a and b <= stop)
            figures.append((stop - start - paused) / epochs / 1e3)
    if not figures:
        figures = [(stop - start) / 1e3 for start, stop, _ in _intervals(events, "epoch")]
    if not figures:
        raise UserError(f"{log}: finished blocks or epochs expected, found none")
    interior = figures[1:-1] if len(figures) > 2 else figures[-1:]
    seconds = median(interior)
    if seconds <= 0:
        raise UserError(f"{log}: epochs longer than 0 s expected, found {seconds:g}")
    return seconds


def _intervals(events: Sequence[Event], name: str) -> list[tuple[float, float, dict[str, Any]]]:
    """(start ms, stop ms, details of the start) of each pair of `name`_start and `name`_stop."""
    pairs = []
    open_start: Event | None = None
    for event in events:
        if event.key == f"{name}_start":
            open_start = event
        elif event.key == f"{name}_stop" and open_start is not None:
            pairs.append((open_start.time_ms, event.time_ms, open_start.metadata))
            open_start = None
    return pairs


def _number(events: Sequence[Event], key: str, log: Path, default: int | None = None) -> int:
    value = next((event.value for event in events if event.key == key), default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{log}: {key}: a whole number from 1 expected, found {value!r}")
    return value
