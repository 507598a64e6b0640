"""The top of a report: what a run is, what became of it, its figures and its clocks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from statistics import median
from typing import NamedTuple

from ..compliance.check_log import ON_THE_SET, Check
from ..config.finding import NOTE, number
from .compare import MISSING, amount
from .compare_view import name_of
from .run_folder import LogFigures, Subject
from .run_summary import RunSummary, show


class Fact(NamedTuple):
    """One of the figures at the top."""

    label: str
    value: str
    unit: str
    note: str


class Clock(NamedTuple):
    """A clock of the run: its name, its time, and what it leaves out."""

    name: str
    value: str
    excludes: str


class Share(NamedTuple):
    """A part of the time to train, in percent of it."""

    name: str
    value: str
    percent: float


_ENDED = {"failed": "The run failed: ", "aborted": "The run was aborted: "}
"""By the status of result.json. Of a success the figures of the log say enough."""


def title(subject: Subject) -> str:
    if subject.folder and subject.folder.config:
        return subject.folder.config.run.name
    said = subject.first.submission if subject.first else {}
    named = " ".join(said[key] for key in ("org", "platform") if key in said)
    return named or name_of(subject)


def started(subject: Subject) -> str | None:
    """When the clock started, in UTC, from the log."""
    event = subject.logs[0].log.first("run_start") if subject.logs else None
    if event is None or event.time_ms <= 0:
        return None
    try:
        moment = datetime.fromtimestamp(event.time_ms / 1000, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):  # a year that there is not
        return None
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def outcome(subject: Subject) -> str:
    """What became of it, in a sentence; of a run that did not come to its target, why."""
    result = subject.folder.result if subject.folder else {}
    status, reason = result.get("status"), result.get("reason") or result.get("stopped")
    if status in _ENDED and reason is not None:
        reason = show(reason, 2000)
        began = "The run was " if reason.startswith("stopped by ") else _ENDED[status]
        return f"{began}{reason}.{_best_so_far(subject, reason)}"
    if not subject.logs:
        return "No log that can be read."
    if len(subject.logs) > 1:
        reached = sum(run.reached is not None for run in subject.runs)
        return f"{reached} of {len(subject.logs)} runs reached the target."
    run = subject.runs[0]
    if run.reached is not None:
        when = "" if run.reached.epoch is None else f" after epoch {run.reached.epoch:g}"
        ending = {"success": "", None: ", but the log has no run_stop"}.get(
            run.status, f", but run_stop says {run.status}"
        )
        return f"Reached {run.reached.accuracy:.5g} top-1{when}, target {run.target:g}{ending}."
    best = run.best
    if best is None:
        return "No evaluation in the log."
    return f"Did not reach {run.target:g}: best top-1 {best.accuracy:.5g}."


def _best_so_far(subject: Subject, reason: str) -> str:
    run = subject.first
    if run is None or run.best is None or "accuracy" in reason:
        return ""
    return f" Best top-1 until then {run.best.accuracy:.5g}, target {run.target:g}."


def go_on(subject: Subject) -> str | None:
    """The command that goes on with a run or starts it anew, where its result.json has one."""
    command = subject.folder.result.get("next") if subject.folder else None
    return show(command, 2000) if isinstance(command, str) and command else None


def data_logged(subject: Subject) -> str | None:
    """What a log says of its image set: the counts alone."""
    said = subject.first.parameters if subject.first else {}
    train, evaluation = (number(said.get(f"{split}_samples")) for split in ("train", "eval"))
    if train is None or evaluation is None:
        return None
    return f"{train:,.0f} training and {evaluation:,.0f} evaluation images, by the log"


def _top5(subject: Subject, epoch: float | None) -> str:
    """Of the evaluation after `epoch`, from metrics.jsonl, which a bare log has not."""
    for record in subject.folder.records("eval") if subject.folder else ():
        correct, total = number(record.get("correct_top5")), number(record.get("total"))
        if number(record.get("epoch")) == epoch and correct is not None and total:
            return f"; top-5 {correct / total:.4f}"
    return ""


def facts(subject: Subject) -> list[Fact]:
    runs = subject.runs
    if not runs:
        return []
    folder, batch = subject.folder, batch_of(runs[0])
    found = [_time(runs)]
    shown = next((run.reached for run in runs if run.reached), None) or runs[0].best
    if shown is not None:
        epoch = "" if shown.epoch is None else f", epoch {shown.epoch:g}"
        note = f"target {runs[0].target:g}{epoch}{_top5(subject, shown.epoch)}"
        found.append(Fact("Top-1", f"{shown.accuracy:.4f}", "", note))
    rates = [run.images_per_s for run in runs if run.images_per_s is not None]
    if rates:
        found.append(
            Fact("Throughput", *_with_unit(median(rates), "images/s"), "evaluations excluded")
        )
    if batch is not None:
        ranks = folder.result.get("ranks") if folder else None
        on = f"on {show(ranks)} ranks" if ranks is not None else "images"
        found.append(Fact("Global batch", f"{batch:,.0f}", "", on))
    inits = [run.init_s for run in runs if run.init_s is not None]
    if inits:
        found.append(Fact("Init", *_with_unit(median(inits), "s"), "not in the time to train"))
    return found


def beside_the_set(check: Check) -> str | None:
    """Where all that a log breaks are rules for ImageNet's size: that the others hold."""
    broken = sorted({found.name for found in check.findings if found.severity != NOTE})
    if not broken or not ON_THE_SET.issuperset(broken):
        return None
    do_not = f"{' and '.join(broken)} (its size) {'do' if len(broken) > 1 else 'does'} not"
    return f"PASS by every rule that applies: the set is not ImageNet, so {do_not}."


def _time(runs: Sequence[RunSummary]) -> Fact:
    """Only a run that reached its target has a time to train."""
    reached = [run.run_s for run in runs if run.run_s is not None and run.reached]
    stopped = [run.run_s for run in runs if run.run_s is not None]
    if reached:
        label = "Time to train" if len(runs) < 2 else "Time to train, median"
        return Fact(label, *_with_unit(median(reached), "s"), _spoken(median(reached)))
    note = "target not reached" if stopped else "no run_stop in the log"
    return Fact("Clock at run_stop", *_with_unit(median(stopped) if stopped else None, "s"), note)


def _with_unit(value: float | None, unit: str) -> tuple[str, str]:
    return (MISSING, "") if value is None else (amount(value, unit).rpartition(" ")[0], unit)


def _spoken(seconds: float) -> str:
    """Minutes and hours for those who do not count in seconds."""
    if abs(seconds) < 120:
        return "run_start to run_stop"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {rest} s" if hours else f"{minutes} min {rest} s"


def run_rows(subject: Subject, checks: Sequence[Check]) -> list[tuple[Check, tuple[str, ...]]]:
    """For each log of several: its verdicts, then status, time, accuracy, epoch, init."""
    known = {log.path: log.figures for log in subject.logs}
    rows: list[tuple[Check, tuple[str, ...]]] = []
    for check in checks[:-1]:
        run = known.get(check.path)
        last = (run.reached or run.best) if run else None
        cells = (
            (run.status or "no run_stop") if run else MISSING,
            amount(run.run_s if run else None, "s"),
            f"{last.accuracy:.5f}" if last else MISSING,
            amount(last.epoch if last else None),
            amount(run.init_s if run else None, "s"),
        )
        rows.append((check, cells))
    return rows


def batch_of(run: RunSummary) -> float | None:
    """The global batch, where the log has one."""
    batch = number(run.parameters.get("global_batch_size"))
    return batch if batch is not None and batch > 0 else None


def clocks(run: RunSummary) -> list[Clock]:
    """The clocks of a run. What a clock leaves out matters as much as what it shows."""
    training = sum(one.duration_s for one in run.epochs) if run.epochs else None
    evaluation = sum(one.duration_s for one in run.evals) if run.evals else None
    inside = any(
        b.start_s < a.stop_s and b.stop_s > a.start_s for a in run.epochs for b in run.evals
    )
    left_out = "Evaluations lie inside" if inside else "Leaves out evaluations that are logged"
    each = f"; median {amount(run.epoch_s, 's')} an epoch" if run.epoch_s is not None else ""
    return [
        Clock(
            "Time to train",
            amount(run.run_s, "s"),
            "run_start to run_stop, evaluations included. Leaves out launch, clearing of caches, "
            "initialisation and the checks afterwards",
        ),
        Clock(
            "Initialisation",
            amount(run.init_s, "s"),
            "init_start to init_stop. Leaves out the start of the processes",
        ),
        Clock("Init to run", amount(run.start_gap_s, "s"), "init_stop to run_start: in no clock"),
        Clock(
            "Training",
            amount(training, "s"),
            f"epochs (or blocks) of the log{each}. {left_out}",
        ),
        Clock(
            "Evaluation",
            amount(evaluation, "s"),
            f"eval_start to eval_stop, {len(run.evals)} of them",
        ),
    ]


def shares(run: RunSummary) -> list[Share]:
    """Parts of the time to train; none where the log's intervals contradict it."""
    total = run.run_s
    parts = {
        "training": sum(one.duration_s for one in run.epochs),
        "evaluation": sum(one.duration_s for one in run.evals),
    }
    if total is None or total <= 0 or not run.epochs:
        return []
    parts["the rest"] = total - sum(parts.values())
    if min(parts.values()) < -0.001 * total:
        return []
    return [
        Share(name, amount(max(value, 0.0), "s"), 100 * max(value, 0.0) / total)
        for name, value in parts.items()
    ]


def shown_log(subject: Subject) -> LogFigures | None:
    """The log whose clocks are shown: the first that reached the target, else the first."""
    return next((log for log in subject.logs if log.figures.reached), None) or (
        subject.logs[0] if subject.logs else None
    )
