"""The top of a report: what a run is, how it ended, its figures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from statistics import median
from typing import NamedTuple

from ..compliance.check_log import ON_THE_SET, Check
from ..config.finding import NOTE, clock_time, number
from .compare import name_of
from .run_folder import Subject
from .run_summary import MISSING, RunSummary, amount, show


class Fact(NamedTuple):
    """One of the figures at the top."""

    label: str
    value: str
    note: str


def title(subject: Subject) -> str:
    """Return the name of the config, else the submitter and the system in the log."""
    if subject.folder and subject.folder.config:
        return subject.folder.config.run.name
    named = subject.first.submission if subject.first else {}
    return " ".join(named[key] for key in ("org", "platform") if key in named) or name_of(subject)


def started(subject: Subject) -> str | None:
    """Return when the clock started, in UTC, from the log."""
    event = subject.logs[0].log.first("run_start") if subject.logs else None
    if event is None or event.time_ms <= 0:
        return None
    with suppress(ValueError, OverflowError, OSError):  # no date that a calendar has
        moment = datetime.fromtimestamp(event.time_ms / 1000, tz=timezone.utc)
        return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return None


def outcome(subject: Subject) -> str:
    """Return how a run ended, in a sentence; of a run that missed its target, why."""
    result = subject.folder.result if subject.folder else {}
    status, reason = result.get("status"), result.get("reason") or result.get("stopped")
    if status in ("failed", "aborted") and reason is not None:
        ended = "failed" if status == "failed" else "was aborted"
        return f"The run {ended}: {show(reason, 2000)}."
    if not subject.logs:
        return "No log that can be read."
    if len(subject.logs) > 1:
        reached = sum(run.reached is not None for run in subject.runs)
        return f"{reached} of {len(subject.logs)} runs reached the target."
    run = subject.runs[0]
    if run.reached is not None:
        when = "" if run.reached.epoch is None else f" after epoch {run.reached.epoch:g}"
        ended = "" if run.status == "success" else f", run_stop {run.status or 'missing'}"
        return f"Reached {run.reached.accuracy:.5g} top-1{when}, target {run.target:g}{ended}."
    if run.best is None:
        return "No evaluation in the log."
    return f"Did not reach {run.target:g}: best top-1 {run.best.accuracy:.5g}."


def next_command(subject: Subject) -> str | None:
    """Return the command that resumes a run or starts it anew, where its result.json has one."""
    command = subject.folder.result.get("next") if subject.folder else None
    return show(command, 2000) if isinstance(command, str) and command else None


def data_logged(subject: Subject) -> str | None:
    """Return the counts of images in the log."""
    logged = subject.first.parameters if subject.first else {}
    train, evaluation = (number(logged.get(f"{split}_samples")) for split in ("train", "eval"))
    if train is None or evaluation is None:
        return None
    return f"{train:,.0f} training and {evaluation:,.0f} evaluation images, by the log"


def facts(subject: Subject) -> list[Fact]:
    """Return the figures at the top; of several runs the medians."""
    runs = subject.runs
    if not runs:
        return []
    found = [_time(runs)]
    shown = next((run.reached for run in runs if run.reached), None) or runs[0].best
    if shown is not None:
        epoch = "" if shown.epoch is None else f", epoch {shown.epoch:g}"
        note = f"target {runs[0].target:g}{epoch}{_top5(subject, shown.epoch)}"
        found.append(Fact("Top-1", f"{shown.accuracy:.4f}", note))
    rates = [run.images_per_s for run in runs if run.images_per_s is not None]
    if rates:
        found.append(Fact("Throughput", amount(median(rates), "images/s"), "evaluations excluded"))
    if (batch := runs[0].batch) is not None:
        ranks = subject.folder.result.get("ranks") if subject.folder else None
        on = f"on {show(ranks)} ranks" if ranks is not None else "images"
        found.append(Fact("Global batch", f"{batch:,.0f}", on))
    inits = [run.init_s for run in runs if run.init_s is not None]
    if inits:
        found.append(Fact("Init", amount(median(inits), "s"), "not in the time to train"))
    return found


def _time(runs: Sequence[RunSummary]) -> Fact:
    """Only a run that reached its target has a time to train."""
    stopped = [run for run in runs if run.run_s is not None]
    reached = [run for run in stopped if run.reached]
    if not stopped:
        return Fact("Clock at run_stop", MISSING, "no run_stop in the log")
    time_s = median(run.run_s or 0.0 for run in reached or stopped)
    label = "Time to train" if reached else "Clock at run_stop"
    note = clock_time(time_s) if time_s >= 120 else "run_start to run_stop"
    return Fact(
        label if len(runs) < 2 else f"{label}, median",
        amount(time_s, "s"),
        note if reached else "target not reached",
    )


def _top5(subject: Subject, epoch: float | None) -> str:
    """The top-5 accuracy after `epoch`, from metrics.jsonl, which a bare log has not."""
    for record in subject.folder.records("eval") if subject.folder else ():
        correct, total = number(record.get("correct_top5")), number(record.get("total"))
        if number(record.get("epoch")) == epoch and correct is not None and total:
            return f"; top-5 {correct / total:.4f}"
    return ""


def beside_the_set(check: Check) -> str | None:
    """Return a sentence where a log breaks no rule but those for ImageNet's size."""
    broken = sorted({found.name for found in check.findings if found.severity != NOTE})
    if not broken or not ON_THE_SET.issuperset(broken):
        return None
    return f"PASS by all other rules: the set is not ImageNet, which breaks {', '.join(broken)}."
