"""`rn50 log check`: what it prints of a verdict, and the exit code of one."""

from __future__ import annotations

from collections.abc import Iterator

from ..compliance.check_log import CANNOT_READ, Check
from ..host.exit_codes import EXIT_BAD, EXIT_USAGE
from ..host.finding import Finding, printable
from ..logging.records import NOT_RUN, PASS, is_valid


def exit_code(verdict: str, *, strict: bool) -> int:
    """The exit code of a verdict; `strict`: policy findings fail too."""
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
