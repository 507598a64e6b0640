"""docs/rules.md, from the rules themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..config import benchmark
from .log_rules import RULES
from .submission import SET_RULES

_HEAD = """# Rules

Written by `rn50 log rules --markdown`; do not edit.

`rn50 log check` holds a log to these rules. Severity *error*: the official verifier fails it, or
there is no valid result; *policy*: the rules forbid it and no tool checks it; *note*: worth
knowing. The column *open* is the severity in the open division (-: no rule there). Sources:
training_rules.adoc of mlcommons/training_policies (lines at d73e20f), and the official tools,
mlcommons/logging 4.1.68.

"""

COLUMNS = ("id", "rulesets", "severity", "open", "checks", "source")


def rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    """The cells of every rule; "open" is the severity in the open division, "-": no rule there."""
    for rule in RULES:
        what = rule.what + (f" ({rule.optimizer})" if rule.optimizer else "")
        yield rule.id, _span(rule.rulesets), rule.severity, rule.in_open or "-", what, rule.source
    for set_rule in SET_RULES:
        severity = set_rule.severity
        yield set_rule.id, "folder", severity, severity, set_rule.what, set_rule.source


def to_json() -> list[dict[str, Any]]:
    """The same for programs. `rulesets`: null for a rule on a folder of runs."""
    rulesets = [list(rule.rulesets) for rule in RULES] + [None] * len(SET_RULES)
    found: list[dict[str, Any]] = []
    for row, valid in zip(rows(), rulesets, strict=True):
        cells = dict(zip(COLUMNS, row, strict=True))
        severity = None if cells["open"] == "-" else cells["open"]
        found.append(cells | {"rulesets": valid, "open": severity})
    return found


def render_markdown() -> str:
    """The whole page."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows()]
    return _HEAD + "\n".join(lines) + "\n"


def _span(rulesets: tuple[str, ...]) -> str:
    if rulesets == benchmark.RULESETS:
        return "all"
    return rulesets[0] if len(rulesets) == 1 else f"{rulesets[0]}-{rulesets[-1]}"
