"""What a run is, how it ended, its figures: the top of a report, and `rn50 log show`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ..compliance.log_rules import checked_keys
from ..config.finding import clock_time
from ..logging.parse import read_log
from .compare import name_of
from .published import standing_of
from .run_folder import Subject, recorded_config
from .run_summary import MISSING, RunSummary, amount, show, summarise


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


def facts(subject: Subject) -> list[Fact]:
    """Return the figures at the top; of several runs the medians."""
    runs = subject.runs
    if not runs:
        return []
    found = [_time(runs)]
    shown = next((run.reached for run in runs if run.reached), None) or runs[0].best
    if shown is not None:
        epoch = "" if shown.epoch is None else f", epoch {shown.epoch:g}"
        found.append(Fact("Top-1", f"{shown.accuracy:.4f}", f"target {runs[0].target:g}{epoch}"))
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


def shown(path: Path) -> dict[str, Any]:
    """What `rn50 log show --json` says of a log; None where the log does not say it."""
    log, config = read_log(path, checked_keys()), recorded_config(path.parent)
    target = config.eval.target if config else None  # a log does not say it
    run = summarise(log.events, target)
    batch = log.value("global_batch_size")
    last = run.evaluations[-1] if run.evaluations else None
    place = standing_of(path, config, [run])
    return {
        "status": run.status,
        "time_to_train_s": run.run_s,
        "init_s": run.init_s,
        "epochs": last.epoch if last else None,
        "eval_accuracy": last.accuracy if last else None,
        "global_batch_size": batch if isinstance(batch, int) else None,
        "images_per_s": run.images_per_s,
        "evaluations": [
            (one.epoch, one.accuracy, one.time_s)
            for one in run.evaluations
            if one.epoch is not None and one.time_s is not None
        ],
        "target": target,
        "published": place.text if place else None,
    }
