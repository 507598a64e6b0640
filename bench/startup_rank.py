"""One rank of `rn50 bench startup`: from process start to a running clock, then stop."""

from __future__ import annotations

import json
from pathlib import Path

from ..config.atomic import write_file
from ..config.load import load
from ..train.placement import find_placement
from ..train.progress import Progress
from ..train.session import Session
from .rank import main_of


def main(config: str, out: str, connect_delay_s: str) -> None:
    """Start up as a run does; rank 0 writes the seconds of init and of each stage.

    Args:
        connect_delay_s: time that connecting takes longer, asleep: the stand-in for NCCL's
            connections between many ranks.
    """
    loaded = load(config)
    session = Session(loaded, Path(out), find_placement())
    session.progress = Progress(session.plan, loaded.run.eval.target, shown=False)
    session.connection.delay_s = float(connect_delay_s)
    session.prepare()
    session.begin_connecting()
    with session.timeline.span("load MXNet and Horovod"):
        from ..train.run import Rank

    rank = Rank(session)
    rank.start_up()
    rank.comm.stop()
    if session.place.rank == 0:
        figures = {"init_s": session.init_s, "spans": json.loads(session.timeline.to_json())}
        write_file(Path(out) / "bench.json", json.dumps(figures))


if __name__ == "__main__":
    main_of(main)
