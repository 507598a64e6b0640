"""A rank with the whole control plane and no MXNet: `control_plane.py` starts thousands of them.

    python -m tests.lab.thin_rank launch CONFIG OUT                        `rn50 launch` with them
    python -m tests.lab.thin_rank RANKS RANKS_PER_NODE CONFIG --out OUT    its program

The program loads what a rank imports once and forks the ranks, which so share their pages. Each
goes through `train/__main__.py` as a rank that trains does (config, place, locks, signals,
watchdog, failure), then start-up, log points and stop by the product's own functions.
A step is asleep; `exchange.py` stands in for Horovod.
"""

import gc
import itertools
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rn50.config.load import load
from rn50.config.manifest import SPLITS
from rn50.data.dataset import load_table
from rn50.host.errors import UserError
from rn50.launch.ending import RunError, StoppedBySignal
from rn50.launch.launch_plan import Options
from rn50.launch.launchers import LAUNCHERS, Job, Launcher
from rn50.launch.run import launch
from rn50.logging.records import ABORTED, Result, write
from rn50.train import __main__ as rank_main
from rn50.train.communication.identity import identity_of
from rn50.train.context import RunContext
from rn50.train.stopping import agreed_stop
from tests.lab.exchange import Member

NAME = "forked"
STEP_S = 1.0


class Forked(Launcher):
    """All ranks on this machine, on as many nodes as the config has."""

    name = NAME
    program = "fork"
    product = "rn50"
    controller = "gloo"
    may_start_elsewhere = False

    def command(self, job: Job) -> list[str]:
        module = [sys.executable, "-m", "tests.lab.thin_rank"]
        sizes = [str(job.ranks), str(job.ranks_per_node)]
        return [*module, *sizes, *job.command]

    def is_installed(self) -> bool:
        return True


def launch_thin(config: str, out: str) -> int:
    """Run to the end that the driver brings about."""
    LAUNCHERS[NAME] = Forked()
    try:
        track = lambda _: lambda done, total: None  # noqa: E731
        launch(load(config), track, Options(NAME, out=Path(out), program=()))
    except (RunError, StoppedBySignal, UserError) as error:
        print(f"rn50: error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def count_opens() -> list[str]:
    """The files that this process opens from now on, but for the kernel's."""
    opened: list[str] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            path = str(Path(arguments[0]).absolute())
            if not path.startswith(("/proc/", "/sys/")):
                opened.append(path)

    sys.addaudithook(audit)
    return opened


def train(context: RunContext, opened: list[str]) -> None:
    """What a rank does in the place of training: it runs until it is asked to stop."""
    process = context.process
    plan = context.plan
    with context.timeline.span("build pipelines"):
        folder = Path(context.run.data.path)
        tables = [load_table(folder, split) for split in SPLITS]
    with context.timeline.span("open connections"):
        ranks = Member(context.folder.path, process.rank)
    with context.timeline.span("agree on weights"):
        ranks.sum([0.0])
    context.start_clock([])
    ranks.sum([float(len(opened))])
    context.timeline.phase = "epoch 1"
    for step in itertools.count(1):
        if not context.stop.may_begin(step):
            cause = context.stop.cause
            break
        time.sleep(STEP_S)
        context.state.advance(plan, step)
        if step % plan.log_every_steps:
            continue
        losses = [float(len(tables))]
        loss, *requests = ranks.sum([*losses, *context.stop.flags])
        if process.rank == 0:
            context.metrics.write("train", step=step, loss=loss)
        if cause := agreed_stop(requests):
            break
    assert cause
    context.log.abort()
    if process.rank == 0:
        stopped = replace(cause, step=context.state.step)
        write(context.folder.result, Result(ABORTED, stopped=stopped))
    ranks.sum([0.0])


def main(arguments: list[str]) -> int:
    """Fork the ranks and wait for all of them; 0 if each ended well. The others learn of a rank
    that failed from the watchdog alone: a launcher on another node may take no notice either."""
    ranks, per_node = map(int, arguments[:2])
    options = rank_main.parse(arguments[2:])
    # what that imports, reads and makes once is shared too
    identity_of(load(options.config))
    gc.collect()
    gc.freeze()  # a collection would write to every page, and so copy it
    for rank in range(ranks):
        if os.fork() == 0:
            _be(rank, ranks, per_node, options)
    statuses = [os.wait()[1] for _ in range(ranks)]
    return int(any(statuses))


def _be(rank: int, ranks: int, per_node: int, options: Any) -> NoReturn:
    """One rank; its environment is what horovodrun would give it."""
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    for name, value in zip(
        names, (rank, ranks, rank % per_node, per_node), strict=True
    ):
        os.environ[f"HOROVOD_{name}"] = str(value)
    body = partial(train, opened=count_opens())
    rank_main.run_rank(options.config, options.overrides, options.out, train=body)
    os._exit(0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["launch", config, out]:
            sys.exit(launch_thin(config, out))
        case words:
            sys.exit(main(words))
