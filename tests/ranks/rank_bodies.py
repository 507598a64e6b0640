"""What single ranks run in tests: `python rank_bodies.py NAME`, then what `rn50.train` takes."""

from __future__ import annotations

import itertools
import os
import sys
import time

import mxnet as mx

from rn50.train import __main__ as entry
from rn50.train import run
from rn50.train.host_reads import HostReads
from rn50.train.session import Session


class OtherWeights(run.Rank):
    """Rank 1 differs from the rest by the last bit of one weight."""

    def build_network(self) -> None:
        super().build_network()
        if self.session.place.rank == 1:
            import numpy as np

            weight = self.net.collect_params()["fc_weight"].data()
            weight[0, 0] = np.nextafter(weight[0, 0].asnumpy(), np.float32(np.inf))


class EarlyReader(run.Rank):
    """Rank 0 reads the data set before the clock starts."""

    def build_pipelines(self) -> None:
        super().build_pipelines()
        if self.session.place.rank == 0:
            self.train_source.next()


class Raises(run.Rank):
    """Rank 1 fails in the middle of training, and rank 0 waits for its gradients."""

    def write_metrics(self, point: object) -> None:
        if self.session.place.rank == 1:
            raise ZeroDivisionError("the disk is on fire")
        super().write_metrics(point)


class Stops(run.Rank):
    """Rank 0 hangs after its first log point, so that a signal finds it in the middle."""

    def write_metrics(self, point: object) -> None:
        super().write_metrics(point)
        if self.session.place.rank == 0:
            print("hanging", os.getpid(), flush=True)
            time.sleep(600)


class Overflows(run.Rank):
    """Rank 1's gradients of some steps are infinite before they are summed."""

    def build_network(self) -> None:
        super().build_network()
        # The first sum is that of start-up.
        reduce, steps = self.comm.reduce, itertools.count(self.session.step)

        def overflowing_reduce() -> None:
            if next(steps) in (18, 19, 40) and self.session.place.rank == 1:
                self.comm.buckets[1][7] = float("inf")
            reduce()

        self.comm.reduce = overflowing_reduce


class OnSecondCpu(run.Rank):
    """Trains on cpu(1): MXNet refuses an operator whose arrays are not all there."""

    def __init__(self, session: Session, reads: HostReads | None = None) -> None:
        super().__init__(session, reads, ctx=mx.cpu(1))


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    run.Rank = getattr(sys.modules[__name__], name)
    entry.main(arguments)
