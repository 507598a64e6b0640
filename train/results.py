"""What rank 0 leaves of a run: the gaps between its blocks, result.json, timeline.json."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..config.atomic import write_own
from .pace import boundaries
from .weights import weights_digest

if TYPE_CHECKING:
    from .run import Rank


def write_gaps(
    rank: Rank, first: int, last: int, trained_at_s: float, last_evaluated_at_s: float | None
) -> None:
    """What lay between the steps of a block: its epoch boundaries and its evaluation's ends.

    Entry: training done to first evaluation batch enqueued. Exit, of the evaluation before this
    block: accuracy known to first step enqueued.
    """
    enqueued_s = rank.pace.first_enqueued_s
    ends = [rank.plan.epoch_end_step(epoch) for epoch in range(first, last)]
    between = boundaries(rank.pace.take(), ends)
    if between is None or enqueued_s is None:
        return
    rank.session.metrics.write(
        "gaps",
        first_epoch=first,
        last_epoch=last,
        step_s=between.step_s,
        epoch_boundaries_s=between.epoch_boundary_s,
        eval_entry_s=rank.eval_entered_at_s - trained_at_s,
        eval_exit_s=enqueued_s - last_evaluated_at_s if last_evaluated_at_s else None,
    )


def write_result(rank: Rank, *, reached: bool, stopped: str | None = None) -> None:
    """Rank 0's result.json and timeline.json; the launcher adds the official verdict."""
    session = rank.session
    time_s = session.metrics.elapsed_s
    if session.place.rank != 0:
        return
    session.compare_clocks()
    result = {
        "status": "success" if reached else "aborted",
        "time_to_train_s": time_s,
        "init_s": session.init_s,
        "epochs": int(rank.plan.epoch_at(session.step) + 1e-9),
        "eval_accuracy": rank.recovery.accuracy,
        "target": rank.run.eval.target,
        "images_per_s": rank.plan.images_after(session.step) / rank.training_s,
        "ranks": rank.plan.ranks,
        "global_batch_size": rank.plan.global_batch_size,
        "config_sha256": session.config_sha256,
        "seed": rank.run.seed,
        "weights_digest": weights_digest(rank.net).hex(),
        "clock": session.clock.comparison(),
    }
    if stopped is not None:
        result["stopped"] = f"{stopped} at step {session.step}"
    if session.resumed is not None:
        result["resumed_after_step"] = session.resumed.meta.step
    write_own(session.out / "result.json", json.dumps(result, indent=1) + "\n")
    write_own(session.out / "timeline.json", session.timeline.to_json())
