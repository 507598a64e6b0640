"""The driver's half of a benchmark on ranks: starts them and collects what rank 0 measured."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ..config.load import Loaded
from ..data.prepare import prepare
from ..launch.bodies import run_body
from ..launch.hosts import missing_hosts
from ..launch.preflight import refuse
from ..launch.run_files import scratch_folder
from ..train.capabilities import check_supported
from .harness import BenchJob


def load_ready(job: BenchJob, ranks: int | None = None) -> Loaded:
    """The config of `job`, one that can be trained here, with its images there."""
    loaded = job.load(ranks=ranks)
    _check(loaded, job.launcher)
    prepare(loaded.run.data, job.track, loaded.origins)
    return loaded


def _check(loaded: Loaded, launcher: str) -> None:
    """Raise UserError where ranks could not run this here."""
    check_supported(loaded.run)
    refuse(missing_hosts(loaded.run, launcher))


def measure_on_ranks(
    job: BenchJob,
    loaded: Loaded,
    body: Callable[..., Any],
    *arguments: object,
    settings: Collection[str] | None = None,
) -> Any:
    """Run `body(folder, *arguments)` on each rank of `loaded`; returns what it returned on rank 0.

    Args:
        job: names the launcher.
        loaded: the config.
        body: a function of a module.
        arguments: what JSON can say.
        settings: which of the engines' settings that the config asks for to make; None: all.
    """
    _check(loaded, job.launcher)
    with scratch_folder(loaded, "bench") as out:
        return run_body(
            loaded.run,
            job.launcher,
            out,
            "benchmark",
            body,
            *arguments,
            settings=settings,
        )
