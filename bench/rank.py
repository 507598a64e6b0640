"""The rank's half of a benchmark on ranks: a trainer, started and quiet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import load
from ..train.context import RunContext
from ..train.process_info import read_process_info
from .harness import Action, Samples, alternate

if TYPE_CHECKING:
    from ..train.trainer import Trainer


def quiet_context(out: Path) -> RunContext:
    """The context of this rank, with the config in `out`; its log goes there."""
    loaded = load(str(out / "config.yaml"))
    context = RunContext(loaded, out, read_process_info())
    context.shows_progress = False
    return context


@contextmanager
def started_trainer(
    out: Path, sources: Callable[..., Any] | None = None
) -> Iterator[Trainer]:
    """This rank's trainer after start-up; it leaves the other ranks at the end. `sources`: makes
    its data; None: from the config's set."""
    context = quiet_context(out)
    context.prepare()
    from ..train.trainer import start_up

    trainer = start_up(context, sources=sources)
    yield trainer
    trainer.comm.stop()


def next_steps(trainer: Trainer, count: int) -> Action:
    """A function that trains the next `count` steps at each call, with a run's metrics."""
    from ..train.loop import train_steps
    from ..train.run import log_point

    firsts = itertools.count(1, count)

    def run() -> None:
        """Train the next steps."""
        first = next(firsts)
        last = first + count - 1
        log_every = trainer.plan.log_every_steps
        for point in train_steps(trainer, first, last, log_every):
            log_point(trainer, point)

    return run


def alternate_on_ranks(
    trainer: Trainer, contenders: Mapping[str, Action], rounds: int, *, pieces: int = 1
) -> Samples:
    """Time the contenders in turn (`alternate`), each until the last rank has finished."""
    from mxnet import nd

    def finish() -> None:
        """Wait until all ranks have done what they enqueued."""
        nd.waitall()
        trainer.comm.barrier()

    return alternate(contenders, rounds, barrier=finish, finish=finish, pieces=pieces)
