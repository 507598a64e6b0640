"""A rule of the log check: a small function from a case to what breaks it, and what it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..config import benchmark
from ..config.finding import ERROR, NOTE, POLICY, Finding, number
from .logged_run import Case

CHECKER = "mlcommons/logging 4.1.68, compliance_checker"
RULES_TEXT = "training_rules.adoc"


class Found(NamedTuple):
    """What a rule function yields; `severity` only where it differs from the rule's. `caused_by`:
    the id of the rule whose finding explains this one; void where that rule finds nothing."""

    message: str
    line: int | None = None
    expected: str = ""
    found: str = ""
    advice: str = ""
    severity: str | None = None
    caused_by: str = ""


Check = Callable[[Case], Iterator[Found]]


class Rule(NamedTuple):
    """`in_open`: severity in the open division; None: not a rule there."""

    id: str
    severity: str
    source: str
    check: Check
    rulesets: tuple[str, ...]
    optimizer: str | None
    in_open: str | None

    @property
    def what(self) -> str:
        """What it checks: the function's docstring."""
        return " ".join((self.check.__doc__ or "").split())

    def applies(self, case: Case) -> bool:
        return (
            case.ruleset in self.rulesets
            and (self.in_open is not None or case.division != "open")
            and self.optimizer in (None, case.optimizer)
        )

    def findings(self, case: Case) -> Iterator[Finding]:
        """What breaks this rule in a case to which it applies."""
        usual = self.in_open if case.division == "open" else self.severity
        for found in self.check(case):
            severity = found.severity or usual or self.severity
            if case.division == "open" and severity == POLICY and self.in_open == NOTE:
                severity = NOTE
            yield Finding(
                self.id,
                severity,
                found.line,
                found.expected,
                found.found,
                found.message,
                found.advice,
                found.caused_by,
            )


def as_official(value: object) -> float | None:
    """A finite number, true as 1 as the official checker compares it; else None."""
    return number(int(value) if isinstance(value, bool) else value)


def between(first: str, last: str = benchmark.RULESETS[-1]) -> tuple[str, ...]:
    """The rulesets from one to another."""
    order = benchmark.RULESETS
    return order[order.index(first) : order.index(last) + 1]


def rule(
    id: str,
    severity: str,
    source: str,
    *,
    rulesets: tuple[str, ...] = benchmark.RULESETS,
    optimizer: str | None = None,
    in_open: str | None = "as closed",
) -> Callable[[Check], Rule]:
    """Make a rule of a function."""
    if in_open == "as closed":
        in_open = severity

    def make(check: Check) -> Rule:
        return Rule(id, severity, source, check, rulesets, optimizer, in_open)

    return make


__all__ = [
    "CHECKER",
    "ERROR",
    "NOTE",
    "POLICY",
    "RULES_TEXT",
    "Case",
    "Found",
    "Rule",
    "as_official",
    "between",
    "rule",
]
