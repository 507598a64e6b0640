"""docs/rules.md, from the rules themselves."""

from collections.abc import Iterator

from ..config import benchmark
from . import submission  # noqa: F401 (registers its rules)
from .check_log import OFFICIAL_FAILS, UNREADABLE
from .config_rules import NOT_IMAGENET
from .log_rules import RULES
from .rule import BOTH, CONFIG, FOLDER, LOG, Rule, rules_on

_HEAD = """# Rules

Written by `rn50 log rules --write docs/rules.md`; do not edit.

`rn50 log check` applies the rules that judge logs, and to a folder also those that judge folders;
`rn50 config check` applies the rules that judge configs. Severity *error*:
the official verifier fails it, or there is no valid result; *policy*: the rules forbid it and no
tool checks it; *warning*: no rule forbids it, and it is likely a mistake; *note*: worth knowing.
The column *open* is the severity of a log in the open division (-: no rule there); a config of the
open division gets notes. Sources: training_rules.adoc of mlcommons/training_policies (lines at
d73e20f), and the official tools, mlcommons/logging 4.1.68.

Findings have the code and the name of their rule; in `--json` they are `id` and `name`, and
`caused_by` is a code. Four findings come from no rule: {unreadable} (a log that cannot be read),
{official} (if no rule here fails the log), MLP061 cannot-run (a config that no machine of its kind
can run) and {another_set} (a note on what is not applied to a config with other images).

"""
_FIRST = """
## Twenty rules that a first log breaks

An example is a record, in short, that breaks the rule in a log that is right otherwise.
"""
COLUMNS = ("code", "name", "judges", "rulesets", "severity", "open", "checks", "source")


def _all_rules() -> list[Rule]:
    """Every rule by its code; one whose config has a function of its own comes twice."""
    # once each, where a rule judges logs and configs alike
    return sorted(
        dict.fromkeys((*RULES, *rules_on(CONFIG), *rules_on(FOLDER))),
        key=lambda rule: rule.code,
    )


def rows() -> Iterator[tuple[str, ...]]:
    """The cells of every rule; "open" is the severity in the open division, "-": no rule there."""
    for rule in _all_rules():
        what = rule.description
        if rule.optimizer:
            what += f" ({rule.optimizer})"
        yield (
            rule.code,
            rule.name,
            rule.judges,
            _span(rule),
            rule.severity,
            rule.open_severity or "-",
            what,
            rule.source,
        )


def render_markdown() -> str:
    """The whole page."""
    head = _HEAD.format(
        unreadable=UNREADABLE.rule,
        official=OFFICIAL_FAILS.rule,
        another_set=NOT_IMAGENET.rule,
    )
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in rows():
        cells = (cell.replace("|", "/") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    table = "\n".join(lines)
    return f"{head}{table}\n{_FIRST}" + "".join(map(_section, first_met()))


def first_met() -> list[Rule]:
    """The rules with a section of their own: those with a reason and an example."""
    return [rule for rule in _all_rules() if rule.why]


def _section(rule: Rule) -> str:
    return (
        f"\n### {rule.code} {rule.name}\n\n{rule.description}\n\n"
        f"**Why.** {rule.why}\n\n**Breaks it:** {rule.example}\n"
    )


def _span(rule: Rule) -> str:
    """The rounds of a rule; a config is held to all rules whatever its round."""
    judges_logs = rule.judges in (LOG, BOTH)
    if rule.rulesets == benchmark.RULESETS or not judges_logs:
        return "all"
    return "-".join(dict.fromkeys((rule.rulesets[0], rule.rulesets[-1])))
