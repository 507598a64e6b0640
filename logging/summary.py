"""A log in a few lines for people: time to train, epochs, accuracy, init time, images/s."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError
from .parse import Event, read_events


class Summary(NamedTuple):
    """Figures of a run as its log tells them; None where the log does not."""

    status: str | None
    time_to_train_s: float | None
    init_s: float | None
    epochs: float | None
    eval_accuracy: float | None
    global_batch_size: int | None
    images_per_s: float | None
    evaluations: tuple[tuple[float, float, float], ...]
    """(epoch, accuracy, seconds since run_start) of each evaluation."""


def find_log(path: Path) -> Path:
    """The log that PATH means: a file, or result_0.txt of a run's folder."""
    if path.is_dir():
        log = path / "result_0.txt"
        if not log.is_file():
            raise UserError(f"{path}: result_0.txt expected in it, found none")
        return log
    return path


def summarise(path: Path) -> Summary:
    """Read a log and take the figures from its events."""
    events = read_events(path)
    starts = _times(events, "run_start")
    stops = [event for event in events if event.key == "run_stop"]
    init = _times(events, "init_start")
    clock_ms = starts[0] if starts else None
    status = stops[0].metadata.get("status") if stops else None
    batch = _value(events, "global_batch_size")
    evaluations = tuple(
        (
            _number(event.metadata.get("epoch_num")),
            _number(event.value),
            (event.time_ms - clock_ms) / 1000,
        )
        for event in events
        if event.key == "eval_accuracy" and clock_ms is not None
    )
    return Summary(
        status=status if isinstance(status, str) else None,
        time_to_train_s=(stops[0].time_ms - clock_ms) / 1000
        if stops and clock_ms is not None
        else None,
        init_s=(clock_ms - init[0]) / 1000 if init and clock_ms is not None else None,
        epochs=evaluations[-1][0] if evaluations else None,
        eval_accuracy=evaluations[-1][1] if evaluations else None,
        global_batch_size=batch if isinstance(batch, int) else None,
        images_per_s=_images_per_s(events),
        evaluations=evaluations,
    )


def _images_per_s(events: Sequence[Event]) -> float | None:
    """Training images over the time between epoch_start and epoch_stop, evaluations excluded."""
    samples = _value(events, "train_samples")
    starts, stops = _times(events, "epoch_start"), _times(events, "epoch_stop")
    seconds = sum(stop - start for start, stop in zip(starts, stops, strict=False)) / 1000
    if not isinstance(samples, int) or seconds < 1e-6:
        return None
    return samples * min(len(starts), len(stops)) / seconds


def _times(events: Sequence[Event], key: str) -> list[float]:
    return [event.time_ms for event in events if event.key == key]


def _value(events: Sequence[Event], key: str) -> Any:
    return next((event.value for event in events if event.key == key), None)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
