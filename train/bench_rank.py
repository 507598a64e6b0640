"""What every benchmark on ranks begins with: a rank of ours, started and quiet."""

from __future__ import annotations

from pathlib import Path

from ..config.load import load
from .placement import find_placement
from .progress import Progress
from .run import Rank
from .session import Session


def start_rank(config: str, out: str) -> Rank:
    """The rank that this process is, of `config`, after start-up; its log goes to `out`."""
    loaded = load(config)
    session = Session(loaded, Path(out), find_placement())
    session.progress = Progress(session.plan, loaded.run.eval.target, shown=False)
    session.prepare()
    rank = Rank(session)
    rank.start_up()
    return rank
