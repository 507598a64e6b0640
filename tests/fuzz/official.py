"""Mutants of logs judged by the official checker and by ours: where they differ, it is meant."""

from __future__ import annotations

import contextlib
import io
import json
import signal
from pathlib import Path

from mlperf_logging.compliance_checker import mlp_compliance

from rn50.compliance.check_log import Check, _unsafe, check_log
from rn50.compliance.log_rules import RULES
from rn50.compliance.rule import CHECKER
from rn50.config import benchmark
from tests.fuzz import logs
from tests.fuzz.case import Case, Wrong, rng_of
from tests.fuzz.runner import MOST_S, TooLong

_EDITS = tuple(edit for edit in logs.EDITS if edit.__name__ not in ("_flood", "_noise"))
_MOST_S = 2  # of CPU time
JOINED: dict[str, str] = {
    "joined-records": "two records on a line: the official checker reads the last alone",
}
"""Findings with which the two may differ in both directions."""
STRICTER: dict[str, str] = {
    "broken-record": "records that the official parser does not see or takes for something else: "
    "a tab after the token, another format, a name twice, a stamp that is no time",
    "run-not-successful": "a status that is not success: from 0.7.0 on officially any will do",
    "two-runs": "a second run in records that the official parser does not see",
}
"""Rules of the official checker that ours holds a log to where it does not itself."""
_THEIRS = {rule.name for rule in RULES if CHECKER in rule.source}


def case(seed: int, folder: Path) -> Case:
    """A mutant of one to three edits; compared only where the official checker may read it."""
    rng = rng_of("official", seed)
    lines, name = logs.base(rng)
    edits = [rng.choice(_EDITS) for _ in range(rng.choice((1, 1, 2, 3)))]
    for edit in edits:
        edit(rng, lines)
    path = folder / "result_0.txt"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    ruleset = rng.choice(benchmark.RULESETS) if rng.random() < 0.1 else None

    def compare() -> None:
        ours = check_log(path, ruleset, official=False)
        if ours.run is None or _unsafe(ours.run.log):
            return
        theirs = judge(path, ours.ruleset)
        if theirs is not None and (problem := difference(ours, theirs)):
            raise Wrong(problem)

    done = ", ".join(edit.__name__.strip("_") for edit in edits)
    return Case(f"{name}: {done}", (compare,))


def judge(path: Path, ruleset: str) -> str | None:
    """PASS, FAIL or CRASH of the official checker in this process; None: it takes too long.

    What it has queued from a crash before is emptied. Only for logs that are safe by `_unsafe`.
    """
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", ruleset, True, False)
    signal.setitimer(signal.ITIMER_PROF, _MOST_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            valid, *_ = mlp_compliance.main(str(path), f"training_{ruleset}/common.yaml", checker)
    except Exception as error:
        return f"CRASH {type(error).__name__}"
    except TooLong:  # its expressions go back and forth over some lines for minutes
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, MOST_S)
    return "PASS" if valid else "FAIL"


def difference(ours: Check, theirs: str) -> str | None:
    """What is not meant about two verdicts, or None."""
    json.dumps(ours.to_dict(), allow_nan=False)
    if any(finding.name in JOINED for finding in ours.findings):
        return None
    if theirs == "PASS":
        errors = {finding.name for finding in ours.findings if finding.severity == "error"}
        if errors and errors <= _THEIRS - set(STRICTER):
            return f"the official checker passes what ours fails by {errors}: {ours.cause}"
        return None
    if ours.verdict in ("FAIL", "CANNOT_READ"):
        return None
    return f"the official checker says {theirs}, ours {ours.verdict}: {ours.cause}"
