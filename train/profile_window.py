"""`log.profile`: every operation of a few steps on every rank.

profile/rank_<n>/ holds traces as the libraries write them: mxnet.json with the operators and, on
rank 0, which coordinates, horovod.json with the life of each collective. The phases and the way of
each gradient group (`step_times`) go to timeline.json. The device is waited for at both ends.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import horovod.mxnet as hvd
import mxnet as mx
from mxnet import nd

from ..config.atomic import write_file
from ..config.values import profiled_steps
from ..logging.timeline import Timeline
from .context import RunContext
from .progress import warn
from .step_times import StepTimes

_FOLDER = "profile"


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
        clock = self._context.clock
        timeline = Timeline(self._context.process.rank, clock)
        self._times.add_profiled(timeline, clock.unix_s - time.perf_counter())
        write_file(self._folder / "spans.json", json.dumps(timeline.spans))
        self._running, self._steps = False, range(0)

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        nd.waitall()
        mx.profiler.set_config(
            filename=str(self._folder / "mxnet.json"),
            profile_symbolic=True,
            profile_imperative=True,
        )
        mx.profiler.set_state("run")
        self._running = True
        hvd.start_timeline(str(self._folder / "horovod.json"))


def merge(out: Path, timeline: Timeline) -> None:
    """All ranks' spans into rank 0's timeline; for when every rank has ended its window."""
    for part in sorted((out / _FOLDER).glob("rank_*/spans.json")):
        timeline.spans += json.loads(part.read_text())
        part.unlink()
