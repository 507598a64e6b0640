"""`rn50 log check`: its options, what it prints, its exit code.

The one command whose options argparse reads: it is what people put into loops over logs, and to
load Typer takes as long as to check a log. `rn50 log` hands it its arguments as they are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from ..compliance.check_log import CANNOT_READ, FAIL, POLICY_VERDICT, Check, check_log
from ..config.errors import UserError
from ..config.finding import printable
from ..logging.places import log_folders

HELP = """Check logs against the MLPerf rules of their round: one verdict, its cause, what to do.

Verdicts: PASS; POLICY (passes, but breaks rules that no tool checks); FAIL; CANNOT_READ. The
verdict of the official checker is printed beside ours. Reads logs of any round, by any program.

Exit 0: PASS or POLICY; 1: FAIL, with --strict POLICY too; 2: CANNOT_READ.

Example: rn50 log check results/quick/20261121T080000Z/result_0.txt
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see rn50 log check --help")


def _parser() -> _Parser:
    parser = _Parser(
        prog="rn50 log check",
        description=HELP,
        # a width of its own, as argparse would load shutil for the terminal's: 4 ms
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=100),
        allow_abbrev=False,
    )
    add = parser.add_argument
    paths = "Logs; folders of runs, jobs, submissions (results/SYSTEM/resnet in them)."
    add("paths", nargs="+", type=Path, metavar="PATH", help=paths)
    rounds = "Rules of a round, such as 4.0.0; default: found from the log."
    add("--ruleset", metavar="TEXT", help=rounds)
    add("--strict", action="store_true", help="Policy findings fail too: exit 1.")
    official = "Run the official checker too; default: unless a log is huge."
    add("--official", action=argparse.BooleanOptionalAction, help=official)
    add("--json", action="store_true", help="Print JSON for programs.")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Check what the arguments name; returns the exit code. Raises UserError: bad arguments."""
    given = _parser().parse_intermixed_args(arguments)
    return run_check(
        given.paths,
        given.ruleset,
        strict=given.strict,
        official=given.official,
        as_json=given.json,
    )


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
    printed: list[list[Check]] = []
    for path in [folder for given in paths for folder in log_folders(given)]:
        if path.is_dir():
            from ..compliance.submission import check_folder

            checks = check_folder(path, ruleset, official=official)
        else:
            checks = (check_log(path, ruleset, official=official),)
        codes.append(_exit_code(checks[-1].verdict, strict))
        printed.append(list(checks))
    if as_json:
        content = [check.to_dict() for checks in printed for check in checks]
        alone = len(paths) == 1 and not paths[0].is_dir()
        print(json.dumps(content[0] if alone else content, indent=1, allow_nan=False))
    else:
        # A folder's verdict comes first: it is what was asked for.
        ordered = [check for checks in printed for check in (checks[-1], *checks[:-1])]
        print("\n\n".join("\n".join(check_lines(check)) for check in ordered))
    return max(codes)


def _exit_code(verdict: str, strict: bool) -> int:
    if verdict == CANNOT_READ:
        return 2
    return 1 if verdict == FAIL or (strict and verdict == POLICY_VERDICT) else 0


def check_lines(check: Check) -> list[str]:
    """A check for people: verdict and cause first. Nothing in it obeys a terminal's orders."""
    lines = [f"{check.verdict} {check.path}: {check.cause}"]
    lines.append(f"  ruleset {check.ruleset} ({check.ruleset_source})")
    official = check.official
    if official is not None:
        why = f": {official.messages[0]}" if official.verdict == "NOT_RUN" else ""
        crashed = ": it crashed on this log" if official.verdict == "CRASH" else ""
        lines.append(f"  official checker {official.version}: {official.verdict}{why}{crashed}")
    if check.difference:
        lines.append(f"  the two differ: {check.difference}")
    if check.round_verdict is not None:
        lines.append(
            f"  by the checker of the round itself: {check.round_verdict} (it only warned about "
            "weights_initialization)"
        )
    for finding in check.findings:
        place = "" if finding.line is None else f" line {finding.line}"
        explained = f" (explained by {finding.caused_by})" if finding.caused_by else ""
        lines.append(f"  {finding.severity:6} {finding.rule}{place}: {finding.message}{explained}")
        parts = []
        if finding.expected:
            parts.append(f"expected {finding.expected}, found {finding.found or 'none'}")
        if finding.advice:
            parts.append(finding.advice)
        if parts:
            lines.append(f"         {'; '.join(parts)}")
    return [printable(line) for line in lines]
