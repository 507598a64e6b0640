"""`rn50 log`: read, check, score and compare MLPerf logs, and report on one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config.benchmark import BENCHMARK
from ..host.atomic import is_stdout, write_output
from ..host.progress import Progress, silent
from ..host.reading import JsonObject
from .console import (
    TYPER_OPTIONS,
    Json,
    argument,
    aside,
    exit_bad_if,
    option,
    output_file,
    print_json,
    print_table,
    say,
    say_aside,
    track,
    with_unit,
)

if TYPE_CHECKING:
    from ..compliance.check_log import Check
    from ..compliance.score import Score
    from ..report.compare import Comparison
    from ..report.run_records import Subject
    from ..report.run_summary import RunSummary

log_app = typer.Typer(help="Check, score and compare MLPerf logs.", **TYPER_OPTIONS)

_MANY = 50
"""Logs that take seconds."""

Ruleset = Annotated[
    str | None, option("Rules of a round, such as 4.0.0; default: found from the log.")
]


@log_app.command("show")
def log_show(
    paths: Annotated[
        list[Path],
        argument("Logs, or folders of runs, jobs or submissions.", metavar="PATH..."),
    ],
    as_json: Json = False,
) -> None:
    """Time to train, epochs, accuracy, init time and images/s of runs, from their MLPerf logs.

    Example: `rn50 log show results/quick/20261121T080000Z`
    """
    from ..compliance.check_log import check_log
    from ..report.compare import read_all

    subjects = read_all(paths)
    contents: list[JsonObject] = []
    for subject in subjects:
        for run in subject.runs:
            content = shown(run, subject)
            check = check_log(run.path, official=False)
            if not as_json:
                if contents:
                    print()
                _print_summary(content, check, run.run_s)
            contents.append(content | {"verdict": check.verdict})
    for subject in subjects:
        _say_notes(subject.notes)
    if as_json:
        _print_content(contents)


def _say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        say_aside(f"rn50: note: {note}")


def _print_content(content: list[JsonObject], **options: Any) -> None:
    """What `--json` prints of several things; one stands alone."""
    print_json(content[0] if len(content) == 1 else content, **options)


def shown(run: RunSummary, subject: Subject) -> JsonObject:
    """What `rn50 log show --json` says of a log; None where the log does not say it."""
    config = subject.config
    batch = run.parameters.get("global_batch_size")
    benchmark = run.submission.get("benchmark", BENCHMARK)
    figures: JsonObject = {
        "benchmark": benchmark,
        "status": run.status,
        "time_to_train_s": run.run_s if run.status == "success" else None,
        "init_s": run.init_s,
        "epochs": None,
        "eval_accuracy": None,
        "global_batch_size": batch if isinstance(batch, int) else None,
        "images_per_s": None,
        "clock": None,
        "evaluations": [],
        "target": config and config.eval.target,
    }
    # its epochs may be samples, and its accuracy another measure
    if benchmark != BENCHMARK:
        return figures
    figures["time_to_train_s"] = run.time_to_train_s
    if run.evaluations:
        last = run.evaluations[-1]
        figures |= {"epochs": last.epoch, "eval_accuracy": last.accuracy}
    figures["images_per_s"] = run.images_per_s
    if run.shares is not None:
        figures["clock"] = run.shares._asdict()
    figures["evaluations"] = [
        (point.epoch, point.accuracy, point.time_s)
        for point in run.evaluations
        if point.epoch is not None and point.time_s is not None
    ]
    return figures


def _print_summary(summary: JsonObject, check: Check, run_s: float | None) -> None:
    accuracy = with_unit(summary["eval_accuracy"], "", 5)
    if summary["target"] is not None:
        accuracy += f", target {summary['target']:g}"
    clock = "time to train"
    clock_s = summary["time_to_train_s"]
    if clock_s is None:
        clock = "clock at run_stop"
        clock_s = run_s
    rows = [
        ("log check", f"{check.word}: {check.cause}"),
        ("status", summary["status"] or "no run_stop: the run did not finish"),
        (clock, with_unit(clock_s, "s", 3)),
        ("init (not counted)", with_unit(summary["init_s"], "s", 2)),
        ("global batch", str(summary["global_batch_size"] or "-")),
    ]
    if summary["benchmark"] == BENCHMARK:
        rows += [
            ("epochs", with_unit(summary["epochs"], "", 0)),
            ("last top-1 accuracy", accuracy),
            ("training rate", with_unit(summary["images_per_s"], "images/s", 1)),
        ]
    for part, part_s in (summary["clock"] or {}).items():
        if part_s:
            rows.append(
                (f"of the clock, {part.removesuffix('_s')}", with_unit(part_s, "s", 3))
            )
    rows += [
        (f"epoch {epoch:g}", f"{accuracy:.5f} after {seconds:.1f} s")
        for epoch, accuracy, seconds in summary["evaluations"]
    ]
    say(str(check.path))
    print_table(("", ""), rows, free=(1,))


@log_app.command("check")
def log_check(
    paths: Annotated[
        list[Path],
        argument(
            "Logs; folders of runs, jobs, submissions, sweeps, or above them.",
            metavar="PATH...",
        ),
    ],
    ruleset: Ruleset = None,
    strict: Annotated[bool, option("Policy findings fail too.", "--strict")] = False,
    official: Annotated[
        bool | None,
        option("Run the official checker too; default: unless a log is huge."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check logs against the MLPerf rules of their round: one verdict, its cause, what to do.

    Verdicts: PASS; POLICY (passes, but breaks rules that no tool checks); FAIL; CANNOT_READ. The
    verdict of the official checker is printed beside ours. Reads logs of any round, by any program.

    Exit 0: PASS or POLICY; 1: FAIL, with --strict POLICY too; 2: CANNOT_READ.

    Example: `rn50 log check results/quick/20261121T080000Z/result_0.txt`
    """
    from ..compliance.round import judge_all
    from ..logging.places import log_folders
    from .log_check import check_lines, exit_code

    folders = [folder for path in paths for folder in log_folders(path)]
    advance: Progress = track("checking") if len(folders) > 1 else silent
    codes = []
    content = []
    # one by one, so that the first verdict is printed before the last log is read
    judged = judge_all(
        folders,
        ruleset,
        official=official,
        advance=advance,
        top=paths[0] if len(paths) == 1 else None,
    )
    for number, checks in enumerate(judged):
        codes.append(exit_code(checks[-1].verdict, strict=strict))
        if as_json:
            content += [check.to_dict() for check in checks]
            continue
        if number:
            print()
        # A folder's verdict comes first: it is what was asked for.
        ordered = (checks[-1], *checks[:-1])
        print("\n\n".join("\n".join(check_lines(check)) for check in ordered))
    if as_json:
        is_log = len(paths) == 1 and not paths[0].is_dir()
        printed = content[0] if is_log else content
        print_json(printed, allow_nan=False)
    raise typer.Exit(max(codes))


@log_app.command("score")
def log_score(
    folders: Annotated[
        list[Path],
        argument(
            "Folders of result_*.txt, jobs, submissions (results/SYSTEM/resnet in them).",
            metavar="FOLDER...",
        ),
    ],
    ruleset: Ruleset = None,
    as_json: Json = False,
) -> None:
    """The score of a submission: its verdict, run times, olympic mean of five, RCP test and factor.

    Writes nothing into the folder. Exit 0: there is a score; 1: there is none, or `log check` fails
    the folder; the table is shown all the same.

    Example: `rn50 log score results/quick/20261121T080000Z`
    """
    from ..compliance.round import judge_all
    from ..compliance.score import score_checks
    from ..logging.places import log_folders
    from ..logging.records import is_valid
    from .log_check import check_lines

    scores = []
    scored = []
    without_score = []
    paths = [folder for path in folders for folder in log_folders(path)]
    top = folders[0] if len(folders) == 1 else None
    for checks in judge_all(paths, ruleset, official=False, top=top):
        *logs, overall_check = checks
        if logs:
            scores.append(score_checks(checks))
            scored.append(overall_check)
        else:  # an entry without logs, or the round
            without_score.append(overall_check)
    if as_json:
        _print_content([score.to_dict() for score in scores], allow_nan=False)
    else:
        for score, check in zip(scores, scored, strict=True):
            _print_score(score, check)
    with aside(as_json):
        for check in without_score:
            for line in check_lines(check):
                say(line)
    if not scores:
        say_aside("no score: a folder of logs expected")
    missing = [score for score in scores if score.score_min is None]
    verdicts = [score.verdict for score in scores]
    verdicts += [check.verdict for check in without_score]
    exit_bad_if(missing or not scores or not all(map(is_valid, verdicts)))


@log_app.command("rules")
def log_rules(
    write: Annotated[
        Path | None,
        option("Write the page of all rules, docs/rules.md.", metavar="PAGE"),
    ] = None,
) -> None:
    """Every rule: code, name, what it judges, rulesets, severity, what it checks, source.

    Example: `rn50 log rules`
    """
    from ..compliance.rules_page import COLUMNS, render_markdown, rows

    if write is not None:
        write_output(write, render_markdown())
    else:
        print_table(COLUMNS[:-1], [row[:-1] for row in rows()], free=(6,))


def _print_score(score: Score, check: Check) -> None:
    from ..compliance.check_log import FAIL

    rows = [
        (
            run.path.name,
            with_unit(run.minutes, "", 5),
            with_unit(run.epochs, "", 0),
            with_unit(run.accuracy, "", 5),
            run.dropped and f"dropped, {run.dropped}",
        )
        for run in score.runs
    ]
    say(f"{check.word} {score.path}: {score.cause}")
    print_table(("run", "minutes", "epochs", "accuracy", ""), rows, free=(4,))
    rcp = score.rcp
    if rcp is not None:
        say(f"RCP test ({score.ruleset}): {rcp.word}, {rcp.reason}")
        # NaN, which equals nothing: above all reference points
        if rcp.reference is not None and rcp.reference.mean == rcp.reference.mean:
            epochs = f"epochs {with_unit(rcp.mean, '', 2)}, reference {rcp.reference.mean:.4f}"
            print(f"  {epochs}, accepted from {rcp.reference.minimum:.4f}")
    for note in score.notes:
        say(f"note: {note}")
    if score.score_min is None:
        print("no score")
    else:
        sentence = (
            f"score {score.score_min:.6f} min = olympic mean {score.unscaled_min:.6f}"
        )
        if score.scaled:
            sentence += f" x {score.scaling_factor:.10f}"
        if score.verdict == FAIL:
            sentence += ", of no valid submission"
        print(sentence)


@log_app.command("compare")
def log_compare(
    paths: Annotated[
        list[Path],
        argument(
            "Logs, folders of runs, or directories of submissions.", metavar="PATH..."
        ),
    ],
    sort: Annotated[
        str | None,
        option(
            "Sort the rows by this column, such as time_to_train_s; -COLUMN: falling.",
            metavar="COLUMN",
        ),
    ] = None,
    by: Annotated[
        str | None,
        option(
            "Group the runs by this key of their configs, or column: mean and range of each.",
            metavar="KEY",
        ),
    ] = None,
    html: Annotated[
        Path | None, output_file("Write a page with a row a run, to be sorted")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare logs, runs or submissions.

    Each is a row: what differs in results, hyper-parameters, config, submission and clocks. Below
    the tables follow what is the same in all, and, for runs of one config and seed, the first loss
    or accuracy that differs from the first run's in any bit.

    Example: `rn50 log compare results/quick/20261121T110041Z results/quick/20261121T110158Z`

    Example: `rn50 log compare results/quick --sort time_to_train_s --html runs.html`

    Example: `rn50 log compare results/lrstudy --by optimizer.base_lr --html study.html`
    """
    from ..report.compare import (
        compare,
        group_by,
        group_table,
        order_of,
        read_all,
        to_json,
    )

    subjects = read_all(paths, bare=True)
    is_long = sum(len(subject.files) for subject in subjects) > _MANY
    advance: Progress = track("judging") if is_long else silent
    comparison = compare(subjects, advance)
    order = order_of(comparison.columns, sort, len(comparison.subjects))
    groups = []
    if by is not None:
        groups = group_by(comparison, by)
    if html is not None:
        from ..report.html import render_comparison

        write_output(html, render_comparison(comparison, order, sort, groups, by))
    _say_notes(comparison.notes)
    if as_json:
        print_json(to_json(comparison, order), allow_nan=False)
        return
    if by is not None:
        print_table(*group_table(groups, by))
        print()
    _print_rows(comparison, order)
    if comparison.round is not None:
        print()
        say(comparison.round.cause)
    sentences = (*comparison.sentences, *comparison.published)
    if sentences:
        print()
    for line in sentences:
        say(line)


def _print_rows(comparison: Comparison, order: Sequence[int]) -> None:
    """Tables by group, a row a run: the results with the runs' names, then what differs."""
    # the first table has the names too; below a letter is enough
    lead = {"": comparison.letters, "run": comparison.names}
    for group, columns in groupby(comparison.table, key=attrgetter("group")):
        if len(lead) == 1:
            print(f"\n{group}")
        titles = list(lead)
        cells = list(lead.values())
        right = []
        for column in columns:
            if column.is_number:
                right.append(len(titles))
            titles.append(column.title)
            cells.append(column.cells)
        rows = list(zip(*cells, strict=True))
        print_table(titles, [rows[row] for row in order], right=right)
        lead = {"": comparison.letters}
    if comparison.shared:
        print()
        say(
            f"the same in all that have it: {'; '.join(map(' '.join, comparison.shared))}"
        )


@log_app.command("report")
def log_report(
    path: Annotated[
        Path, argument("A log, the folder of a run, or a submission's directory.")
    ],
    out: Annotated[
        Path | None,
        output_file("The file; default: report.html in the folder, for a log here"),
    ] = None,
) -> None:
    """Write a self-contained page on a run: verdicts, curves, clocks, schedule, config.

    Example: `rn50 log report results/quick/20261121T110041Z --out report.html`

    Example: `rn50 log report results/quick/20261121T110041Z --out - | gzip >report.html.gz`
    """
    from ..report.html import write_report

    written = write_report(path, out)
    if not is_stdout(written):
        say(str(written))
