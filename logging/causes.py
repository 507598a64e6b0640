"""Which findings follow from what happened to the file: lost records, stamps that are no time."""

from __future__ import annotations

from ..config.finding import Finding
from .case import Case

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


def explain(case: Case, findings: list[Finding]) -> list[Finding]:
    """Mark what follows from another finding, where its own rule has not said so."""
    log = case.log
    # A lost record of a known key is not missed by the rules: they ask `Case.absent`.
    lost = any(problem.lost for problem in log.problems) or log.truncated
    unknown = any(problem.lost and problem.key is None for problem in log.problems)
    torn = "RECORDS" if lost else "ODD_BYTES" if log.odd_bytes.zeros else ""
    missing = "RECORDS" if unknown or log.truncated else "ODD_BYTES" if log.odd_bytes.zeros else ""
    wrong_clock = any(odd.checked and odd.kind != "text" for odd in log.odd_stamps)

    def cause(finding: Finding) -> str:
        if finding.caused_by:
            return finding.caused_by
        if wrong_clock and finding.id in _OF_STAMPS:
            return "STAMPS"
        if missing and finding.found == "none" and finding.line is None:
            return missing
        out_of_order = finding.expected.endswith(" first")
        return torn if out_of_order or finding.id in _OF_LOST_RECORDS else ""

    return [finding._replace(caused_by=cause(finding)) for finding in findings]
