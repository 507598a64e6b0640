"""What the checkers say of a run of ours, as `rn50 launch` words it. Pure.

`rn50 log check` is a referee: to it every log is to be a result of the benchmark. Here the config's
own target counts, and of the rules those that apply to its image set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..compliance.check_log import ON_THE_SET, Check
from ..config import benchmark
from ..config.finding import ERROR, NOTE, plain
from ..config.schema import Run

ON_THE_TARGET = frozenset({"target-not-reached"})
"""The rule that wants the accuracy of the division: 0.759 in the closed one, below 1 in both."""


def is_good(result: Mapping[str, Any]) -> bool:
    """Did a run reach its config's target with a log to which the checkers object in nothing else,
    as fast as the machine's reference?
    `result`: of result.json, as `conclude` leaves it."""
    passes = result["official_checker"]["verdict"] == "PASS"
    only_the_target = set(result["check"]["errors"]) == ON_THE_TARGET
    as_fast = result.get("reference", {}).get("passes", True)
    return result["status"] == "success" and (passes or only_the_target) and as_fast


def errors_of(check: Check) -> list[str]:
    """The names of the rules that fail a log."""
    return sorted({finding.name for finding in check.findings if finding.severity == ERROR})


def verdict_lines(run: Run, check: Check, result: Mapping[str, Any], out: Path) -> list[str]:
    """What the checkers say of a run that has ended in order. `check`: the official checker's
    verdict within it. `result`: of result.json."""
    more = f"(rn50 log check {out})"
    if "stopped" in result:
        return [f"check: none: the run was stopped before its end {more}"]
    if result["status"] != "success":
        return [f"check: {check.verdict}: {check.cause} {more}"]
    about_set = sorted({one.name for one in check.findings if one.name in ON_THE_SET})
    others = [
        one
        for one in check.findings
        if one.severity != NOTE and one.name not in ON_THE_SET | ON_THE_TARGET
    ]
    lines, verdict = [], f"{check.verdict}: {others[0].message if others else check.cause}"
    if set(errors_of(check)) == ON_THE_TARGET:
        verdict = (
            f"this config's target {plain(run.eval.target)} is reached; the official checker wants "
            f"{benchmark.TARGET_ACCURACY} or more in the closed division, and less than 1"
        )
    elif check.official is not None:
        lines += [f"official checker: {message}" for message in check.official.messages]
    if about_set and verdict.startswith(check.verdict) and not others:
        verdict = f"PASS by every rule that applies (ruleset {check.ruleset}, {run.division})"
    lines.append(f"check: {verdict} {more}")
    if about_set:
        lines.append(f"the set is not ImageNet: {' and '.join(about_set)} do not apply to it")
    return lines
