"""report.html: one self-contained page about a log, a run or a submission.

The page holds no script, loads nothing and says so in its Content-Security-Policy. Every value is
escaped by the template and freed of control characters, so what a log says cannot act.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ..compliance.check_log import Check, check_log
from ..compliance.score import score_checks
from ..compliance.submission import check_folder
from . import headline
from .breakdown import rank_spread, step_breakdown
from .compare import Row, amount, compare
from .compare_view import divergence_lines, name_of
from .phases import span_totals, start_up, step_times
from .plots import accuracy_plots, schedule_plots, training_plots
from .prediction_section import Outlook
from .run_folder import RunFolder, Subject
from .run_summary import show

_MAX_ROWS = 1000  # of environment.json; a run of this harness writes some 50
TEMPLATE = "report.html.j2"


def judge(subject: Subject) -> tuple[Check, ...]:
    """The verdict on each log, and last, where there are several, on the submission."""
    if len(subject.files) > 1:
        return check_folder(subject.path)
    return tuple(check_log(path) for path in subject.files)


def render_report(
    subject: Subject,
    others: Sequence[Subject] = (),
    judge: Callable[[Subject], tuple[Check, ...]] = judge,
    outlook: Outlook | None = None,
    data: str | None = None,
) -> str:
    """The page. The same input makes the same page: nothing of the present is in it.

    Args:
        subject: what it is about.
        others: what it is compared with.
        judge: gives the verdicts.
        outlook: a prediction for its recipe.
        data: the image set in words; None: what the log says of it.
    """
    comparison = compare([subject, *others])
    folder, shown = subject.folder, headline.shown_log(subject)
    first = shown.figures if shown else None
    train = folder.records("train") if folder else []
    several = len(subject.files) > 1
    checks = judge(subject)
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            title=headline.title(subject),
            place=str(subject.path),
            started=headline.started(subject),
            outcome=headline.outcome(subject),
            go_on=headline.go_on(subject),
            data=data or headline.data_logged(subject),
            facts=headline.facts(subject),
            reached=any(run.reached for run in subject.runs),
            runs=headline.run_rows(subject, checks) if several else [],
            verdicts=checks[:-1] if several else checks,
            submission=checks[-1] if several else None,
            score=score_checks(subject.path, checks) if several else None,
            accuracy=accuracy_plots(comparison),
            shown=shown,
            clocks=headline.clocks(first) if first else [],
            shares=headline.shares(first) if first else [],
            training=training_plots(train, first),
            steps=step_times(train, first and headline.batch_of(first)),
            breakdown=step_breakdown(
                folder.records("steps") if folder else [], outlook.parts_s if outlook else None
            ),
            ranks=rank_spread(folder.ranks) if folder else None,
            totals=span_totals(folder.spans) if folder else [],
            schedule=schedule_plots(train),
            start_up=start_up(folder.spans) if folder else None,
            outlook=outlook,
            comparison=comparison,
            legend=list(zip(comparison.letters, map(name_of, comparison.subjects), strict=True)),
            sentences=divergence_lines(comparison) if others else [],
            compared=bool(others),
            environment=_environment(folder),
            config=_config(folder),
            config_sha256=folder.config.sha256 if folder and folder.config else None,
            repeat=shlex.join(["rn50", "launch", str(folder.path / "config.yaml")])
            if folder
            else "",
            notes=[*subject.notes, *(folder.notes if folder else ())],
            amount=amount,
        )
    )


def environment() -> Environment:
    """The templates of pages: all text is escaped and freed of what a reader's screen obeys."""
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
    settings.filters["beside_the_set"] = headline.beside_the_set
    return settings


def _breakable(text: str) -> Markup:
    """A long name that may break after an underscore, a dot or a slash."""
    return Markup(re.sub(r"([_./])", r"\1<wbr>", str(escape(show(text)))))


def _finalize(value: Any) -> Any:
    """Text of a log without what a terminal or a text direction would obey."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else show(value, 2000)


def _environment(folder: RunFolder | None) -> list[Row]:
    """environment.json, its sections spread out."""
    rows = []
    for name, content in (folder.environment if folder else {}).items():
        section = content if isinstance(content, dict) else {"": content}
        for key, value in section.items():
            text = " ".join(map(show, value)) if isinstance(value, list) else show(value)
            if value not in (None, [], {}):
                rows.append(Row(show(f"{name}.{key}".rstrip(".")), (text,)))
    if (more := len(rows) - _MAX_ROWS) > 0:
        rows[_MAX_ROWS:] = [Row("left out", (f"{more:,} more",))]
    return rows


def _config(folder: RunFolder | None) -> list[tuple[str, str, str]]:
    """(key, value, where it was written) of every leaf; where only if the launcher noted it."""
    if folder is None or folder.config is None:
        return []
    return [
        (key, show(value), folder.origins.get(key, "")) for key, value, _ in folder.config.leaves()
    ]
