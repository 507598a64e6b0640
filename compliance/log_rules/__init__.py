"""All rules of the log check, causes before consequences, and what they find in a case."""

from __future__ import annotations

from ...config.finding import SEVERITIES, Finding
from ..causes import explain
from ..logged_run import Case
from ..rule import Rule
from . import accuracy as rules_accuracy
from . import clock as rules_clock
from . import copies as rules_copies
from . import epochs as rules_epochs
from . import events as rules_events
from . import hyperparameters as rules_hyper
from . import pace as rules_pace
from . import records as rules_records
from . import result as rules_result
from . import round_060 as rules_060
from . import training as rules_training

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
