"""docs/rules.md, from the rules themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..config import benchmark
from . import config_rules, submission  # noqa: F401 (register their rules)
from .check_log import OFFICIAL_FAILS, UNREADABLE
from .log_rules import RULES
from .rule import BOTH, CONFIG, FOLDER, LOG, Rule, rules_on

_HEAD = """# Rules

Written by `rn50 log rules --markdown`; do not edit.

`rn50 log check` holds a log to the rules that judge a log, and a folder to those that judge a
folder too; `rn50 config check` holds a config to the rules that judge a config. Severity *error*:
the official verifier fails it, or there is no valid result; *policy*: the rules forbid it and no
tool checks it; *warning*: no rule forbids it, and it is likely a mistake; *note*: worth knowing.
The column *open* is the severity of a log in the open division (-: no rule there); a config of the
open division gets notes. Sources: training_rules.adoc of mlcommons/training_policies (lines at
d73e20f), and the official tools, mlcommons/logging 4.1.68.

Findings have the code and the name of their rule; in `--json` they are `id` and `name`, and
`caused_by` is a code. No rule finds {unreadable} (a log that cannot be read)
and {official} (where no rule here fails the log).

"""
_OLD_HEAD = """
## Old codes

Until issue 16 findings had these ids. Programs that read `id` or `caused_by` look them up here.

"""

COLUMNS = ("code", "name", "judges", "rulesets", "severity", "open", "checks", "source")

OLD_CODES = {
    "ACCUMULATION": "MLP710",
    "ACCURACY_RANGE": "MLP811",
    "BATCH_CONTROL": "MLP758",
    "BATCH_SIZE": "MLP703",
    "BEFORE_CLOCK": "MLP402",
    "BEFORE_TRAINING": "MLP401",
    "BLOCKS": "MLP406",
    "CACHE_CLEAR": "MLP107",
    "CACHE_CLEAR_VALUE": "MLP601",
    "CHIPS": "MLP909",
    "CLOCK_JUMP": "MLP510",
    "COPIES": "MLP203",
    "COUNTS": "MLP051",
    "DIFFERENT_VALUES": "MLP202",
    "END_LR": "MLP705",
    "EPOCH_METADATA": "MLP109",
    "EPOCH_NUMBER": "MLP806",
    "EPOCH_ORDER": "MLP404",
    "EPOCH_VALUES": "MLP403",
    "EPSILON": "MLP707",
    "ETA": "MLP755",
    "EVAL_ACCURACY": "MLP111",
    "EVENTS_MISSING": "MLP602",
    "HIDDEN": "MLP205",
    "HYPERPARAMETERS_060": "MLP604",
    "HYPERPARAMETERS_MISSING": "MLP704",
    "IMAGES": "MLP812, MLP756",
    "INIT": "MLP106",
    "INIT_LIMIT": "MLP501",
    "JOINED": "MLP006",
    "LEAP": "MLP813",
    "LR_FOR_BATCH": "MLP751",
    "MISSING_EPOCH_EVENTS": "MLP108",
    "MISSING_SUBMISSION_KEYS": "MLP101",
    "NESTING": "MLP603",
    "NETWORK": "MLP757",
    "NO_NUMBER": "MLP701",
    "NO_RUN_STOP": "MLP103",
    "NO_TIME": "MLP412",
    "ODD_BYTES": "MLP004",
    "ODD_RECORDS": "MLP003",
    "OFFICIAL": "MLP008",
    "OFF_THE_CLOCK": "MLP303",
    "OPT_NAME": "MLP702",
    "POWER": "MLP706, MLP715",
    "R01": "MLP305",
    "R02": "MLP304",
    "R02b": "MLP302",
    "R03": "MLP307",
    "R04": "MLP803",
    "R05": "MLP801, MLP802, MLP762",
    "R06": "MLP802",
    "R07": "MLP713, MLP714, MLP763",
    "R08": "MLP714",
    "R09": "MLP715",
    "R10": "MLP716",
    "R11": "MLP717",
    "R12": "MLP804",
    "R12b": "MLP805",
    "R13": "MLP503",
    "R14": "MLP502",
    "R15": "MLP504",
    "R15b": "MLP505",
    "R16": "MLP506",
    "R16b": "MLP507",
    "R16c": "MLP508",
    "R17": "MLP201",
    "R18": "MLP309",
    "R19": "MLP310",
    "R20": "MLP907",
    "R22": "MLP301",
    "RANKS_DISAGREE": "MLP306",
    "RCP": "MLP904, MLP752",
    "RCP_FACTOR": "MLP759",
    "RCP_LENGTH": "MLP753",
    "READ": "MLP000",
    "RECORDS": "MLP001",
    "RESUMED": "MLP509",
    "ROUND": "MLP905",
    "RULESET": "MLP005",
    "RUNS": "MLP061",
    "RUNS_HERE": "MLP062",
    "RUN_START": "MLP105",
    "RUN_STOP": "MLP104",
    "S1": "MLP901",
    "S2": "MLP906",
    "S3": "MLP910",
    "SAME_CURVE": "MLP903",
    "SAME_RUN": "MLP902",
    "SAMPLES": "MLP110",
    "SGD_BASE_LR": "MLP709",
    "SHAPE": "MLP754",
    "STAMPS": "MLP002",
    "STATUS_VALUE": "MLP308",
    "STOP_FIRST": "MLP407",
    "SUBMISSION_VALUES": "MLP102",
    "SYSTEM": "MLP908",
    "THROUGHPUT": "MLP411",
    "TWO_RUNS": "MLP007",
    "UNKEPT": "MLP204",
    "UNTRAINED": "MLP405",
    "WARMUP": "MLP760",
    "WEIGHT_DECAY": "MLP708",
    "WEIGHT_INIT_MISSING": "MLP711",
    "WEIGHT_INIT_NAMES": "MLP712",
}
"""Ids before issue 16, and the codes of today; several where one id had several meanings."""


def _all_rules() -> list[Rule]:
    """Every rule by its code; one whose config has a function of its own comes twice."""
    judging_logs = {id(each) for each in RULES}
    rest = (each for each in (*rules_on(CONFIG), *rules_on(FOLDER)) if id(each) not in judging_logs)
    return sorted((*RULES, *rest), key=lambda each: each.code)


def rows() -> Iterator[tuple[str, ...]]:
    """The cells of every rule; "open" is the severity in the open division, "-": no rule there."""
    for each in _all_rules():
        what = each.description + (f" ({each.optimizer})" if each.optimizer else "")
        span = _span(each.rulesets) if each.judges in (LOG, BOTH) else "all"
        open_severity = each.open_severity or "-"
        yield (
            *(each.code, each.name, each.judges, span, each.severity, open_severity),
            *(what, each.source),
        )


def to_json() -> list[dict[str, Any]]:
    """The same for programs. `rulesets`: null for a rule on a config or a folder of runs alone;
    `id` is the code."""
    found: list[dict[str, Any]] = []
    for each, row in zip(_all_rules(), rows(), strict=True):
        cells: dict[str, Any] = dict(zip(("id", *COLUMNS[1:]), row, strict=True))
        rulesets = list(each.rulesets) if each.judges in (LOG, BOTH) else None
        more = {"rulesets": rulesets, "open": each.open_severity}
        found.append(cells | more | {"keys": list(each.keys)})
    return found


def render_markdown() -> str:
    """The whole page."""
    head = _HEAD.format(unreadable=" ".join(UNREADABLE), official=" ".join(OFFICIAL_FAILS))
    old = ((old, new) for old, new in OLD_CODES.items())
    return head + _table(COLUMNS, rows()) + _OLD_HEAD + _table(("old", "code"), old)


def _table(columns: tuple[str, ...], cells: Iterator[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells]
    return "\n".join(lines) + "\n"


def _span(rulesets: tuple[str, ...]) -> str:
    if rulesets == benchmark.RULESETS:
        return "all"
    return rulesets[0] if len(rulesets) == 1 else f"{rulesets[0]}-{rulesets[-1]}"
