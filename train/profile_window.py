"""`log.profile`: every operation of a few steps on every rank, for timeline.json.

MXNet's profiler gives the operators, Horovod's timeline (rank 0's; it coordinates) the life of each
collective, `step_times` the phases and each gradient group. The device is waited for at both ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx
from mxnet import nd

from ..config.atomic import write_file
from ..config.values import profiled_steps
from ..logging.timeline import Timeline
from .context import RunContext
from .progress import warn
from .step_times import StepTimes

_OPERATORS, _HOROVOD = "mxnet.json", "horovod.json"
_FOLDER = "profile"
_NO_OPERATORS = ("DeleteVariable", "rn50_stamp")


class ProfileWindow:
    """Called before every step; begins and ends the window."""

    def __init__(self, context: RunContext, times: StepTimes) -> None:
        self._context, self._times = context, times
        self._steps = profiled_steps(context.run.log.profile)
        times.detailed = self._steps
        self._folder = context.out / _FOLDER / f"rank_{context.process.rank}"
        self._first = context.state.step + 1
        """That this process trains; after a resume not 1."""
        self._running = False

    def __call__(self, step: int) -> None:
        if step == self._steps.start:
            self._begin()
        elif step == self._steps.stop:
            self.end()

    def end(self) -> None:
        """Stop, and write this rank's part; nothing where the window has ended already."""
        if not self._running:
            if self._steps and self._context.process.rank == 0:
                warn(
                    f"log.profile: nothing recorded: step {self._steps.start} expected among those "
                    f"trained, found {self._first} to {self._context.state.step}"
                )
            return
        nd.waitall()
        hvd.stop_timeline()
        mx.profiler.set_state("stop")
        mx.profiler.dump(finished=True)
        self._times.log_point()
        clock, rank = self._context.clock, self._context.process.rank
        from_perf_s = clock.unix_s - time.perf_counter()
        timeline = Timeline(rank, clock)
        self._times.add_profiled(timeline, from_perf_s)
        from_wall_s = clock.unix_s - time.time()
        add_operators(timeline, _read(self._folder / _OPERATORS), from_wall_s)
        if rank == 0:
            add_collectives(timeline, _read(self._folder / _HOROVOD), from_wall_s)
        write_file(self._folder / "spans.json", json.dumps(timeline.spans))
        for name in (_OPERATORS, _HOROVOD):
            (self._folder / name).unlink(missing_ok=True)
        self._running, self._steps = False, range(0)

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        nd.waitall()
        mx.profiler.set_config(
            filename=str(self._folder / _OPERATORS),
            profile_symbolic=True,
            profile_imperative=True,
        )
        mx.profiler.set_state("run")
        self._running = True
        hvd.start_timeline(str(self._folder / _HOROVOD))


def merge(out: Path, timeline: Timeline) -> None:
    """All ranks' parts into rank 0's timeline; for when every rank has ended its window."""
    folder = out / _FOLDER
    for part in sorted(folder.glob("rank_*/spans.json")):
        timeline.spans += json.loads(part.read_text())
        part.unlink()
        part.parent.rmdir()
    with suppress(OSError):
        folder.rmdir()


def add_operators(timeline: Timeline, events: Iterable[Mapping[str, Any]], later_s: float) -> None:
    """MXNet's operators: a begin and an end in Unix us, on a thread of the engine. `later_s`: of
    the run's clock against the wall clock."""
    begun: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    rows: dict[Any, str] = {}
    for event in events:
        key = (event.get("tid"), event.get("name"))
        if event.get("ph") == "B":
            begun[key] = event
        elif event.get("ph") == "E" and key in begun and key[1] not in _NO_OPERATORS:
            row = rows.setdefault(key[0], f"MXNet's engine, thread {len(rows)}")
            begin_s = begun.pop(key)["ts"] / 1e6 + later_s
            timeline.add(str(key[1]), begin_s, event["ts"] / 1e6 + later_s, row)


def add_collectives(
    timeline: Timeline, events: Iterable[Mapping[str, Any]], later_s: float
) -> None:
    """Horovod's phases of each tensor, one within another, in us since a time that it names."""
    begin_s = 0.0
    names: dict[Any, str] = {}
    begun: dict[Any, list[Mapping[str, Any]]] = {}
    for event in events:
        tensor = event.get("pid")
        if event.get("name") == "process_name":
            names[tensor] = event["args"].get("name", "")
            begin_s = event["args"].get("start_time_since_epoch_in_micros", 1e6 * begin_s) / 1e6
        elif event.get("ph") == "B":
            begun.setdefault(tensor, []).append(event)
        elif event.get("ph") == "E" and begun.get(tensor):
            begin = begun[tensor].pop()
            row = f"Horovod, {str(names.get(tensor, tensor)).removeprefix('horovod_')}"
            at_s = begin_s + later_s
            timeline.add(
                str(begin.get("name")), at_s + begin["ts"] / 1e6, at_s + event["ts"] / 1e6, row
            )


def _read(path: Path) -> list[dict[str, Any]]:
    """Events of a trace; Horovod leaves its list open."""
    text = path.read_text().strip() if path.exists() else ""
    if text.startswith("["):
        text = f'{{"traceEvents": {text.rstrip(", ]")}]}}'
    events = json.loads(text)["traceEvents"] if text else []
    return [event for event in events if event]
