"""Is a finished run good, for the exit code of `rn50 launch` and of a job? Pure.

The words and the verdict are those of `rn50 log check`. A config's own target decides whether the
run is a success; whether its log is a valid result, the checkers decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..compliance.check_log import PASS, is_valid
from ..compliance.official import NOT_RUN


def is_good(result: Mapping[str, Any]) -> bool:
    """Did a run reach its config's target with a log that the checkers pass, as fast as the
    machine's reference? `result`: of result.json, as `conclude` leaves it."""
    as_fast = _object(result, "reference").get("passes", True)
    return result.get("status") == "success" and not objection(result) and as_fast


def objection(result: Mapping[str, Any]) -> str:
    """What the checkers have against a run's log; empty: nothing. A run that was killed before it
    had their verdicts has an objection too."""
    ours = _object(result, "check")
    official = _object(result, "official_checker").get("verdict", NOT_RUN)
    verdict = ours.get("verdict", NOT_RUN)
    if not is_valid(verdict):
        return f"log check says {verdict}: {ours.get('cause', '')}"
    return "" if official == PASS else f"the official checker says {official}"


def _object(result: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = result.get(key)
    return found if isinstance(found, dict) else {}
