"""Is a finished run good, for the exit code of `rn50 launch` and of a job? Pure.

The words and the verdict are those of `rn50 log check`. A config's own target decides whether the
run is a success; whether its log is a valid result, the checkers decide.
"""

from __future__ import annotations

from ..compliance.check_log import PASS, is_valid
from ..compliance.official import NOT_RUN
from ..logging.records import SUCCESS, Result, Verdict


def is_good(result: Result) -> bool:
    """Did a run reach its config's target with a log that the checkers pass, as fast as the
    machine's reference?"""
    as_fast = result.reference is None or result.reference.passes
    return result.status == SUCCESS and not objection(result) and as_fast


def objection(result: Result) -> str:
    """What the checkers have against a run's log; empty: nothing. A run that was killed before it
    had their verdicts has an objection too."""
    ours = result.check or Verdict(NOT_RUN)
    official = result.official_checker or Verdict(NOT_RUN)
    if not is_valid(ours.verdict):
        return f"log check says {ours.verdict}: {ours.cause}"
    if official.verdict == PASS:
        return ""
    return f"the official checker says {official.verdict}"
