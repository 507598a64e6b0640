"""The verdict on a log, its one cause, and the official checker's verdict next to it."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from ..config.finding import ERROR, NOTE, POLICY, Finding, plain, printable
from ..logging.events import CannotRead, Log
from ..logging.parse import open_pipe, read_log
from ..logging.records import Verdict
from .log_rules import apply, checked_keys
from .logged_run import LoggedRun
from .official import NOT_RUN, check_officially, installed_version
from .ruleset import find_ruleset

PASS = "PASS"
POLICY_VERDICT = "POLICY"
FAIL = "FAIL"
CANNOT_READ = "CANNOT_READ"

OFFICIAL_BYTES = 16 << 20
"""Beyond it the official checker is not run unasked: it takes 0.3 s and 7 MB a MB. The largest
published log has 3.4 MB."""

_OFFICIAL_RECORD_BYTES = 1 << 16
"""It takes 2 s for a record of 64 KB, and four times as long for one of twice the length."""

_NAMING_KEYS: tuple[str, ...] = (
    "submission_division",
    "submission_benchmark",
    "opt_name",
)
_WORD = r"[A-Za-z0-9_]{1,40}"
_ROUND_ONLY_WARNED = {
    "1.1.0": ("missing-weight-initialization", "weight-initialization-names")
}
"""Errors today that were warnings in the round itself (mlcommons/logging 63c9709, 4c04112)."""

UNREADABLE = ("MLP000", "unreadable")
OFFICIAL_FAILS = ("MLP008", "official-checker-fails")
"""Codes and names of what no rule finds."""
_JOINED = "joined-records"

ON_THE_SET = frozenset({"eval-samples", "train-samples"})
"""Names of the rules that want ImageNet's number of images."""


class Check(NamedTuple):
    """A log's verdict. `round_verdict`: by the checker of its round, where that differs today."""

    path: Path
    verdict: str
    cause: str
    ruleset: str
    ruleset_source: str
    official: Verdict | None
    findings: tuple[Finding, ...]
    difference: str = ""
    round_verdict: str | None = None
    run: LoggedRun | None = None

    def to_dict(self) -> dict[str, Any]:
        """As `rn50 log check --json` prints it."""
        official = None
        reason = ""
        if self.official is not None:
            official = {
                "verdict": self.official.verdict,
                "version": self.official.version,
            }
            reason = " ".join(self.official.messages)[:500]
        return {
            "path": str(self.path),
            "verdict": self.verdict,
            "cause": self.cause,
            "ruleset": self.ruleset,
            "ruleset_from": self.ruleset_source,
            "official": official,
            "official_reason": reason,
            "difference": self.difference,
            "round_verdict": self.round_verdict,
            "findings": [finding._asdict() for finding in self.findings],
        }


def check_log(
    path: Path, ruleset: str | None = None, *, official: bool | None = None
) -> Check:
    """Judge one log.

    Raises UserError: a ruleset that has no ResNet.

    Args:
        path: the log.
        ruleset: the round whose rules hold; None: found from the log.
        official: run the official checker too; None: unless the log is huge.
    """
    log = None
    try:
        log = read_log(path, checked_keys())
        found = find_ruleset(path, log, ruleset)
    except CannotRead as error:
        if log is not None:
            ruleset = None
        found = find_ruleset(path, log, ruleset)
        official_check = None
        # it may read records that this parser does not, of unknown values
        if log is None:
            unread = error.records and "records that cannot be read"
            official_check = _run_official_checker(
                path, None, found.name, official, unread or None
            )
        return Check(
            path=path,
            verdict=CANNOT_READ,
            cause=error.reason,
            ruleset=found.name,
            ruleset_source=found.source,
            official=official_check,
            findings=(
                _finding(UNREADABLE, "an MLPerf log", error.reason, error.reason),
            ),
        )
    run = LoggedRun(log, found.name)
    official_check = _run_official_checker(
        path,
        log,
        found.name,
        official,
    )
    findings = no_milder(tuple(apply(run)), official_check)
    verdict = verdict_of(findings)
    return Check(
        path=path,
        verdict=verdict,
        cause=_cause(run, findings),
        ruleset=found.name,
        ruleset_source=found.source,
        official=official_check,
        findings=findings,
        difference=_difference(verdict, findings, official_check),
        round_verdict=round_verdict(found.name, findings),
        run=run,
    )


def is_valid(verdict: str | None) -> bool:
    """Whether a log, or a submission, of this verdict is a valid result: `log check` and `launch`
    end with exit code 0."""
    return verdict in (PASS, POLICY_VERDICT)


def verdict_of(findings: tuple[Finding, ...]) -> str:
    """FAIL with an error, else POLICY with a policy finding, else PASS."""
    severities = {finding.severity for finding in findings}
    if ERROR in severities:
        return FAIL
    if POLICY in severities:
        return POLICY_VERDICT
    return PASS


def no_milder(
    findings: tuple[Finding, ...], official_check: Verdict | None
) -> tuple[Finding, ...]:
    """The findings, headed by the official checker's failure where they have no error: a log that
    it fails is no valid result. A line with two records is left to `joined-records`: the official
    checker reads only the last of them."""
    if (
        official_check is None
        or official_check.verdict != FAIL
        or verdict_of(findings) == FAIL
    ):
        return findings
    if any(finding.name == _JOINED for finding in findings):
        return findings
    reasons = [line.split(":::")[0].strip(" :") for line in official_check.messages]
    failed = [reason for reason in reasons if " failed" in reason] or reasons
    reason = printable(" ".join(failed)[:200])
    message = f"the official checker fails it: {reason}"
    return (
        _finding(OFFICIAL_FAILS, "PASS of the official checker", FAIL, message),
        *findings,
    )


def _finding(
    rule: tuple[str, str],
    expected: str,
    found: str,
    message: str,
) -> Finding:
    code, name = rule
    return Finding(
        code,
        ERROR,
        None,
        expected,
        found,
        message,
        name=name,
    )


def round_verdict(ruleset: str, findings: tuple[Finding, ...]) -> str | None:
    """The verdict with the checker of the round; None where it is today's."""
    only_warned = _ROUND_ONLY_WARNED.get(ruleset, ())
    if not any(finding.name in only_warned for finding in findings):
        return None
    return verdict_of(tuple(f for f in findings if f.name not in only_warned))


def _cause(run: LoggedRun, findings: tuple[Finding, ...]) -> str:
    """One sentence: what explains the first error, else that error, else the first policy finding
    (and whether it is about the image set alone), else how the run ended."""
    if findings and findings[0].severity != NOTE:
        worst = findings[0]
        if ON_THE_SET.issuperset(one.name for one in findings if one.severity != NOTE):
            return f"{worst.message}: the set is not ImageNet; no other rule is broken"
        why = (f for f in findings if f.id == worst.caused_by and not f.caused_by)
        return next(why, worst).message
    sentence = "complete run"
    target = run.target
    if run.needs_target and target is not None:
        sentence = f"converged: {plain(target.accuracy)}"
        if target.epoch is not None:
            sentence += f" at epoch {plain(target.epoch)}"
        sentence += ", run_stop success"
    if run.run_ms is not None:
        sentence += f" after {run.run_ms / 1000:.3f} s"
    return sentence


def _run_official_checker(
    path: Path,
    log: Log | None,
    ruleset: str,
    asked: bool | None,
    unread: str | None = None,
) -> Verdict | None:
    """The official verdict; None where it is not asked for, NOT_RUN where it would not be safe."""
    if asked is False:
        return None
    if open_pipe(path) is not None:
        once = "read from a pipe, which can be read once: save it to a file first"
        return Verdict(
            NOT_RUN,
            "",
            installed_version(),
            ruleset,
            (once,),
        )
    if not path.is_file():
        return None
    size = path.stat().st_size
    reason = unread
    if reason is None and asked is None and size > OFFICIAL_BYTES:
        took_s = size / 1e6 * 0.3
        reason = f"{size / 1e6:.0f} MB would take it {took_s:.0f} s; --official runs it"
    if reason is None and log is not None:
        reason = unsafe(log)
        if (
            reason is None
            and asked is None
            and log.longest_bytes > _OFFICIAL_RECORD_BYTES
        ):
            reason = f"a record of {log.longest_bytes:,} bytes would hold it up; --official runs it"
    if reason is not None:
        return Verdict(
            NOT_RUN,
            "",
            installed_version(),
            ruleset,
            (reason,),
        )
    return check_officially(path, ruleset)


def unsafe(log: Log) -> str | None:
    """Why the official checker must not read this log: it makes file names of three values and
    runs the code in those files (of the optimizer's name in the closed division alone)."""
    keys = _NAMING_KEYS
    if all(event.value == "open" for event in log.all("submission_division")):
        keys = keys[:-1]
    for key in keys:
        values = [event.value for event in log.all(key)]
        if any(not isinstance(v, str) or not re.fullmatch(_WORD, v) for v in values):
            return f"unsafe value of {key}"
    if log.problem_count > len(log.problems):
        return "too many records that cannot be read"
    # It may read what this parser does not.
    if any(
        problem.kind in ("form", "long", "twice", "type") for problem in log.problems
    ):
        return "a record whose values are not known"
    return None


def _difference(
    verdict: str, findings: tuple[Finding, ...], official_check: Verdict | None
) -> str:
    """Why the two verdicts differ, where they do."""
    if official_check is None or official_check.verdict == NOT_RUN:
        return ""
    ours_fails = verdict == FAIL
    if ours_fails == (official_check.verdict != PASS):
        return ""
    if ours_fails:
        return f"the official checker does not test {findings[0].rule}: {findings[0].message}"
    reasons = " ".join(official_check.messages)[:200]
    return f"the official checker says {official_check.verdict}: {reasons}"
