"""The driver's half of a benchmark on ranks: starts them and collects what rank 0 measured."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config.load import Loaded
from ..data.prepare import prepare
from ..launch.launchers import build_job
from ..launch.scratch import scratch_folder
from ..launch.supervisor import run_job
from ..train.capabilities import check_supported
from .harness import Job, read_rounds

Progress = Callable[[int, int], None]
POLL_S = 0.5
"""Between two looks at the rounds that rank 0 has noted."""


def load_ready(job: Job, *overrides: str, ranks: int | None = None) -> Loaded:
    """The config of `job`, one that can be trained here, with its images there."""
    loaded = job.load(*overrides, ranks=ranks)
    check_supported(loaded.run)
    prepare(loaded.run.data, job.track, loaded.origins)
    return loaded


def measure_on_ranks(
    loaded: Loaded,
    launcher: str,
    name: str,
    *arguments: object,
    settings: Collection[str] | None = None,
    progress: Progress | None = None,
) -> Any:
    """Run the rank body of benchmark `name` on the ranks of `loaded`; returns what rank 0 left.

    Args:
        arguments: of the rank body; it gets them as texts.
        settings: which of the engines' settings that the config asks for to make; None: all.
        progress: called with (done, total) rounds, as rank 0 notes them.
    """
    check_supported(loaded.run)
    with scratch_folder(loaded, "bench") as out, following(out, progress):
        command = [sys.executable, "-m", "rn50.bench", name, str(out), *map(str, arguments)]
        job, _ = build_job(loaded.run, launcher, command)
        if settings is not None:
            made = {name: value for name, value in job.environment.items() if name in settings}
            job = job._replace(environment=made)
        run_job(job, launcher, out)
        return json.loads((out / "bench.json").read_text())


@contextmanager
def following(out: Path, progress: Progress | None) -> Iterator[None]:
    """Call `progress` for each round that a rank notes in `out` (`count_rounds`)."""
    if progress is None:
        yield
        return
    over = threading.Event()

    def follow() -> None:
        known = None
        while not over.wait(POLL_S):
            if (found := read_rounds(out)) not in (None, known):
                known = found
                progress(*known)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
        if found := read_rounds(out):
            progress(*found)
    finally:
        over.set()
        follower.join()
