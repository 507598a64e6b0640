"""Start-up as named stages in a small thread pool: what does not depend on each other overlaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from threading import Semaphore
from typing import Any, NamedTuple

from ..logging.timeline import Timeline


class Stage(NamedTuple):
    """One stage: `action` gets the results of the stages named in `needs`. `waits`: it waits for
    other ranks most of its time and needs no core."""

    name: str
    action: Callable[..., Any]
    needs: tuple[str, ...] = ()
    waits: bool = False


def run_stages(
    stages: Sequence[Stage],
    timeline: Timeline,
    *,
    serial: bool,
    cores: int = 1,
) -> dict[str, Any]:
    """Run all stages, each after those that it needs, and return their results by name.

    Args:
        stages: in an order in which they could run one after the other.
        timeline: gets a span for each stage.
        cores: of this rank; as many stages that compute run at a time.
        serial: one after the other in that order, for comparison and for debugging.

    Raises:
        the first error of a stage, as soon as it happens.
    """
    futures: dict[str, Future[Any]] = {}
    free = Semaphore(cores)

    def run(stage: Stage) -> Any:
        inputs = [futures[name].result() for name in stage.needs]
        with nullcontext() if stage.waits else free, timeline.span(stage.name):
            return stage.action(*inputs)

    pool = ThreadPoolExecutor(
        1 if serial else len(stages), thread_name_prefix="startup"
    )
    try:
        for stage in stages:
            futures[stage.name] = pool.submit(run, stage)
        for future in as_completed(futures.values()):
            future.result()
    finally:  # an error does not wait for the other stages: they may wait for other ranks
        pool.shutdown(wait=False, cancel_futures=True)
    return {name: future.result() for name, future in futures.items()}
