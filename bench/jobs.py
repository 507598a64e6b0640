"""The driver's half of a benchmark on ranks: starts them and collects what rank 0 measured."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config.atomic import write_file
from ..config.errors import UserError, failing_as
from ..config.load import Loaded
from ..data.prepare import prepare
from ..launch.launchers import build_job
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
    watch: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Run the rank body of benchmark `name` on the ranks of `loaded`; returns what rank 0 left.

    Args:
        arguments: of the rank body; it gets them as texts.
        settings: which of the engines' settings that the config asks for to make; None: all.
        watch: start a watchdog to which ranks may report.
        progress: called with (done, total) rounds, as rank 0 notes them.
    """
    check_supported(loaded.run)
    with scratch_folder(loaded) as out, following(out, progress):
        command = [sys.executable, "-m", "rn50.bench", name, str(out), *map(str, arguments)]
        job, _ = build_job(loaded.run, launcher, command)
        if settings is not None:
            made = {name: value for name, value in job.environment.items() if name in settings}
            job = job._replace(environment=made)
        run_job(job, launcher, out, loaded.run if watch else None)
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


@contextmanager
def scratch_folder(loaded: Loaded) -> Iterator[Path]:
    """A folder below the results, where all nodes can read, with `config.yaml` in it.

    It is removed, unless a rank failed: then it stays, as `bench_failed_...`, with stderr.log.
    """
    results = Path(loaded.run.system.results)
    with failing_as(f"{results}: cannot create a folder in it"):
        results.mkdir(parents=True, exist_ok=True)
        out = Path(tempfile.mkdtemp(prefix=".bench-", dir=results))
    try:
        write_file(out / "config.yaml", loaded.to_yaml())
        yield out
    except UserError as error:
        if str(out) not in str(error):
            raise
        kept = results / f"bench_failed_{out.name.removeprefix('.bench-')}"
        out.rename(kept)
        raise UserError(*str(error).replace(str(out), str(kept)).split("\n")) from None
    finally:
        shutil.rmtree(out, ignore_errors=True)
