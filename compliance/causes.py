"""Which findings follow from others: lost records, stamps that are no time, a run out of order."""

from __future__ import annotations

from ..config.finding import NOTE, Finding
from .logged_run import LoggedRun
from .rule import code_of

# What a record that was lost can look like: others stand alone or out of order, counts are short.
_OF_LOST_RECORDS = frozenset(
    {
        *("no-run-stop", "misplaced-run-stop", "misplaced-run-start", "misplaced-init"),
        *("missing-epoch-event", "missing-event-060", "misnested-events-060"),
        *("missing-weight-initialization", "weight-initialization-names"),
        *("target-not-reached", "evaluation-cadence", "late-first-epoch", "unpaired-events"),
        *("untrained-epoch", "epochs-out-of-order", "target-before-training"),
        *("invalid-hyperparameter-060",),
    }
)
# What a stamp that is no time, or is lost, does to every rule that counts time.
_OF_STAMPS = frozenset(
    {
        *("init-too-long", "time-goes-back", "zero-stamp", "late-run-start"),
        *("run-start-before-init-stop", "several-clocks", "run-time-not-positive"),
        *("impossible-rate", "epochs-out-of-order", "ranks-disagree"),
    }
)

_CAUSES: dict[str, tuple[str, ...]] = {
    "run-time-not-positive": ("two-runs", "several-clocks", "zero-stamp"),
    "time-goes-back": (
        *("two-runs", "several-clocks", "run-time-not-positive", "zero-stamp"),
        *("target-off-the-clock", "wall-clock-jump", "copied-records"),
    ),
    "run-start-before-init-stop": ("zero-stamp",),
    "init-too-long": ("zero-stamp",),
    "late-run-start": ("zero-stamp",),
    "epoch-before-run-start": ("run-time-not-positive", "several-clocks", "zero-stamp"),
    "target-off-the-clock": ("several-clocks", "zero-stamp"),
    "impossible-rate": ("several-clocks", "zero-stamp", "target-before-training"),
    "evaluation-cadence": ("epochs-out-of-order",),
    "epochs-out-of-order": ("target-before-training", "impossible-epoch"),
    "untrained-epoch": ("target-before-training", "impossible-epoch", "epochs-out-of-order"),
    "epochs-from-zero": ("impossible-epoch",),
    "unpaired-events": ("impossible-epoch",),
    "misnested-events-060": (
        *("impossible-epoch", "target-before-training", "epochs-out-of-order", "untrained-epoch"),
    ),
}
"""What explains a finding if both are there, the first cause first."""

_NOTES_THAT_EXPLAIN = frozenset({"copied-records", "wall-clock-jump"})
_EXPLAIN_NOTES_ALONE = frozenset({"copied-records"})  # ranks' clocks are less than a second apart


def explain(run: LoggedRun, findings: list[Finding]) -> list[Finding]:
    """Mark what follows from another finding, where its own rule has not said so."""
    log = run.log
    # A lost record of a known key is not missed by the rules: they ask `LoggedRun.absent`.
    lost = any(problem.lost for problem in log.problems) or log.truncated
    unknown = any(problem.lost and problem.key is None for problem in log.problems)
    torn = "broken-record" if lost else "odd-bytes" if log.odd_bytes.zeros else ""
    missing = (
        "broken-record" if unknown or log.truncated else "odd-bytes" if log.odd_bytes.zeros else ""
    )
    wrong_clock = any(odd.checked and odd.kind not in ("text", "early") for odd in log.odd_stamps)

    hidden = [one.meant for one in log.look_alikes]
    codes = {finding.id for finding in findings}
    serious = {f.name for f in findings if f.severity != NOTE or f.name in _NOTES_THAT_EXPLAIN}

    slight = {f.name for f in findings if f.severity == NOTE and f.name in _EXPLAIN_NOTES_ALONE}

    def cause(finding: Finding) -> str:
        if finding.caused_by in codes:
            return finding.caused_by
        if wrong_clock and finding.name in _OF_STAMPS:
            return "impossible-stamp"
        if finding.found == "none" and any(key in finding.message for key in hidden):
            return "look-alike-name"
        if missing and finding.found == "none" and finding.line is None:
            return missing
        out_of_order = finding.expected.endswith(" first")
        if torn and (out_of_order or finding.name in _OF_LOST_RECORDS):
            return torn
        too_much = frozenset() if finding.severity == NOTE else slight
        causes = (one for one in _CAUSES.get(finding.name, ()) if one in serious - too_much)
        return next(causes, "")

    return [finding._replace(caused_by=code_of(cause(finding))) for finding in findings]
