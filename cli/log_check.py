"""`rn50 log check`: what it prints, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..compliance.check_log import CANNOT_READ, PASS, Check, check_log, is_valid
from ..config.finding import printable
from ..logging.places import log_folders


def run_check(
    paths: Sequence[Path],
    ruleset: str | None,
    *,
    strict: bool,
    official: bool | None,
    as_json: bool,
) -> int:
    """Check logs and folders, print the verdicts; returns the exit code, the worst of all."""
    codes = []
    printed = []
    for path in [folder for given in paths for folder in log_folders(given)]:
        if path.is_dir():
            from ..compliance.submission import check_folder

            checks = check_folder(path, ruleset, official=official)
        else:
            checks = (check_log(path, ruleset, official=official),)
        codes.append(_exit_code(checks[-1].verdict, strict))
        printed.append(list(checks))
    if as_json:
        content: Any = [check.to_dict() for checks in printed for check in checks]
        if len(paths) == 1 and not paths[0].is_dir():
            content = content[0]
        print(json.dumps(content, indent=1, allow_nan=False))
    else:
        # A folder's verdict comes first: it is what was asked for.
        ordered = [check for checks in printed for check in (checks[-1], *checks[:-1])]
        print("\n\n".join("\n".join(check_lines(check)) for check in ordered))
    return max(codes)


def _exit_code(verdict: str, strict: bool) -> int:
    if verdict == CANNOT_READ:
        return 2
    passes = verdict == PASS or (is_valid(verdict) and not strict)
    return int(not passes)


def check_lines(check: Check) -> list[str]:
    """A check for people: verdict and cause first. Nothing in it obeys a terminal's orders."""
    lines = [f"{check.verdict} {check.path}: {check.cause}"]
    lines.append(f"  ruleset {check.ruleset} ({check.ruleset_source})")
    official = check.official
    if official is not None:
        line = f"  official checker {official.version}: {official.verdict}"
        if official.verdict == "NOT_RUN":
            line += f": {official.messages[0]}"
        elif official.verdict == "CRASH":
            line += ": it crashed on this log"
        lines.append(line)
    if check.difference:
        lines.append(f"  the two differ: {check.difference}")
    if check.round_verdict is not None:
        lines.append(
            f"  by the checker of the round itself: {check.round_verdict} (it did not fail some of "
            "what is an error today)"
        )
    for finding in check.findings:
        line = f"  {finding.severity:6} {finding.rule}"
        if finding.line is not None:
            line += f" line {finding.line}"
        line += f": {finding.message}"
        if finding.caused_by:
            line += f" (explained by {finding.caused_by})"
        lines.append(line)
        if more := "; ".join(filter(None, (finding.comparison, finding.advice))):
            lines.append(f"         {more}")
    return [printable(line) for line in lines]
