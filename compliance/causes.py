"""Which findings follow from others: from lost records, or from a clock that is wrong."""

from ..host.finding import MISSING, NOTE, Finding
from .logged_run import LoggedRun
from .rule import code_of

_OF_LOST_RECORDS = frozenset(
    {
        "no-run-stop",
        "misplaced-run-stop",
        "misplaced-run-start",
        "misplaced-init",
        "missing-epoch-event",
        "missing-event-060",
        "missing-weight-initialization",
        "weight-initialization-names",
        "target-not-reached",
        "evaluation-cadence",
        "late-first-epoch",
        "unpaired-events",
        "untrained-epoch",
        "epochs-out-of-order",
        "overlapping-epochs",
        "target-before-training",
        "invalid-hyperparameter-060",
    }
)
"""What a record that was lost can look like: others stand alone, counts are short."""
_CLOCK = (
    "impossible-stamp",
    "zero-stamp",
    "two-runs",
    "several-clocks",
    "run-time-not-positive",
)
"""What is wrong with the clock, and explains each later one of these and what is stamped by it."""
_BY_THE_CLOCK = (
    "several-clocks",
    "run-time-not-positive",
    "time-goes-back",
    "run-start-before-init-stop",
    "init-too-long",
    "late-run-start",
    "ranks-disagree",
    "off-the-clock",
    "interval-without-time",
    "target-off-the-clock",
    "impossible-rate",
)
_BY_ANOTHER = {
    "misplaced-run-stop": "misplaced-run-start",
    "missing-epoch-metadata": "misplaced-run-start",
    "target-not-reached": "missing-accuracy",
}


def explain(run: LoggedRun, findings: list[Finding]) -> list[Finding]:
    """Mark what follows from another finding."""
    problems = run.log.problems
    # A lost record of a known key is not missed by the rules: they ask `LoggedRun.absent`.
    torn = run.log.truncated or any(problem.lost for problem in problems)
    unknown = run.log.truncated or any(p.lost and p.key is None for p in problems)
    serious = {finding.name for finding in findings if finding.severity != NOTE}
    clock = next((name for name in _CLOCK if name in serious), "")

    def cause(finding: Finding) -> str:
        is_missing = unknown and finding.about == MISSING
        if is_missing or (torn and finding.name in _OF_LOST_RECORDS):
            return "broken-record"
        other = _BY_ANOTHER.get(finding.name)
        if other in serious:
            return other
        if finding.name in _BY_THE_CLOCK and finding.name != clock:
            return clock
        return ""

    return [finding._replace(caused_by=code_of(cause(finding))) for finding in findings]
