"""The score of a submission: run times, olympic mean, RCP test and normalisation factor.

Reads alone: no scaling.json is written or removed (the official tools do both).
Source: mlcommons/logging 4.1.68, result_summarizer and rcp_checker; training_rules.adoc lines 509,
530, 954.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..config import benchmark
from ..config.finding import number
from ..config.reading import JsonObject, read_object
from .check_log import Check
from .rcp import FIRST_RULESET, SCALED_FROM, Reference, Verdict
from .run_scores import RunScore, judge_convergence, left_out, newest, run_score
from .submission import check_folder

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
    notes: tuple[str, ...]

    def to_dict(self) -> JsonObject:
        """As `rn50 log score --json` prints it."""
        return self._asdict() | {
            "path": str(self.path),
            "rcp": self.rcp and _rcp_dict(self.rcp),
            "runs": [run._asdict() | {"path": str(run.path)} for run in self.runs],
            "notes": list(self.notes),
        }


def _rcp_dict(rcp: Verdict) -> JsonObject:
    reference = rcp.reference or Reference("", (), math.nan, math.nan)
    return {
        "verdict": rcp.word,
        "reason": rcp.reason,
        "submission_mean": rcp.mean,
        "kind": reference.kind or None,
        "batches": list(reference.batches),
        "mean": number(reference.mean),
        "min": number(reference.minimum),
        "factor": rcp.factor,
    }


def score_folder(folder: Path, ruleset: str | None = None) -> Score:
    """Score the result files of a folder.

    Raises UserError: no result files, or a ruleset without ResNet.

    Args:
        folder: the submission.
        ruleset: None: found from the logs.
    """
    return score_checks(folder, check_folder(folder, ruleset, official=False))


def score_checks(folder: Path, judged: Sequence[Check]) -> Score:
    """Score a folder that has been judged: `judged` has the verdicts on its logs and, last, on
    itself, as `check_folder` gives them."""
    *checks, whole = judged
    logged = [check.run for check in checks if check.run is not None]
    name = newest(checks)
    division = next((run.division for run in logged if run.division), None)
    runs, mean_min = _olympic([run_score(check) for check in checks])
    rcp = judge_convergence(checks)
    factor = 1.0
    if rcp is not None:
        factor = rcp.factor
    applies = rcp is not None and rcp.passed and division == "closed"
    scaled = applies and benchmark.at_least(name, SCALED_FROM) and factor != 1.0
    score = mean_min
    if score is not None and scaled:
        score *= factor
    committees = read_object(folder / "scaling.json", _SCALING_BYTES)
    published = number(committees.get("scaling_factor"))
    return Score(
        folder,
        whole.verdict,
        whole.cause,
        name,
        division,
        score,
        mean_min,
        factor,
        scaled,
        published,
        rcp,
        tuple(runs),
        tuple(_notes(runs, division, rcp, factor, scaled, published)),
    )


def _olympic(runs: list[RunScore]) -> tuple[list[RunScore], float | None]:
    """Drop the fastest and the slowest (a run that is not valid is the slowest, whatever its clock
    says)."""
    out = left_out(runs)
    good = [run for at, run in enumerate(runs) if at not in out]
    failed = len(out)
    if failed > benchmark.RUNS_THAT_MAY_FAIL or len(runs) != benchmark.RUNS:
        return runs, None
    order = sorted(good, key=lambda run: run.minutes or 0.0)
    marks = {order[0].path: "fastest"}
    if not failed:
        marks[order[-1].path] = "slowest"
    for at in out:
        marks[runs[at].path] = f"slowest: {runs[at].dropped or runs[at].invalid}"
    runs = [run._replace(dropped=marks.get(run.path, "")) for run in runs]
    kept = [run.minutes for run in runs if not run.dropped and run.minutes is not None]
    if not kept:
        return runs, None
    return runs, sum(kept) / len(kept)


def _notes(
    runs: list[RunScore],
    division: str | None,
    rcp: Verdict | None,
    factor: float,
    scaled: bool,
    published: float | None,
) -> list[str]:
    notes = []
    failed = sum(not run.converged for run in runs)
    if failed > benchmark.RUNS_THAT_MAY_FAIL:
        notes.append(f"no score: {failed} of {len(runs)} runs failed, at most one may")
    if len(runs) != benchmark.RUNS:
        count = f"{len(runs)} run{'s' * (len(runs) != 1)}"
        notes.append(f"no score: {count}, a score needs {benchmark.RUNS}")
    if rcp is None:
        notes.append(f"no RCP test: none before {FIRST_RULESET}")
    elif division != "closed":
        notes.append(
            "the RCP test is for information: it binds the closed division alone"
        )
    elif factor != 1.0 and not scaled:
        why = "published unscaled in this round" if rcp.passed else "the RCP test fails"
        notes.append(f"factor {factor:.10f} is not applied: {why}")
    if published is not None and abs(published - factor) > 1e-9:
        notes.append(
            f"scaling.json says {published:.10f}, computed {factor:.10f} (used)"
        )
    return notes
