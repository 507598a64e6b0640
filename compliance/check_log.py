"""The verdict on a log, its one cause, and the official checker's verdict next to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from ..config.finding import ERROR, NOTE, POLICY, Finding, plain, printable
from ..logging.events import CannotRead, Log
from ..logging.opening import open_pipe
from ..logging.parse import read_log
from ..logging.wanted import CHECKED
from .log_rules import apply
from .logged_run import Case
from .official import NOT_RUN, Official, check_officially, installed_version
from .ruleset import find_ruleset

PASS, POLICY_VERDICT, FAIL, CANNOT_READ = "PASS", "POLICY", "FAIL", "CANNOT_READ"

OFFICIAL_BYTES = 16 << 20
"""Beyond it the official checker is not run unasked: it takes 0.3 s and 7 MB a MB. The largest
published log has 3.4 MB."""

_OFFICIAL_MOST_BYTES = 256 << 20
_OFFICIAL_RECORD_BYTES = 1 << 16
"""It takes 2 s for a record of 64 KB, and four times as long for one of twice the length."""

_NAMING_KEYS = ("submission_division", "submission_benchmark", "opt_name")
_WORD = re.compile(r"[A-Za-z0-9_]{1,40}")
_ROUND_ONLY_WARNED = {"1.1.0": ("WEIGHT_INIT_MISSING", "WEIGHT_INIT_NAMES")}
"""Errors today that were warnings in the round itself (mlcommons/logging 63c9709, 4c04112)."""

JOINED = "JOINED"

ON_THE_SET = frozenset({"R05", "R06"})
"""Rules that want ImageNet's number of images."""


class Check(NamedTuple):
    """A log's verdict. `round_verdict`: by the checker of its round, where that differs today."""

    path: Path
    verdict: str
    cause: str
    ruleset: str
    ruleset_source: str
    official: Official | None
    findings: tuple[Finding, ...]
    difference: str = ""
    round_verdict: str | None = None
    case: Case | None = None

    def to_dict(self) -> dict[str, Any]:
        """As `rn50 log check --json` prints it."""
        official = self.official
        return {
            "path": str(self.path),
            "verdict": self.verdict,
            "cause": self.cause,
            "ruleset": self.ruleset,
            "ruleset_from": self.ruleset_source,
            "official": None
            if official is None
            else {"verdict": official.verdict, "version": official.version},
            "official_reason": "" if official is None else " ".join(official.messages)[:500],
            "difference": self.difference,
            "round_verdict": self.round_verdict,
            "findings": [finding._asdict() for finding in self.findings],
        }


def check_log(path: Path, ruleset: str | None = None, *, official: bool | None = None) -> Check:
    """Judge one log.

    Args:
        path: the log.
        ruleset: the round whose rules hold; None: found from the log.
        official: run the official checker too; None: unless the log is huge.

    Raises:
        UserError: a ruleset that has no ResNet.
    """
    try:
        log = read_log(path, CHECKED)
    except CannotRead as error:
        found = find_ruleset(path, None, ruleset)
        # It may read records that this parser does not, whose values are unknown.
        unread = "records that cannot be read" if error.records else None
        referee = _referee(path, None, found.name, official, unread)
        return _unreadable(path, error, found.name, found.source, referee)
    try:
        found = find_ruleset(path, log, ruleset)
        _all_kept(path, log)
    except CannotRead as error:
        own = find_ruleset(path, log, None)
        return _unreadable(path, error, own.name, own.source, None)
    case = Case(log, found.name, found.doubts)
    referee = _referee(path, log, found.name, official)
    findings = no_milder(tuple(apply(case)), referee)
    verdict = verdict_of(findings)
    return Check(
        path,
        verdict,
        _cause(case, findings),
        found.name,
        found.source,
        referee,
        findings,
        _difference(verdict, findings, referee),
        round_verdict(found.name, findings),
        case,
    )


def _all_kept(path: Path, log: Log) -> None:
    """Raises CannotRead where a record that a rule would read was not kept: no verdict."""
    more = log.overflow
    if more is not None:
        raise CannotRead(
            path,
            f"{more.records:,} records that say something new, from line {more.line} ({more.key}) "
            "on, are more than a log of one run has and could not be kept",
        )


def verdict_of(findings: tuple[Finding, ...]) -> str:
    """FAIL with an error, else POLICY with a policy finding, else PASS."""
    severities = {finding.severity for finding in findings}
    return FAIL if ERROR in severities else POLICY_VERDICT if POLICY in severities else PASS


def no_milder(findings: tuple[Finding, ...], referee: Official | None) -> tuple[Finding, ...]:
    """The findings, headed by one of the official checker's failure where they have no error: what
    it fails is no valid result, whatever it saw. (Of a line with two records it sees the last
    alone: JOINED.)"""
    if referee is None or referee.verdict != FAIL or verdict_of(findings) == FAIL:
        return findings
    if any(finding.id == JOINED for finding in findings):
        return findings
    reasons = [line.split(":::")[0].strip(" :") for line in referee.messages]
    failed = [reason for reason in reasons if " failed" in reason] or reasons
    reason = printable(" ".join(failed)[:200])
    message = f"the official checker fails it: {reason}"
    own = Finding("OFFICIAL", ERROR, None, "PASS of the official checker", FAIL, message)
    return (own, *findings)


def round_verdict(ruleset: str, findings: tuple[Finding, ...]) -> str | None:
    """The verdict with the checker of the round; None where it is today's."""
    only_warned = _ROUND_ONLY_WARNED.get(ruleset, ())
    if not any(finding.id in only_warned for finding in findings):
        return None
    return verdict_of(tuple(f for f in findings if f.id not in only_warned))


def _unreadable(
    path: Path, error: CannotRead, ruleset: str, source: str, referee: Official | None
) -> Check:
    finding = Finding("READ", ERROR, None, "an MLPerf log", error.reason, error.reason)
    return Check(path, CANNOT_READ, error.reason, ruleset, source, referee, (finding,))


def _cause(case: Case, findings: tuple[Finding, ...]) -> str:
    """One sentence: what explains the first error, else that error, else the first policy finding,
    else how the run ended."""
    if findings and findings[0].severity != NOTE:
        return _root(findings).message
    time_s = "" if case.run_ms is None else f" after {case.run_ms / 1000:.3f} s"
    if not case.needs_target or not case.passing:
        return f"complete run{time_s}"
    target = case.passing[0]
    epoch = "" if target.epoch is None else f" at epoch {plain(target.epoch)}"
    return f"converged: {plain(target.accuracy)}{epoch}, run_stop success{time_s}"


def _root(findings: tuple[Finding, ...]) -> Finding:
    """The worst finding, or what explains it."""
    worst = findings[0]
    why = (f for f in findings if f.id == worst.caused_by and not f.caused_by)
    return next(why, worst)


def _referee(
    path: Path, log: Log | None, ruleset: str, wanted: bool | None, unread: str | None = None
) -> Official | None:
    """The official verdict; None where nobody wants it, NOT_RUN where it would not be safe."""
    if wanted is False:
        return None
    if open_pipe(path) is not None:
        once = "read from a pipe, which can be read once: save it to a file first"
        return Official(NOT_RUN, installed_version(), ruleset, (once,))
    if not path.is_file():
        return None
    size = path.stat().st_size
    reason = unread
    if reason is None and size > (OFFICIAL_BYTES if wanted is None else _OFFICIAL_MOST_BYTES):
        orders = "; --official runs it" if size <= _OFFICIAL_MOST_BYTES else ""
        reason = f"{size / 1e6:.0f} MB would take it {size / 1e6 * 0.3:.0f} s{orders}"
    if reason is None and log is not None:
        reason = _unsafe(log)
        if reason is None and wanted is None and log.longest_bytes > _OFFICIAL_RECORD_BYTES:
            reason = f"a record of {log.longest_bytes:,} bytes would hold it up; --official runs it"
    if reason is not None:
        return Official(NOT_RUN, installed_version(), ruleset, (reason,))
    return check_officially(path, ruleset)


def _unsafe(log: Log) -> str | None:
    """Why the official checker must not read this log: it makes file names of three values and
    runs the code in those files (of the optimizer's name in the closed division alone)."""
    if log.overflow is not None:
        return "records whose values are not known"
    open_alone = all(event.value == "open" for event in log.all("submission_division"))
    for key in _NAMING_KEYS[:-1] if open_alone else _NAMING_KEYS:
        values = [event.value for event in log.all(key)]
        if any(not isinstance(v, str) or not _WORD.fullmatch(v) for v in values):
            return f"unsafe value of {key}"
    for problem in log.problems:
        # Of the others it reads nothing either. The key of one that was skipped is a guess.
        unseen = problem.kind == "form" or (problem.lost and problem.kind in ("type", "long"))
        known = problem.kind == "type" and problem.key is not None
        if unseen and not (known and problem.key not in _NAMING_KEYS):
            return "a record whose values are not known"
    if log.problem_count > len(log.problems):
        return "too many records that cannot be read"
    return None


def _difference(verdict: str, findings: tuple[Finding, ...], referee: Official | None) -> str:
    """Why the two verdicts differ, where they do."""
    if referee is None or referee.verdict == NOT_RUN:
        return ""
    ours_fails = verdict == FAIL
    if ours_fails == (referee.verdict != PASS):
        return ""
    if ours_fails:
        return f"the official checker does not test {findings[0].id}: {findings[0].message}"
    if any(finding.id == JOINED for finding in findings):
        return "the official checker reads the last record of a line alone"
    return f"the official checker says {referee.verdict}: " + " ".join(referee.messages)[:200]
