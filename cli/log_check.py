"""`rn50 log check`: what it prints, and its exit code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..compliance.check_log import CANNOT_READ, Check
from ..host.exit_codes import EXIT_BAD, EXIT_USAGE
from ..host.finding import Finding, printable
from ..host.progress import Progress, silent
from ..logging.places import log_folders
from ..logging.records import NOT_RUN, PASS, is_valid
from .console import print_json, track


def run_check(
    paths: Sequence[Path],
    ruleset: str | None,
    *,
    strict: bool,
    official: bool | None,
    as_json: bool,
) -> int:
    """Check logs and folders, print the verdicts; returns the exit code, the worst of all.

    Args:
        paths: logs, folders of logs, or folders above them.
        ruleset: the round whose rules hold; None: found from each log.
        strict: whether policy findings fail too.
        official: whether the official checker judges too; None: logs that are not huge.
        as_json: whether to print JSON.
    """
    from ..compliance.round import judge_all

    folders = [folder for path in paths for folder in log_folders(path)]
    advance: Progress = track("checking") if len(folders) > 1 else silent
    codes = []
    content = []
    # one by one, so that the first verdict is printed before the last log is read
    judged = judge_all(
        folders,
        ruleset,
        official=official,
        advance=advance,
        top=paths[0] if len(paths) == 1 else None,
    )
    for number, checks in enumerate(judged):
        codes.append(_exit_code(checks[-1].verdict, strict))
        if as_json:
            content += [check.to_dict() for check in checks]
            continue
        if number:
            print()
        # A folder's verdict comes first: it is what was asked for.
        ordered = (checks[-1], *checks[:-1])
        print("\n\n".join("\n".join(check_lines(check)) for check in ordered))
    if as_json:
        is_log = len(paths) == 1 and not paths[0].is_dir()
        printed = content[0] if is_log else content
        print_json(printed, allow_nan=False)
    return max(codes)


def _exit_code(verdict: str, strict: bool) -> int:
    if verdict == CANNOT_READ:
        return EXIT_USAGE
    passes = verdict == PASS or (is_valid(verdict) and not strict)
    return 0 if passes else EXIT_BAD


def check_lines(check: Check) -> list[str]:
    """A check for people: verdict and cause first. Nothing in it obeys a terminal's orders."""
    lines = [f"{check.word} {check.path}: {check.cause}"]
    if check.ruleset:
        lines.append(f"  ruleset {check.ruleset} ({check.ruleset_source})")
    official = check.official
    if official is not None:
        line = f"  official checker {official.version}: {official.verdict}"
        if official.verdict == NOT_RUN:
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
    lines += [line for finding in check.findings for line in _finding_lines(finding)]
    return [printable(line) for line in lines]


def _finding_lines(finding: Finding) -> Iterator[str]:
    line = f"  {finding.severity:6} {finding.rule}"
    if finding.line is not None:
        line += f" line {finding.line}"
    line += f": {finding.message}"
    if finding.caused_by:
        line += f" (explained by {finding.caused_by})"
    yield line
    if more := "; ".join(filter(None, (finding.comparison, finding.advice))):
        yield f"         {more}"
