"""Which findings follow from others: lost records, stamps that are no time, a run out of order."""

from __future__ import annotations

from ..config.finding import NOTE, Finding
from .logged_run import Case

# What a record that was lost can look like: others stand alone or out of order, counts are short.
_OF_LOST_RECORDS = frozenset(
    {
        *("NO_RUN_STOP", "RUN_STOP", "RUN_START", "INIT", "MISSING_EPOCH_EVENTS"),
        *("EVENTS_MISSING", "NESTING", "WEIGHT_INIT_MISSING", "WEIGHT_INIT_NAMES", "R02"),
        *("R04", "R12b", "R18", "BLOCKS", "UNTRAINED", "STOP_FIRST", "EPOCH_ORDER", "LEAP"),
        *("BEFORE_TRAINING", "HYPERPARAMETERS_060"),
    }
)
# What a stamp that is no time, or is lost, does to every rule that counts time.
_OF_STAMPS = frozenset(
    {
        *("INIT_LIMIT", "R13", "R14", "R15", "R15b", "R17", "R22", "THROUGHPUT", "NO_TIME"),
        *("EPOCH_ORDER", "STOP_FIRST", "RANKS_DISAGREE"),
    }
)

_CAUSES: dict[str, tuple[str, ...]] = {
    "R22": ("TWO_RUNS", "R17", "R14"),
    "R13": ("TWO_RUNS", "R17", "R22", "R14", "OFF_THE_CLOCK", "CLOCK_JUMP", "COPIES"),
    "R15b": ("R14",),
    "INIT_LIMIT": ("R14",),
    "R15": ("R14",),
    "BEFORE_CLOCK": ("R22", "R17", "R14"),
    "OFF_THE_CLOCK": ("R17", "R14"),
    "THROUGHPUT": ("R17", "R14", "BEFORE_TRAINING"),
    "LEAP": ("BEFORE_TRAINING", "EPOCH_VALUES", "EPOCH_ORDER"),
    "NO_TIME": ("R14", "BEFORE_TRAINING", "THROUGHPUT", "EPOCH_VALUES"),
    "EPOCH_ORDER": ("BEFORE_TRAINING", "EPOCH_VALUES"),
    "UNTRAINED": ("BEFORE_TRAINING", "EPOCH_VALUES", "EPOCH_ORDER"),
    "BLOCKS": ("BEFORE_TRAINING", "EPOCH_VALUES", "EPOCH_ORDER", "UNTRAINED"),
    "STOP_FIRST": ("EPOCH_VALUES", "EPOCH_ORDER"),
    "R12": ("EPOCH_VALUES",),
    "R18": ("EPOCH_VALUES", "STOP_FIRST"),
    "NESTING": ("EPOCH_VALUES", "BEFORE_TRAINING", "EPOCH_ORDER", "BLOCKS", "STOP_FIRST"),
}
"""What explains a finding if both are there, the first cause first."""

_NOTES_THAT_EXPLAIN = frozenset({"COPIES", "CLOCK_JUMP"})
_EXPLAIN_NOTES_ALONE = frozenset({"COPIES"})  # ranks' clocks are less than a second apart


def explain(case: Case, findings: list[Finding]) -> list[Finding]:
    """Mark what follows from another finding, where its own rule has not said so."""
    log = case.log
    # A lost record of a known key is not missed by the rules: they ask `Case.absent`.
    lost = any(problem.lost for problem in log.problems) or log.truncated
    unknown = any(problem.lost and problem.key is None for problem in log.problems)
    torn = "RECORDS" if lost else "ODD_BYTES" if log.odd_bytes.zeros else ""
    missing = "RECORDS" if unknown or log.truncated else "ODD_BYTES" if log.odd_bytes.zeros else ""
    wrong_clock = any(odd.checked and odd.kind not in ("text", "early") for odd in log.odd_stamps)

    there = {finding.id for finding in findings}
    serious = {f.id for f in findings if f.severity != NOTE or f.id in _NOTES_THAT_EXPLAIN}

    slight = {f.id for f in findings if f.severity == NOTE and f.id in _EXPLAIN_NOTES_ALONE}

    def cause(finding: Finding) -> str:
        if finding.caused_by in there:
            return finding.caused_by
        if wrong_clock and finding.id in _OF_STAMPS:
            return "STAMPS"
        if missing and finding.found == "none" and finding.line is None:
            return missing
        out_of_order = finding.expected.endswith(" first")
        if torn and (out_of_order or finding.id in _OF_LOST_RECORDS):
            return torn
        too_much = frozenset() if finding.severity == NOTE else slight
        causes = (one for one in _CAUSES.get(finding.id, ()) if one in serious - too_much)
        return next(causes, "")

    return [finding._replace(caused_by=cause(finding)) for finding in findings]
