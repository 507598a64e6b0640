"""`log.profile`: every operation of a few steps on every rank.

profile/rank_<n>/ holds traces as the libraries write them: mxnet.json with the operators and, on
rank 0, which coordinates, horovod.json with the life of each collective. The device is waited for
at both ends.
"""

from __future__ import annotations

import horovod.mxnet as hvd
import mxnet as mx
from mxnet import nd

from ..config.values import profiled_steps
from .context import RunContext


class ProfileWindow:
    """Called before every step; begins and ends the window."""

    def __init__(self, context: RunContext) -> None:
        self._steps = profiled_steps(context.run.log.profile)
        self._folder = context.folder.path / "profile" / f"rank_{context.process.rank}"
        self._running = False

    def __call__(self, step: int) -> None:
        if step == self._steps.start and self._steps:
            self._begin()
        elif step == self._steps.stop:
            self.end()

    def end(self) -> None:
        """Stop, and write the traces; nothing where the window is not open."""
        if self._running:
            nd.waitall()
            hvd.stop_timeline()
            mx.profiler.set_state("stop")
            mx.profiler.dump(finished=True)
            self._running = False

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        nd.waitall()
        mx.profiler.set_config(
            filename=str(self._folder / "mxnet.json"),
            profile_symbolic=True,
            profile_imperative=True,
        )
        mx.profiler.set_state("run")
        hvd.start_timeline(str(self._folder / "horovod.json"))
        self._running = True
