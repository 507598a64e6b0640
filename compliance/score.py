"""The score of a submission: run times, olympic mean, RCP test and normalisation factor.

Reads alone: no scaling.json is written or removed (the official tools do both).
Source: mlcommons/logging 4.1.68, result_summarizer and rcp_checker; training_rules.adoc lines 509,
530, 954.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..config import benchmark
from ..host.errors import UserError
from ..host.finding import number
from ..host.reading import JsonObject, read_object
from .check_log import Check
from .rcp import FIRST_RULESET, SCALED_FROM, Reference, Verdict
from .run_scores import RunScore, judge_convergence, left_out, newest, run_score

_SCALING_BYTES = 1 << 16


class Score(NamedTuple):
    """`score_min` is None where there is none; it includes `scaling_factor` if `scaled`. `verdict`
    and `cause` are those of the folder's check as a submission: a score of a FAIL is no result."""

    path: Path
    verdict: str
    cause: str
    ruleset: str
    division: str | None
    score_min: float | None
    unscaled_min: float | None
    """The olympic mean."""
    scaling_factor: float
    scaled: bool
    published_factor: float | None
    rcp: Verdict | None
    runs: tuple[RunScore, ...]
    unread: str = ""
    """Why scaling.json cannot be read."""

    @property
    def notes(self) -> list[str]:
        """What keeps a score away, or a factor from it."""
        notes = []
        count = len(self.runs)
        failed = sum(not run.converged for run in self.runs)
        if failed > benchmark.RUNS_THAT_MAY_FAIL:
            notes.append(f"no score: {failed} of {count} runs failed, at most one may")
        if count != benchmark.RUNS:
            runs = "1 run" if count == 1 else f"{count} runs"
            notes.append(f"no score: {runs}, a score needs {benchmark.RUNS}")
        factor = f"{self.scaling_factor:.10f}"
        if not self.rcp:
            notes.append(f"no RCP test: none before {FIRST_RULESET}")
        elif self.division != "closed":
            notes.append(
                "the RCP test is for information: it binds the closed division alone"
            )
        elif self.scaling_factor != 1.0 and not self.scaled:
            why = "the RCP test fails"
            if self.rcp.passed:
                why = "published unscaled in this round"
            notes.append(f"factor {factor} is not applied: {why}")
        published = self.published_factor
        if published is not None and abs(published - self.scaling_factor) > 1e-9:
            notes.append(
                f"scaling.json says {published:.10f}, computed {factor} (used)"
            )
        if self.unread:
            notes.append(self.unread)
        return notes

    def to_dict(self) -> JsonObject:
        """The score as `rn50 log score --json` prints it."""
        return self._asdict() | {
            "path": str(self.path),
            "rcp": self.rcp and _rcp_dict(self.rcp),
            "runs": [run._asdict() | {"path": str(run.path)} for run in self.runs],
            "notes": self.notes,
        }


def _rcp_dict(rcp: Verdict) -> JsonObject:
    reference = rcp.reference or Reference("", (), math.nan, math.nan)
    return {
        "verdict": rcp.word,
        "reason": rcp.reason,
        "submission_mean": rcp.mean,
        "kind": reference.position or None,
        "batches": list(reference.batches),
        "mean": number(reference.mean),
        "min": number(reference.minimum),
        "factor": rcp.factor,
    }


def score_checks(judged: Sequence[Check]) -> Score:
    """Score a folder that has been judged: `judged` has the verdicts on its logs and, last, on
    itself, as `judge_path` gives them."""
    *checks, folder_check = judged
    folder = folder_check.path
    ruleset = newest(checks)
    divisions = [check.run.division for check in checks if check.run]
    # as of a submission (`Submission.closed`)
    is_closed = "closed" in divisions
    division = "closed" if is_closed else next(filter(None, divisions), None)
    runs, mean_min = _olympic([run_score(check) for check in checks])
    rcp = judge_convergence(checks)
    factor = 1.0 if rcp is None else rcp.factor
    scaled = (
        rcp is not None
        and rcp.passed
        and division == "closed"
        and benchmark.at_least(ruleset, SCALED_FROM)
        and factor != 1.0
    )
    score = mean_min
    if score is not None and scaled:
        score *= factor
    published = None
    unread = ""
    try:
        scaling = read_object(folder / "scaling.json", _SCALING_BYTES)
        published = number(scaling.get("scaling_factor"))
    except UserError as error:
        unread = str(error)
    return Score(
        path=folder,
        verdict=folder_check.verdict,
        cause=folder_check.cause,
        ruleset=ruleset,
        division=division,
        score_min=score,
        unscaled_min=mean_min,
        scaling_factor=factor,
        scaled=scaled,
        published_factor=published,
        unread=unread,
        rcp=rcp,
        runs=tuple(runs),
    )


def _olympic(runs: list[RunScore]) -> tuple[list[RunScore], float | None]:
    """Drop the fastest and the slowest (a run that is not valid is the slowest, whatever its clock
    says)."""
    out = left_out(runs)
    if len(out) > benchmark.RUNS_THAT_MAY_FAIL or len(runs) != benchmark.RUNS:
        return runs, None
    good = [run for index, run in enumerate(runs) if index not in out]
    order = sorted(good, key=lambda run: run.minutes or 0.0)
    marks = {order[0].path: "fastest"}
    # a run that is not valid is the slowest already
    if not out:
        marks[order[-1].path] = "slowest"
    for index in out:
        marks[runs[index].path] = (
            f"slowest: {runs[index].dropped or runs[index].invalid}"
        )
    runs = [run._replace(dropped=marks.get(run.path, "")) for run in runs]
    minutes = [
        run.minutes for run in runs if not run.dropped and run.minutes is not None
    ]
    return runs, sum(minutes) / len(minutes) if minutes else None
