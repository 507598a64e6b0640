"""What one run is worth as part of a set, and the set's convergence. Shared by the set's rules and
its score.

Source: mlcommons/logging 4.1.68, rcp_checker; training_rules.adoc lines 509, 954.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..config import benchmark
from .check_log import Check
from .rcp import Verdict, judge, kept_points

# errors that leave no run time to trust
_NO_CLOCK = ("two-runs", "several-clocks", "run-time-not-positive")


class RunScore(NamedTuple):
    """One run; `minutes` None: it has no usable clock. `invalid`: why the check of its round fails
    it, "" if it does not."""

    path: Path
    minutes: float | None = None
    converged: bool = False
    epochs: float | None = None
    accuracy: float | None = None
    dropped: str = ""
    """Why its time is not in the mean; "" if it is."""
    invalid: str = ""


def newest(checks: Sequence[Check]) -> str:
    """The ruleset that a submission is held to: the newest of those of its logs that can be read
    (of all, where none can)."""
    readable = [check for check in checks if check.run]
    return max(
        {check.ruleset for check in readable or checks}, key=benchmark.RULESETS.index
    )


def judge_convergence(checks: Sequence[Check]) -> Verdict | None:
    """The RCP test on the runs by the newest of their rulesets; None where that round has none. A
    run whose batch is no number did not converge with it, and the one that may fail, whatever for,
    has no epochs that count. Runs that count and have no common batch size do not pass."""
    ruleset = newest(checks)
    if not kept_points(ruleset):
        return None
    out = left_out([run_score(check) for check in checks])
    logged = [check.run.batch if check.run else None for check in checks]
    counting = {batch for index, batch in enumerate(logged) if index not in out}
    batches = {batch for batch in counting or logged if batch is not None}
    if len(batches) != 1:
        values = " and ".join(f"{batch:,g}" for batch in sorted(batches)) or "no batch"
        return Verdict(False, f"{values} are no common batch of the runs")
    epochs: list[float | None] = []
    for index, check in enumerate(checks):
        counts = logged[index] is not None and index not in out
        epochs.append(check.run.convergence_epoch if check.run and counts else None)
    return judge(epochs, batches.pop(), ruleset)


def left_out(runs: Sequence[RunScore]) -> set[int]:
    """Runs that count as the slowest: one that is not valid; of more, which make no submission,
    those that did not converge, so that their score is still known."""
    invalid = {
        index for index, run in enumerate(runs) if run.invalid or not run.converged
    }
    if len(invalid) <= benchmark.RUNS_THAT_MAY_FAIL:
        return invalid
    return {index for index in invalid if not runs[index].converged}


def run_score(check: Check) -> RunScore:
    """What the run of a log is worth in a set."""
    run = check.run
    score = RunScore(check.path, dropped=check.cause, invalid=check.cause)
    if not run:
        return score
    broken = any(finding.name in _NO_CLOCK for finding in check.findings)
    if run.run_ms is not None and not broken:
        score = score._replace(minutes=run.run_ms / 60_000)
        if run.converged:
            score = score._replace(converged=True, dropped="")
    if check.is_result:
        score = score._replace(invalid="")
    last = run.last_counted
    if not last:
        return score
    return score._replace(epochs=run.epochs_to(last), accuracy=last.accuracy)
