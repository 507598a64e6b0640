"""The verdict on a log, its one cause, and the official checker's verdict next to it."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..host.errors import UserError
from ..host.finding import ERROR, POLICY, Finding, plain, printable
from ..logging.events import CannotRead, Log
from ..logging.parse import open_pipe, read_log
from ..logging.places import config_of
from ..logging.records import NOT_RUN, PASS, POLICY_VERDICT, Verdict, is_valid
from .log_rules import apply, checked_keys
from .logged_run import LoggedRun, OwnTarget
from .official import check_officially, installed_version
from .rule import LOG
from .ruleset import find_ruleset

FAIL = "FAIL"
CANNOT_READ = "CANNOT_READ"
MISSED = "MISSED"
"""The word for an open run that did all that it was to do but reach its own target. Its verdict is
FAIL, as MLPerf has it."""
VERDICTS = (PASS, POLICY_VERDICT, FAIL, CANNOT_READ)
"""All verdicts, from the best to the worst."""

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
_NOT_OF_THE_ROUND = {
    # warned about: mlcommons/logging 63c9709, 4c04112
    "1.1.0": ("missing-weight-initialization", "weight-initialization-names"),
    # not looked for
    "4.0.0": ("system-status",),
}
"""Errors today that the checker of the round itself only warned about (mlcommons/logging 63c9709,
4c04112) or did not look for."""

UNREADABLE = Finding("MLP000", ERROR, None, "an MLPerf log", "", "", name="unreadable")
OFFICIAL_FAILS = Finding(
    "MLP008",
    ERROR,
    None,
    "PASS of the official checker",
    FAIL,
    "",
    name="official-checker-fails",
)
"""What no rule finds."""
_JOINED = "joined-records"
_NO_SUCCESS = "run-not-successful"

_ON_THE_SET = frozenset({"eval-samples", "train-samples"})
"""Names of the rules that want ImageNet's number of images."""


class Check(NamedTuple):
    """The verdict on a log, a folder or a round; `run` None: it is no log that can be read."""

    path: Path
    verdict: str
    cause: str
    ruleset: str = ""
    ruleset_source: str = ""
    official: Verdict | None = None
    findings: tuple[Finding, ...] = ()
    run: LoggedRun | None = None
    kind: str = LOG
    is_miss: bool = False
    """Nothing else is wrong with it than that it is a `MISSED` run."""

    @property
    def word(self) -> str:
        """The verdict as people read it."""
        return MISSED if self.is_miss else self.verdict

    @property
    def difference(self) -> str:
        """Why this verdict and the official checker's differ, where they do."""
        official = self.official
        if not official or official.verdict == NOT_RUN:
            return ""
        we_fail = self.verdict == FAIL
        # POLICY counts as a pass here: no tool checks it, the official one neither
        if not self.run or we_fail == (official.verdict != PASS):
            return ""
        if we_fail:
            first = self.findings[0]
            return f"the official checker does not test {first.rule}: {first.message}"
        reasons = " ".join(official.messages)[:200]
        return f"the official checker says {official.verdict}: {reasons}"

    @property
    def cause_name(self) -> str:
        """The name of the rule that gives the cause; empty: PASS."""
        finding = _explaining(self.findings)
        return finding.name if finding else ""

    @property
    def round_verdict(self) -> str | None:
        """The verdict with the checker of the round; None where it is today's."""
        only_today = _NOT_OF_THE_ROUND.get(self.ruleset, ())
        errors = tuple(f for f in self.findings if f.name not in only_today)
        return verdict_of(errors) if len(errors) < len(self.findings) else None

    @property
    def is_result(self) -> bool:
        """Whether its time and its score are results: it was valid in its round."""
        return is_valid(self.round_verdict or self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """The check as `rn50 log check --json` prints it."""
        official = self.official
        return {
            "kind": self.kind,
            "path": str(self.path),
            "verdict": self.verdict,
            "cause": self.cause,
            "ruleset": self.ruleset,
            "ruleset_from": self.ruleset_source,
            "official": official
            and {"verdict": official.verdict, "version": official.version},
            "official_reason": " ".join(official.messages if official else ())[:500],
            "difference": self.difference,
            "round_verdict": self.round_verdict,
            "findings": [finding._asdict() for finding in self.findings],
        }


def check_log(
    path: Path,
    ruleset: str | None = None,
    *,
    official: bool | None = None,
    target: OwnTarget | None = None,
) -> Check:
    """Judge one log.

    Raises UserError: a ruleset that has no ResNet.

    Args:
        path: the log.
        ruleset: the round whose rules hold; None: found from the log.
        official: run the official checker too; None: unless the log is huge.
        target: the accuracy at which the run was to end; None: found beside the log.
    """
    log = None
    try:
        log = read_log(path, checked_keys())
        rules = find_ruleset(path, log, ruleset)
    except CannotRead as error:
        official_check = None
        if not log:
            rules = find_ruleset(path, None, ruleset)
            # it may read records that this parser does not, of unknown values
            unread = "records that cannot be read" if error.records else ""
            official_check = _run_official_checker(
                path, log, rules.name, official, unread
            )
        else:  # the ruleset that was asked for is of another format
            rules = find_ruleset(path, log, None)
        finding = UNREADABLE._replace(found=error.reason, message=error.reason)
        return Check(
            path, CANNOT_READ, error.reason, *rules, official_check, (finding,)
        )
    run = LoggedRun(log, rules.name, target or own_target(path.parent))
    official_check = _run_official_checker(path, log, rules.name, official)
    findings = no_milder(tuple(apply(run)), official_check)
    verdict = verdict_of(findings)
    cause = _cause(run, findings)
    errors = {finding.name for finding in findings if finding.severity == ERROR}
    # such a run logs `aborted`, which is its one error
    is_miss = run.miss is not None and errors == {_NO_SUCCESS}
    if run.miss and is_miss:
        cause = (
            f"complete, target {plain(run.own_target.accuracy)} missed: accuracy "
            f"{plain(run.miss.accuracy)} after epoch {plain(run.miss.epoch or 0)}, the last"
        )
    return Check(
        path, verdict, cause, *rules, official_check, findings, run, is_miss=is_miss
    )


def own_target(folder: Path) -> OwnTarget:
    """That of the runs whose logs lie in `folder`: of their config, else the benchmark's."""
    config = config_of(folder)
    if not os.path.lexists(config):
        return OwnTarget()
    from ..config.load import load  # 0.2 s that a log without a config need not pay
    from ..config.plan import build_plan

    try:
        run = load(config, within=config.parent).run
        return OwnTarget(run.eval.target, last_epoch=build_plan(run).eval_epochs[-1])
    except (UserError, OSError, ValueError, RecursionError) as error:
        first_line = str(error).partition("\n")[0]
        return OwnTarget(problem=getattr(error, "strerror", first_line) or first_line)


def verdict_of(findings: Iterable[Finding]) -> str:
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
    if not official_check or official_check.verdict != FAIL:
        return findings
    if verdict_of(findings) == FAIL:
        return findings
    if any(finding.name == _JOINED for finding in findings):
        return findings
    # a message quotes the record behind its reason; " failed" is how a broken rule's ends
    reasons = [line.split(":::")[0].strip(" :") for line in official_check.messages]
    failed = [reason for reason in reasons if " failed" in reason] or reasons
    reason = printable(" ".join(failed)[:200])
    return (
        OFFICIAL_FAILS._replace(message=f"the official checker fails it: {reason}"),
        *findings,
    )


def _explaining(findings: tuple[Finding, ...]) -> Finding | None:
    """What explains the first error, else that error, else the first policy finding; None: PASS."""
    if verdict_of(findings) == PASS:
        return None
    worst = findings[0]
    why = (f for f in findings if f.id == worst.caused_by and not f.caused_by)
    return next(why, worst)


def _cause(run: LoggedRun, findings: tuple[Finding, ...]) -> str:
    """One sentence: what explains the worst finding (and whether both counts of the image set are
    all that is wrong), else how the run ended."""
    if worst := _explaining(findings):
        reasons = {f.name for f in findings if f.severity in (ERROR, POLICY)}
        if reasons == _ON_THE_SET:
            return f"{worst.message}: the set is not ImageNet; no other rule is broken"
        return worst.message
    sentence = "complete run"
    target = run.end or run.target
    if run.needs_target and target:
        sentence = f"converged: {plain(target.accuracy)}"
        if target.epoch is not None:
            sentence += f" at epoch {plain(target.epoch)}"
        sentence += ", run_stop success"
    if run.run_ms is not None:
        sentence += f" after {run.run_ms / 1000:.3f} s"
    return sentence


def _run_official_checker(
    path: Path, log: Log | None, ruleset: str, requested: bool | None, unread: str = ""
) -> Verdict | None:
    """The official verdict; None where it is not asked for, NOT_RUN where it would not be safe."""
    if requested is False:
        return None
    if open_pipe(path) is not None:
        reason = "read from a pipe, which can be read once: save it to a file first"
    elif path.is_file():
        reason = unread or _why_not_run(path, log, unasked=requested is None)
    else:
        return None
    if reason:
        return Verdict(NOT_RUN, "", installed_version(), ruleset, (reason,))
    return check_officially(path, ruleset)


def _why_not_run(path: Path, log: Log | None, *, unasked: bool) -> str:
    """Why the official checker does not read this log; empty: it does."""
    size = path.stat().st_size
    if unasked and size > OFFICIAL_BYTES:
        took_s = size / 1e6 * 0.3  # `OFFICIAL_BYTES`
        return f"{size / 1e6:.0f} MB would take it {took_s:.0f} s; --official runs it"
    if not log:
        return ""
    danger = _danger(log)
    if not danger and unasked and log.longest_bytes > _OFFICIAL_RECORD_BYTES:
        return f"a record of {log.longest_bytes:,} bytes would hold it up; --official runs it"
    return danger


def _danger(log: Log) -> str:
    """Why the official checker must not read this log: it makes file names of three values and
    runs the code in those files (of the optimizer's name in the closed division alone)."""
    keys = _NAMING_KEYS
    # it reads the file of an optimizer in the closed division alone
    if all(event.value == "open" for event in log.all("submission_division")):
        keys = keys[:-1]
    for key in keys:
        values = [event.value for event in log.all(key)]
        if any(not isinstance(v, str) or not re.fullmatch(_WORD, v) for v in values):
            return f"unsafe value of {key}"
    if log.problem_count > len(log.problems):
        return "too many records that cannot be read"
    # It may read what this parser does not.
    if {"form", "long", "twice", "type"} & {problem.fault for problem in log.problems}:
        return "a record whose values are not known"
    return ""
