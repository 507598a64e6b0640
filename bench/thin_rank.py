"""A rank with the whole control plane and no MXNet: `rn50 bench scale` starts thousands of them.

    python -m rn50.bench.thin_rank RANKS RANKS_PER_NODE MODEL_VALUES CONFIG --out OUT

is the launcher's program: it loads what a rank imports once and forks the ranks, which so share
their pages. Each goes through `train/__main__.py` as a rank that trains does (config, place, locks,
signals, watchdog, failure), then start-up, log points, checkpoint and stop by the product's own
functions. A step is asleep; `bench/exchange.py` stands in for Horovod.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from safetensors.numpy import save

from ..config.atomic import write_json
from ..config.load import load
from ..config.manifest import SPLITS
from ..data.dataset import load_table
from ..train import __main__ as rank_main
from ..train import checkpoint, checkpoint_folder
from ..train.context import RunContext
from ..train.host_reads import HostReads
from ..train.identity import identity_of
from ..train.limits import agreed_stop
from ..train.state import LossScaleState
from .exchange import Member

STEP_S = 1.0
STATISTICS = 2 * 26_560
"""In each rank's part: running mean and variance of ResNet-50's 26,560 channels."""
COUNTED = ("config", "data", "run", "other")


class Reads:
    """Files opened and bytes read by this process, counted from now on."""

    def __init__(self) -> None:
        self._opened: list[str] = []
        self._begun_bytes = _bytes_read()
        self._counts = True
        sys.addaudithook(self._audit)

    def end(self, context: RunContext) -> list[float]:
        """Opens of each of COUNTED; bytes read, of a rank that is not the first of its node: that
        one reads what inotify says of the data folder, here of the ranks of all nodes."""
        self._counts = False  # an audit hook cannot be removed
        size = _bytes_read() - self._begun_bytes
        named = (context.out / "config.yaml", Path(context.run.data.path), context.out)
        places = (*(str(path.absolute()) for path in named), "/")
        found = [next(i for i, at in enumerate(places) if p.startswith(at)) for p in self._opened]
        size = size if context.process.local_rank else 0
        return [*(float(found.count(i)) for i in range(len(COUNTED))), float(size)]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._counts and event == "open" and isinstance(arguments[0], str | os.PathLike):
            path = str(Path(arguments[0]).absolute())
            if not path.startswith(("/proc/", "/sys/")):
                self._opened.append(path)


def _bytes_read() -> int:
    # rchar: by read(), from a disk or from memory; what is mapped is not in it.
    return int(Path("/proc/self/io").read_bytes().split()[1])


def train(context: RunContext, _: HostReads | None, reads: Reads, model_values: int) -> None:
    """In the place of training: runs until it is asked to stop. `model_values`: float32, of rank
    0's part of the checkpoint."""
    process, plan = context.process, context.plan
    with context.timeline.span("build pipelines"):
        tables = [load_table(Path(context.run.data.path), split) for split in SPLITS]
    with context.timeline.span("open connections"):
        ranks = Member(context.out, process.rank)
    with context.timeline.span("agree on weights"):
        digest = hashlib.blake2b(context.loaded.sha256.encode(), digest_size=16).digest()
        assert set(ranks.gather(digest)) == {digest}
    context.start_clock([])
    ranks.sum(reads.end(context))
    context.timeline.phase = "epoch 1"
    for step in itertools.count(1):
        time.sleep(STEP_S)
        context.state.advance(plan, step, STEP_S)
        if step % plan.log_every_steps:
            continue
        loss, *requests = ranks.sum([float(len(tables)), *context.stop.flags])
        if process.rank == 0:
            context.metrics.write("train", step=step, loss=loss)
        if reason := agreed_stop(requests):
            break
    save_now(context, ranks, model_values)
    context.log.abort()
    if process.rank == 0:
        stopped = f"{reason} at step {context.state.step}"
        write_json(context.out / "result.json", {"status": "aborted", "stopped": stopped})
    ranks.sum([0.0])


def save_now(context: RunContext, ranks: Member, model_values: int) -> None:
    """A checkpoint, as `train/checkpointer.py` writes it; each rank has statistics of its own."""
    process, folder = context.process, context.out / "checkpoint"
    with context.timeline.span("checkpoint"):
        own = {"statistics": np.full(STATISTICS, process.rank, np.float32)}
        data = save(own)
        parts = checkpoint.parts_of(ranks.gather(checkpoint.row_of(data, busy=False)), process.rank)
        assert parts is not None
        folder.mkdir(exist_ok=True)
        path = folder / checkpoint.file_name(context.state.step)
        if process.rank:
            for part in parts:
                checkpoint.write_part(path, part, data)
            return
        meta = context.meta(0.0, LossScaleState(value=1.0))
        checkpoint.write(path, meta, {"model": np.zeros(model_values, np.float32), **own}, parts)
        checkpoint_folder.prune(folder, context.run.checkpoint.keep)


def main(arguments: list[str]) -> int:
    """Fork the ranks and wait for all of them; 0 if each ended well. That one failed is not told
    to the others, as by a launcher that takes no notice: the watchdog has to."""
    ranks, per_node, model_values = map(int, arguments[:3])
    options = rank_main.parse(arguments[3:])
    identity_of(load(options.config))  # what that imports, reads and makes once is shared too
    gc.collect()
    gc.freeze()  # a collection would write to every page, and so copy it
    for rank in range(ranks):
        if os.fork() == 0:
            _be(rank, ranks, per_node, model_values, options)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(ranks)]
    return int(any(codes))


def _be(rank: int, ranks: int, per_node: int, model_values: int, options: Any) -> NoReturn:
    """One rank; its environment is what horovodrun would give it."""
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    for name, value in zip(names, (rank, ranks, rank % per_node, per_node), strict=True):
        os.environ[f"HOROVOD_{name}"] = str(value)
    body = partial(train, reads=Reads(), model_values=model_values)
    rank_main.run_rank(options.config, options.overrides, options.out, train=body)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
