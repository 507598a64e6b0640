"""All rules of the log check, causes before consequences, and what they find in a case."""

from __future__ import annotations

from ..config.finding import SEVERITIES, Finding
from . import (
    rules_060,
    rules_accuracy,
    rules_clock,
    rules_copies,
    rules_epochs,
    rules_events,
    rules_hyper,
    rules_pace,
    rules_records,
    rules_result,
    rules_training,
)
from .case import Case
from .causes import explain
from .rule import Rule

RULES: tuple[Rule, ...] = (
    *rules_records.RULES,
    *rules_events.RULES,
    *rules_copies.RULES,
    *rules_result.RULES,
    *rules_training.RULES,
    *rules_pace.RULES,
    *rules_clock.RULES,
    *rules_060.RULES,
    *rules_hyper.RULES,
    *rules_epochs.RULES,
    *rules_accuracy.RULES,
)


def apply(case: Case) -> list[Finding]:
    """What breaks any rule: errors first, of one severity causes before what they explain, else in
    the order of `RULES`."""
    found = [finding for rule in RULES if rule.applies(case) for finding in rule.findings(case)]
    found = explain(case, found)
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), f.caused_by != ""))
