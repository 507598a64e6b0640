"""Which findings follow from others: lost records, stamps that are no time, a run out of order."""

from __future__ import annotations

from ..config.finding import NOTE, Finding
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
        "target-before-training",
        "invalid-hyperparameter-060",
    }
)
"""What a record that was lost can look like: others stand alone, counts are short."""

_STAMPS = ("impossible-stamp", "zero-stamp")
_CAUSES: dict[str, tuple[str, ...]] = {
    "run-time-not-positive": (*_STAMPS, "two-runs", "several-clocks"),
    "time-goes-back": (
        *_STAMPS,
        "two-runs",
        "several-clocks",
        "run-time-not-positive",
        "target-off-the-clock",
        "wall-clock-jump",
    ),
    "run-start-before-init-stop": _STAMPS,
    "init-too-long": _STAMPS,
    "late-run-start": _STAMPS,
    "several-clocks": ("impossible-stamp", "two-runs"),
    "ranks-disagree": ("impossible-stamp",),
    "epoch-before-run-start": (*_STAMPS, "run-time-not-positive", "several-clocks"),
    "target-off-the-clock": (*_STAMPS, "several-clocks"),
    "impossible-rate": (*_STAMPS, "several-clocks", "target-before-training"),
    "evaluation-cadence": ("epochs-out-of-order", "evaluations-out-of-order"),
    "epochs-out-of-order": ("target-before-training",),
    "evaluations-out-of-order": ("target-before-training",),
    "untrained-epoch": ("target-before-training", "epochs-out-of-order"),
}
"""What explains a finding if both are there, the first cause first."""


def explain(run: LoggedRun, findings: list[Finding]) -> list[Finding]:
    """Mark what follows from another finding, where its own rule has not said so."""
    problems = run.log.problems
    # A lost record of a known key is not missed by the rules: they ask `LoggedRun.absent`.
    torn = run.log.truncated or any(problem.lost for problem in problems)
    unknown = run.log.truncated or any(one.lost and one.key is None for one in problems)
    codes = {finding.id for finding in findings}
    serious = {f.name for f in findings if f.severity != NOTE or f.name == "wall-clock-jump"}

    def cause(finding: Finding) -> str:
        if finding.caused_by in codes:
            return finding.caused_by
        missing = finding.found == "none" and finding.line is None
        out_of_order = finding.expected.endswith(" first")
        if (unknown and missing) or (torn and (out_of_order or finding.name in _OF_LOST_RECORDS)):
            return "broken-record"
        return next((one for one in _CAUSES.get(finding.name, ()) if one in serious), "")

    return [finding._replace(caused_by=code_of(cause(finding))) for finding in findings]
