"""Pages that are one file: report.html on a log, a run or a submission, and the runs of
`rn50 log compare --html`.

A report holds no script and loads nothing, and has a Content-Security-Policy that forbids both: its
images are data within it. A comparison has the one script that sorts, which the policy names by its
digest. Every value is escaped by the template and freed of control characters.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ..compliance.check_log import Check
from ..compliance.score import score_checks
from ..compliance.submission import as_one, judge_path
from ..config.leaves import flatten
from ..data.describe import describe_data
from ..host.atomic import in_its_folder, write_output
from ..host.errors import UserError
from ..host.finding import clock_time, number
from ..logging.records import ABORTED, FAILED, Result
from ..logging.records import Environment as RunEnvironment
from ..logging.run_folder import RunFolder
from .breakdown import rank_spread, start_up, step_breakdown, too_few_cores
from .charts import colour_at
from .compare import Comparison, Group, group_table, name_of, parameter_columns
from .norms import norm_table
from .plots import page_charts
from .published import beside_published
from .run_records import RunRecords, Subject, read_subjects
from .run_summary import MISSING, RunSummary, amount, median_of, show


def write_report(
    path: Path, out: Path | None = None, checks: tuple[Check, ...] | None = None
) -> Path:
    """Write the report on `path` (a log, a run's folder, a submission) and say where: by default
    report.html in the folder. `checks`: the verdicts, where they are known.

    Raises UserError: nothing readable there, or the file cannot be written.
    """
    below = read_subjects(path)
    subjects = [subject for subject in below if subject.runs] or below
    if len(subjects) != 1:
        raise UserError(
            f"{path}: one run or submission expected, found {len(subjects)} below it"
        )
    if out is None:
        out = Path("report.html")
        if path.is_dir():
            out = in_its_folder(path / out)
    logs = subjects[0].files
    # by the file, not its name: a link may lead to the log
    if out.exists() and any(map(out.samefile, logs)):
        raise UserError(
            f"{out}: another file than the log that is reported on expected"
        )
    write_output(out, render_report(subjects[0], checks))
    return out


def render_report(subject: Subject, checks: tuple[Check, ...] | None = None) -> str:
    """Return the page. The same input makes the same page: nothing of the present is in it.

    Args:
        subject: the log, run or submission that the page is about.
        checks: the judgement on the path, or on a run's log; None: it is made.
    """
    folder = subject.folder
    if checks is None:
        checks = judge_path(subject.path) if subject.files else ()
    verdicts = checks[: len(subject.files)]
    # one run is judged as its folder is, in which its log lies
    if checks and not subject.is_submission:
        verdicts = (as_one(checks),)
    submission = None
    score = None
    if subject.is_submission:
        submission = checks[-1]
        score = score_checks(checks)
    config = str(RunFolder(folder.path).config)
    return _fill(
        "report.html.j2",
        subject=subject,
        title=_title(subject),
        outcome=_outcome(subject),
        slow=too_few_cores(subject),
        data=subject.config and describe_data(subject.config.data),
        facts=_facts(subject),
        published=beside_published(subject),
        work=_work(folder.result),
        verdicts=verdicts,
        submission=submission,
        score=score,
        figures={run.path: run for run in subject.runs},
        plots=page_charts([("_", subject)]),
        breakdown=step_breakdown(folder.records("steps")),
        norms=norm_table(folder),
        ranks=rank_spread(folder.ranks),
        start_up=start_up(folder.spans),
        parameters=[*parameter_columns([subject])],
        environment=_environment(folder.environment),
        config=_config(folder),
        repeat=shlex.join(["rn50", "launch", config]),
        amount=amount,
    )


def render_comparison(
    comparison: Comparison,
    order: Sequence[int],
    sort: str | None,
    groups: Sequence[Group] = (),
    by: str | None = None,
) -> str:
    """Return the page of `rn50 log compare --html`: a row a run, sorted by a click.

    Args:
        comparison: the runs.
        order: the rows of the table, by number.
        sort: the column by which they are in that order, as `--sort` has it.
        groups: of the runs, by the key `by`; each has a colour in the charts.
    """
    names = comparison.names
    columns = comparison.table
    labels = _labels(comparison, groups, by)
    subjects = comparison.subjects
    labelled = [(label, subjects[row]) for row, label in labels.items()]
    return _fill(
        "compare.html.j2",
        title=f"{len(names)} runs compared" if len(names) > 1 else names[0],
        rows=[(row, comparison.letters[row], names[row]) for row in order],
        colours=_colours(labels),
        medians=any(len(subject.runs) > 1 for subject in subjects),
        columns=columns,
        heads=Counter(column.group for column in columns).items(),
        groups=by is not None and group_table(groups, by),
        sorted_by=(sort or "").removeprefix("-"),
        direction="descending" if (sort or "").startswith("-") else "ascending",
        plots=page_charts(labelled, "accuracy", "training"),
        comparison=comparison,
    )


def _labels(
    comparison: Comparison, groups: Sequence[Group], by: str | None
) -> dict[int, str]:
    """Row -> its name in the legends, in their order; "_": it needs none."""
    if len(comparison.subjects) == 1:
        return {0: "_"}
    if by is None:
        return dict(enumerate(comparison.letters))
    key = by.rpartition(".")[2]
    return {row: f"{key} {group.value}" for group in groups for row in group.rows}


def _colours(labels: dict[int, str]) -> dict[int, str]:
    """Row -> the colour of its lines."""
    names = dict.fromkeys(labels.values())
    colours = {name: colour_at(number) for number, name in enumerate(names)}
    return {row: colours[label] for row, label in labels.items()}


def _fill(template: str, **values: Any) -> str:
    """Fill a template: all text is escaped and freed of what a reader's screen obeys."""
    settings = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    settings.filters["breakable"] = _breakable
    settings.filters["digest"] = _digest
    return settings.get_template(template).render(**values)


def _digest(script: str) -> str:
    """What a Content-Security-Policy calls a script by."""
    digest = hashlib.sha256(script.encode()).digest()
    return base64.b64encode(digest).decode()


def _breakable(name: str) -> Markup:
    """A long name that may break after an underscore, a dot or a slash."""
    escaped = str(escape(show(name)))
    return Markup(re.sub(r"([_./])", r"\1<wbr>", escaped))


def _finalize(value: Any) -> Any:
    """Text of a log without what a terminal or a text direction would obey."""
    # markup is ours, and made of escaped parts; numbers need nothing
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return show(value, 2000)


def _environment(environment: RunEnvironment) -> list[tuple[str, str]]:
    """(key, value) of environment.json, its sections spread out."""
    rows = []
    for key, value in flatten(asdict(environment)):
        if isinstance(value, tuple):
            value = " ".join(map(show, value))
        if value not in (None, "", {}) and key != "format":
            rows.append((show(key), show(value)))
    return rows


def _config(folder: RunRecords) -> list[tuple[str, str, str]]:
    """(key, value, where it was written) of every leaf; where only if the launcher noted it."""
    if folder.config is None:
        return []
    return [
        (key, show(value), folder.origins.get(key, ""))
        for key, value, _ in folder.config.leaves()
    ]


# --- the top of a report --------------------------------------------------------------------------


class Fact(NamedTuple):
    """One of the figures at the top."""

    label: str
    value: str
    note: str


def _title(subject: Subject) -> str:
    """Return the name of the config, else the submitter and the system in the log."""
    if subject.config:
        return subject.config.name
    submission = subject.runs[0].submission if subject.runs else {}
    names = submission.get("org"), submission.get("platform")
    return " ".join(filter(None, names)) or name_of(subject)


_ENDED = {FAILED: "failed", ABORTED: "was aborted"}


def _outcome(subject: Subject) -> str:
    """Return how a run ended, in a sentence; of a run that missed its target, why."""
    result = subject.folder.result
    if result and result.status in _ENDED and result.why:
        return f"The run {_ENDED[result.status]}: {show(result.why, 2000)}."
    if not subject.runs:
        return "No log that can be read."
    if len(subject.files) > 1:
        reached = sum(run.reached is not None for run in subject.runs)
        return f"{reached} of {len(subject.files)} runs reached the target."
    run = subject.runs[0]
    if run.reached is not None:
        sentence = f"Reached {run.reached.accuracy:.5g} top-1"
        if run.reached.epoch is not None:
            sentence += f" after epoch {run.reached.epoch:g}"
        sentence += f", target {run.target:g}"
        if run.status != "success":
            sentence += f", run_stop {run.status or 'missing'}"
        return f"{sentence}."
    if run.best is None:
        return "No evaluation in the log."
    return f"Did not reach {run.target:g}: best top-1 {run.best.accuracy:.5g}."


def _facts(subject: Subject) -> list[Fact]:
    """Return the figures at the top; of several runs the medians."""
    runs = subject.runs
    if not runs:
        return []
    facts = [_time(runs)]
    evaluations = list(filter(None, (run.reached or run.best for run in runs)))
    accuracy = median_of(evaluation.accuracy for evaluation in evaluations)
    epoch = median_of(evaluation.epoch for evaluation in evaluations)
    if accuracy is not None:
        note = f"target {runs[0].target:g}"
        if epoch is not None:
            note += f", epoch {epoch:g}"
        facts.append(Fact("Top-1", f"{accuracy:.4f}", note))
    rate = median_of(run.images_per_s for run in runs)
    if rate is not None:
        per_s = amount(rate, "images/s")
        facts.append(Fact("Throughput", per_s, "evaluations excluded"))
    batch = number(runs[0].parameters.get("global_batch_size"))
    if batch is not None:
        result = subject.folder.result
        unit = "images"
        if result and result.ranks:
            unit = f"ranks: {result.ranks}"
        facts.append(Fact("Global batch", f"{batch:,.0f}", unit))
    return facts


def _work(result: Result | None) -> list[Fact]:
    """What a run computed, sent and read; empty where it does not say."""
    if result is None:
        return []
    facts = []
    if result.flops is not None:
        note = (
            "forward and backward of all images trained; a multiply and an add are two"
        )
        facts.append(Fact("FLOPs", f"{result.flops:.4g}", note))
        mfu = "unknown"
        if result.mfu is not None:
            mfu = f"{100 * result.mfu:.2f} %"
        note = "share of the peak by the machine's file, while training"
        facts.append(Fact("MFU", mfu, note))
    for label, n_bytes, note in (
        ("Allreduced", result.allreduce_bytes, "gradients, in a step, of each rank"),
        (
            "Read from storage",
            result.storage_read_bytes,
            "all ranks; the page cache had the rest",
        ),
    ):
        if n_bytes is not None:
            facts.append(Fact(label, amount(n_bytes / 1e6, "MB"), note))
    return facts


def _time(runs: Sequence[RunSummary]) -> Fact:
    """Only a run that reached its target has a time to train."""
    time_s = median_of(run.time_to_train_s for run in runs)
    label = "Time to train"
    note = "run_start to run_stop"
    if time_s is None:
        time_s = median_of(run.run_s for run in runs)
        label = "Clock at run_stop"
        note = "target not reached"
    elif time_s >= 120:
        note = clock_time(time_s)
    if time_s is None:
        return Fact(label, MISSING, "no run_stop in the log")
    if len(runs) > 1:
        label += ", median"
    return Fact(label, amount(time_s, "s"), note)
