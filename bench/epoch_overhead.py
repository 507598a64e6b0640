"""`rn50 bench epoch-overhead`: the step over an epoch's boundary against a plain one."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from itertools import pairwise
from typing import Annotated, Any

from ..config.errors import UserError
from ..config.load import Loaded
from ..config.plan import build_plan
from ..launch.launchers import build_job
from ..launch.scratch import scratch_folder
from ..launch.supervisor import run_job
from .harness import Job, Outcome, bench, option, spread
from .jobs import load_ready


@bench("epoch-overhead", config="quick", takes_ranks=True)
def epoch_overhead(
    job: Job, *, epochs: Annotated[int, option("Epochs to train.", min=2)] = 16
) -> Outcome:
    """Time between two epochs, and around an evaluation, beyond a plain step.

    Trains all epochs and compares the time from the last step of one to the first of the next with
    that between two steps inside. Times are those of the device; measuring adds no wait.

    Example: `rn50 bench epoch-overhead quick --epochs 16`
    """
    whole = (f"schedule.length={epochs} epochs", "eval.target=0.999999")
    plan = build_plan(job.load(*whole).run)
    if max(last - first for first, last in pairwise((0, *plan.eval_epochs))) < 2:
        raise UserError("eval.period: blocks of at least 2 epochs expected, to have a boundary in")
    loaded = load_ready(job, *whole)
    job.track("training to the last epoch")
    records = _train(loaded, job.launcher)
    blocks = [record for record in records if record["kind"] == "gaps"]
    boundary_s = [(b, record["step_s"]) for record in blocks for b in record["epoch_boundaries_s"]]
    ms = {
        "plain step (medians of blocks)": [1e3 * record["step_s"] for record in blocks],
        "step over an epoch's boundary": [1e3 * boundary for boundary, _ in boundary_s],
        "evaluation entry": [1e3 * record["eval_entry_s"] for record in blocks],
        "evaluation exit": [1e3 * r["eval_exit_s"] for r in blocks if r["eval_exit_s"] is not None],
        "evaluation": [1e3 * record["eval_s"] for record in records if record["kind"] == "eval"],
    }
    ms = {name: found for name, found in ms.items() if found}  # of one block there is no exit
    return Outcome(
        ratios={
            "step over an epoch's boundary / plain step": spread([b / s for b, s in boundary_s])
        },
        figures={
            "plain step ms (medians of blocks)": spread(ms["plain step (medians of blocks)"]),
            **{f"{name} ms": spread(found) for name, found in ms.items() if "evaluation" in name},
            "ranks": plan.ranks,
        },
        measurements={"ms": ms},
    )


def _train(loaded: Loaded, launcher: str) -> list[dict[str, Any]]:
    """The metrics of a whole run."""
    with scratch_folder(loaded, "bench") as out:
        command = [sys.executable, "-m", "rn50.train", str(out / "config.yaml"), "--out", str(out)]
        with redirect_stdout(sys.stderr):  # the run's progress
            run_job(build_job(loaded.run, launcher, command)[0], launcher, out)
        return [json.loads(line) for line in (out / "metrics.jsonl").open()]
