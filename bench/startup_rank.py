"""One rank of `rn50 bench startup`: from process start to a running clock, then stop."""

from __future__ import annotations

import json
from pathlib import Path

from ..config.atomic import write_file
from ..config.load import load
from ..train.context import RunContext
from ..train.process_info import read_process_info
from ..train.progress import Progress
from .rank import main_of


def main(config: str, out: str, connect_delay_s: str) -> None:
    """Start up as a run does; rank 0 writes the seconds of init and of each stage.

    Args:
        connect_delay_s: time that connecting takes longer, asleep: the stand-in for NCCL's
            connections between many ranks.
    """
    loaded = load(config)
    context = RunContext(loaded, Path(out), read_process_info())
    context.progress = Progress(context.plan, loaded.run.eval.target, shown=False)
    context.connection.delay_s = float(connect_delay_s)
    context.prepare()
    context.begin_connecting()
    with context.timeline.span("load MXNet and Horovod"):
        from ..train.trainer import start_up

    start_up(context).comm.stop()
    if context.process.rank == 0:
        figures = {"init_s": context.init_s, "spans": json.loads(context.timeline.to_json())}
        write_file(Path(out) / "bench.json", json.dumps(figures))


if __name__ == "__main__":
    main_of(main)
