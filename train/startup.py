"""Start-up as named stages in a small thread pool: what does not depend on each other overlaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from ..logging.timeline import Timeline


class Stage(NamedTuple):
    """One stage: `action` gets the results of the stages named in `needs`."""

    name: str
    action: Callable[..., Any]
    needs: tuple[str, ...] = ()


def run_stages(stages: Sequence[Stage], timeline: Timeline, *, serial: bool) -> dict[str, Any]:
    """Run all stages, each after those that it needs, and return their results by name.

    Args:
        stages: in an order in which they could run one after the other.
        timeline: gets a span for each stage.
        serial: one after the other in that order, for comparison and for debugging.

    Raises:
        the first error of a stage, as soon as it happens.
    """
    futures: dict[str, Future[Any]] = {}

    def run(stage: Stage) -> Any:
        inputs = [futures[name].result() for name in stage.needs]
        with timeline.span(stage.name):
            return stage.action(*inputs)

    pool = ThreadPoolExecutor(1 if serial else len(stages), thread_name_prefix="startup")
    try:
        for stage in stages:
            futures[stage.name] = pool.submit(run, stage)
        for future in as_completed(futures.values()):
            future.result()
    finally:  # an error does not wait for the other stages: they may wait for other ranks
        pool.shutdown(wait=False, cancel_futures=True)
    return {name: future.result() for name, future in futures.items()}
