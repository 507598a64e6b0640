"""`rn50 log`: read, check and score MLPerf logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import EXIT_BAD, TYPER_OPTIONS, Json, print_json, print_table, say, with_unit

if TYPE_CHECKING:
    from ..compliance.score import Score

log_app = typer.Typer(help="Check, score and compare MLPerf logs.", **TYPER_OPTIONS)

Ruleset = Annotated[
    str | None, typer.Option(help="Rules of a round, such as 4.0.0; default: found from the log.")
]


@log_app.command("show")
def log_show(
    path: Annotated[
        Path, typer.Argument(help="A log, or the folder of a run, a job or a submission.")
    ],
    as_json: Json = False,
) -> None:
    """Time to train, epochs, accuracy, init time and images/s of runs, from their MLPerf logs.

    Example: `rn50 log show results/quick/20261121T080000Z`
    """
    from ..compliance.check_log import FAIL, check_log
    from ..launch.verdict import ON_THE_TARGET, errors_of
    from ..report.show import find_logs, shown

    summaries = [(log, shown(log), check_log(log, official=False)) for log in find_logs(path)]
    if as_json:
        content = [one | {"verdict": check.verdict} for _, one, check in summaries]
        print_json(content[0] if len(content) == 1 else content)
        return
    for number, (log, summary, check) in enumerate(summaries):
        if number:
            print()
        own_target = summary["target"] is not None and set(errors_of(check)) == ON_THE_TARGET
        failed = check.verdict == FAIL and not own_target
        _print_summary(log, summary, check.cause if failed else None)


def _print_summary(log: Path, summary: dict[str, Any], fault: str | None) -> None:
    """`fault`: why `log check` fails the log, so that its times are no result."""
    accuracy = with_unit(summary["eval_accuracy"], "", 5)
    if summary["target"] is not None:
        accuracy += f", target {summary['target']:g}"
    rows = [("log check", f"FAIL: {fault}")] if fault else []
    rows += [
        ("status", summary["status"] or "no run_stop: the run did not finish"),
        ("time to train", with_unit(summary["time_to_train_s"], "s", 3)),
        *([("published", summary["published"])] if summary["published"] else []),
        ("init (not counted)", with_unit(summary["init_s"], "s", 2)),
        ("epochs", with_unit(summary["epochs"], "", 0)),
        ("top-1 accuracy", accuracy),
        ("global batch", str(summary["global_batch_size"] or "-")),
        ("training rate", with_unit(summary["images_per_s"], "images/s", 1)),
    ]
    rows += [
        (f"epoch {epoch:g}", f"{accuracy:.5f} after {seconds:.1f} s")
        for epoch, accuracy, seconds in summary["evaluations"]
    ]
    say(str(log))
    print_table(("", ""), rows)


@log_app.command("check")
def log_check(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Logs; folders of runs, jobs, submissions, sweeps, or above them.",
            metavar="PATH...",
        ),
    ],
    ruleset: Ruleset = None,
    strict: Annotated[bool, typer.Option("--strict", help="Policy findings fail too.")] = False,
    official: Annotated[
        bool | None,
        typer.Option(help="Run the official checker too; default: unless a log is huge."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check logs against the MLPerf rules of their round: one verdict, its cause, what to do.

    Verdicts: PASS; POLICY (passes, but breaks rules that no tool checks); FAIL; CANNOT_READ. The
    verdict of the official checker is printed beside ours. Reads logs of any round, by any program.

    Exit 0: PASS or POLICY; 1: FAIL, with --strict POLICY too; 2: CANNOT_READ.

    Example: `rn50 log check results/quick/20261121T080000Z/result_0.txt`
    """
    from .log_check import run_check

    code = run_check(paths, ruleset, strict=strict, official=official, as_json=as_json)
    raise typer.Exit(code)


@log_app.command("score")
def log_score(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of result_*.txt, jobs, submissions (results/SYSTEM/resnet in them).",
            metavar="FOLDER...",
        ),
    ],
    ruleset: Ruleset = None,
    scale: Annotated[
        bool | None,
        typer.Option(help="Multiply by the RCP factor; default: as in the round (from 2.1.0 on)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """The score of a submission: its verdict, run times, olympic mean of five, RCP test and factor.

    Writes nothing into the folder. Exit 0: there is a score; 1: there is none, or `log check` fails
    the folder; the table is shown all the same.

    Example: `rn50 log score results/quick/20261121T080000Z`
    """
    from ..compliance.check_log import FAIL
    from ..compliance.score import score_folder
    from ..logging.places import log_folders

    found = [folder for given in folders for folder in log_folders(given)]
    scores = [score_folder(folder, ruleset, scale=scale) for folder in found]
    if as_json:
        content = [score.to_dict() for score in scores]
        print_json(content[0] if len(content) == 1 else content, allow_nan=False)
    else:
        for score in scores:
            _print_score(score)
    if any(score.score_min is None or score.verdict == FAIL for score in scores):
        raise typer.Exit(EXIT_BAD)


@log_app.command("rules")
def log_rules(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page docs/rules.md.")
    ] = False,
) -> None:
    """Every rule: code, name, what it judges, rulesets, severity, what it checks, source.

    Example: `rn50 log rules`
    """
    from ..compliance.rules_page import COLUMNS, render_markdown, rows

    if markdown:
        print(render_markdown(), end="")
    else:
        print_table(COLUMNS[:-1], [row[:-1] for row in rows()], free=(6,))


def _print_score(score: Score) -> None:
    from ..compliance.check_log import FAIL

    rows = [
        (
            run.path.name,
            "-" if run.minutes is None else f"{run.minutes:.5f}",
            with_unit(run.epochs, "", 0),
            with_unit(run.accuracy, "", 5),
            run.dropped and f"dropped, {run.dropped}",
        )
        for run in score.runs
    ]
    say(f"{score.verdict} {score.path}: {score.cause}")
    print_table(("run", "minutes", "epochs", "accuracy", ""), rows)
    times = [run.minutes for run in score.runs if run.minutes is not None]
    if len(times) > 1:
        print(f"spread {max(times) - min(times):.5f} min")
    rcp = score.rcp
    if rcp is not None:
        mean = "-" if rcp.mean is None else f"{rcp.mean:g}"
        say(f"RCP test ({score.ruleset}): {'PASS' if rcp.passed else 'FAIL'}, {rcp.reason}")
        if rcp.reference is not None and rcp.reference.mean == rcp.reference.mean:
            points = " and ".join(f"{batch:,}" for batch in rcp.reference.batches)
            print(
                f"  epochs {mean}, reference {rcp.reference.mean:.4f} (point {points}), accepted "
                f"from {rcp.reference.minimum:.4f}, factor {rcp.factor:.10f}"
            )
    for note in score.notes:
        say(f"note: {note}")
    if score.score_min is None:
        print("no score")
    else:
        valid = ", of no valid submission" if score.verdict == FAIL else ""
        scaled = f" x {score.scaling_factor:.10f}" if score.scaled else ""
        mean = f"olympic mean {score.unscaled_min:.6f}"
        print(f"score {score.score_min:.6f} min = {mean}{scaled}{valid}")
