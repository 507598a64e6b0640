"""`rn50 predict`: what would this config take on that machine?"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config.atomic import is_stdout, write_output
from ..config.errors import UserError, show
from .console import Json, machine_option, output_file, print_json, print_table, say

if TYPE_CHECKING:
    from ..config.machine import System
    from ..scaling.calibrate import Calibration
    from ..scaling.predict import Job, Prediction

_MOST_FACTOR = 1_000_000
"""By which a node may be slower: what takes a million times as long stands still."""
_LEAST_MTBF_H, _MOST_MTBF_H = 0.01, 1e9
_MOST_RANK_STEPS = 5_000_000
"""Of a simulation: about a minute (2,048 ranks x 1,000 steps in 14 groups take 20 s of a core)."""


def predict(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="A config and its overrides; with --calibrate: run folders or LOG:GPUS.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str | None,
        machine_option(
            "A name (`rn50 config list --systems`) or a YAML file; with CONFIG: moves its recipe "
            "there and keeps the number of ranks, as `system=MACHINE` does."
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="Accelerators; instead of the config's nodes and ranks.")
    ] = None,
    batch_per_gpu: Annotated[
        int | None, typer.Option(help="Images per accelerator and step.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Epochs of the run; default: what published runs needed.")
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(help="Allreduce: auto, ring, torus_2d, hierarchical, double_tree, ..."),
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="Gradient groups: cubic(3), equal_bytes(8), single, ...")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp16, fp32 or tf32; default: the config's, or fp16.")
    ] = None,
    ruleset: Annotated[
        str | None,
        typer.Option(
            help="Round whose recipes set the epochs (and the software, where a system "
            "has several)."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        output_file(
            "Draw as SVG: the curve over GPUs, the step, algorithms, overlap; --validate: rows"
        ),
    ] = None,
    as_json: Json = False,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate", help="Compare every published figure with the model, worst first."
        ),
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit a machine to the runs named as arguments.")
    ] = False,
    out: Annotated[
        Path | None, output_file("With --calibrate: write the fitted system's YAML here")
    ] = None,
    mtbf: Annotated[
        str | None,
        typer.Option(
            metavar="HOURS",
            help="Nodes fail, one of them every so many hours on average; `published`: as often as "
            "in studies of GPU clusters.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Say what the prediction rests on, and how far that is from it."
        ),
    ] = False,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate", help="Simulate every rank, message and delay as discrete events."
        ),
    ] = False,
    steps: Annotated[int, typer.Option(min=1, max=10_000, help="Steps to simulate.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulation.")] = 0,
    slow_node: Annotated[
        float, typer.Option(min=1.0, help="Factor by which one node computes slower.")
    ] = 1.0,
    slow_link: Annotated[
        float, typer.Option(min=1.0, help="Factor by which one node's messages are slower.")
    ] = 1.0,
    fail_step: Annotated[
        int | None,
        typer.Option(
            min=1, help="A node fails after this step; restart from a checkpoint 10 s later."
        ),
    ] = None,
) -> None:
    """Step time, images/s and time to train on a described machine, and where the time goes.

    Example: `rn50 predict abci_2048_open`

    Example: `rn50 predict abci_2048_open --system dgxa100`

    Example: `rn50 predict --system dgxa100 --gpus 1024 --batch-per-gpu 35 --json`

    Example: `rn50 predict --system abci --gpus 2048 --batch-per-gpu 42 --epochs 90 --plot abci.svg`

    Example: `rn50 predict --calibrate runs/1 runs/2 --system dgxa100 --gpus 512 --batch-per-gpu 64`

    Example: `rn50 predict --system dgxh100 --gpus 2048 --batch-per-gpu 16 --explain`

    Example: `rn50 predict --validate`

    Example: `rn50 predict dgxa100_n128 --simulate --slow-node 1.2`

    Example: `rn50 predict abci_2048_open --mtbf published`
    """
    if mtbf is not None and (validate or simulate or plot is not None):
        raise UserError("--mtbf: without --validate, --simulate and --plot expected, found both")
    if out is not None and not calibrate:
        raise UserError("--out: --calibrate expected beside it, found none")
    if plot is not None and simulate:
        raise UserError("--plot: without --simulate expected, found both")
    if validate:
        _validate(as_json, plot)
        return
    from ..config.values import MOST, MOST_EPOCHS, MOST_RANKS

    _check_numbers(
        {
            "--gpus": (gpus, MOST_RANKS),
            "--batch-per-gpu": (batch_per_gpu, MOST),
            "--epochs": (epochs, MOST_EPOCHS),
            "--slow-node": (slow_node, _MOST_FACTOR),
            "--slow-link": (slow_link, _MOST_FACTOR),
        }
    )
    choices: dict[str, Any] = {
        "epochs": epochs,
        "algorithm": algorithm,
        "groups": groups,
        "precision": precision,
        "ruleset": _ruleset(ruleset),
    }
    node_mtbf_h = _hours(mtbf)
    if calibrate:
        wanted = gpus is not None or batch_per_gpu is not None
        if not wanted and mtbf is not None:
            raise UserError("--mtbf: --gpus and --batch-per-gpu expected beside it, found none")
        if not wanted and plot:
            raise UserError("--plot: --gpus and --batch-per-gpu expected beside it, found none")
        fitted, choices["precision"] = _calibrate(
            arguments or [], system, precision, out, as_json=as_json, predicted_too=wanted
        )
        if not wanted:
            return
        job = _job_of_system("calibrated", fitted, gpus, batch_per_gpu, choices)
    elif system is not None and not arguments:
        from ..config.load import load_system

        machine = load_system(system, choices["ruleset"])
        job = _job_of_system(system, machine, gpus, batch_per_gpu, choices)
    else:
        job = _job_of_config(arguments or [], gpus, batch_per_gpu, choices, system)
    if simulate:
        faults = {"slow_node": slow_node, "slow_link": slow_link, "fail_step": fail_step}
        _simulate(job, steps, seed, faults, as_json)
        return
    if mtbf is None:
        _predict(job, plot, as_json, explain=explain)
    else:
        _predict_with_failures(job, node_mtbf_h, as_json)


def _hours(mtbf: str | None) -> float | None:
    """Of `--mtbf`; None: as published."""
    if mtbf is None or mtbf == "published":
        return None
    try:
        hours = float(mtbf)
    except ValueError:
        hours = math.nan
    if not _LEAST_MTBF_H <= hours <= _MOST_MTBF_H:
        raise UserError(
            f"--mtbf: `published` or {_LEAST_MTBF_H:g} to {_MOST_MTBF_H:,.0f} hours expected, "
            f"found {show(mtbf)}"
        )
    return hours


def _check_numbers(given: dict[str, tuple[float | None, float]]) -> None:
    """Refuse what is above its limit, negative, or NaN, which Typer takes for any number."""
    for option, (value, most) in given.items():
        if value is not None and not 0 <= value <= most:
            raise UserError(f"{option}: a number up to {most:,} expected, found {show(value)}")


def _ruleset(text: str | None) -> str | None:
    from ..config.benchmark import RULESETS, ruleset_name

    if text is None:
        return None
    name = ruleset_name(text, ("0.5.0", *RULESETS))  # v0.5 had other recipes, and no rules of ours
    if name is None:
        raise UserError(f"--ruleset: 0.5.0 or one of {', '.join(RULESETS)} expected, found {text}")
    return name


def _job_of_system(
    name: str, system: System, gpus: int | None, batch: int | None, choices: dict[str, Any]
) -> Job:
    from ..scaling.machine import known_precisions
    from ..scaling.predict import job_of_system

    if gpus is None or batch is None:
        raise UserError("--system: --gpus and --batch-per-gpu expected beside it, found not both")
    given = {key: value for key, value in choices.items() if value is not None}
    known = known_precisions(system.performance) if system.performance else []
    if known:
        given.setdefault("precision", known[0])
    return job_of_system(name, system, gpus, batch, **given)


def _job_of_config(
    arguments: list[str],
    gpus: int | None,
    batch: int | None,
    choices: dict[str, Any],
    machine: str | None = None,
) -> Job:
    """The recipe of a config, on its own machine or on another one; `gpus` instead of its ranks."""
    from ..config.load import load
    from ..scaling.predict import job_of_config, on_system
    from .machine_option import on_machine

    if not arguments or "=" in arguments[0]:
        raise UserError("CONFIG or --system NAME expected, found neither (`rn50 predict --help`)")
    config, *overrides = arguments
    if batch is not None:
        overrides.append(f"batch.per_rank={batch}")
    placed = on_machine(config, overrides, dated_machine(machine, choices["ruleset"]))
    run = load(config, placed).run
    if gpus is not None:  # laid on whole nodes of the machine, however many ranks the recipe had
        choices["system"] = load(config, [*placed, "system.nodes=1"]).run.system
        run = on_system(run, choices["system"], gpus)
    return job_of_config(run, **choices)


def dated_machine(machine: str | None, ruleset: str | None) -> str | None:
    """The file of a machine, with the software of a round where there is one of its own."""
    from ..config.names import find_system

    if machine is None or ruleset is None:
        return machine
    try:
        return str(find_system(machine, Path(), ruleset))
    except UserError as error:
        raise UserError(f"--system: {error}") from None


def _answer(job: Job) -> Prediction:
    """The prediction, with a warning on stderr for each point that the model misses."""
    from ..scaling.predict import predict as run_predict

    answer = run_predict(job)
    for line in answer.warnings():
        say(f"rn50: warning: {line}", to=sys.stderr)
    return answer


def _predict(job: Job, plot: Path | None, as_json: bool, *, explain: bool) -> None:
    answer = _answer(job)
    if as_json:
        print_json(answer.to_dict())
    else:
        _print_prediction(answer)
        if explain:
            _print_support(answer)
    if plot is None:
        return
    from ..report.prediction import write_plot

    write_plot(answer, plot)
    if not as_json and not is_stdout(plot):
        say(f"{plot}: drawn")


def _predict_with_failures(job: Job, node_mtbf_h: float | None, as_json: bool) -> None:
    """A prediction on nodes that fail. `node_mtbf_h` None: at each published rate."""
    from ..report.prediction import outlook_rows, study_rows
    from ..scaling.failures import PUBLISHED, USUAL, outlook

    answer, per_node = _answer(job), job.system.ranks_per_node
    studies = (
        [] if node_mtbf_h else [(s, outlook(answer, s.gpu_hours / per_node)) for s in PUBLISHED]
    )
    chosen = outlook(answer, node_mtbf_h or USUAL.gpu_hours / per_node)
    if as_json:
        found: dict[str, Any] = {"failures": chosen.to_dict()}
        if studies:
            found["published"] = [s._asdict() | o.to_dict() for s, o in studies]
        print_json(answer.to_dict() | found)
        return
    _print_prediction(answer)
    print()
    if studies:
        print_table(
            ("failures as in", "of a node", "of the run", "none", "time"), study_rows(studies)
        )
        print()
    print_table((f"a node fails every {chosen.node_mtbf_h:,.0f} h", ""), outlook_rows(chosen))
    for study, _ in studies:
        print(f"{study.name}: {study.source}")


def _print_prediction(answer: Prediction) -> None:
    from ..report.prediction import share_rows, summary_rows

    head = f"{answer.job.name}: {answer.job.gpus} x {answer.phases[0].batch}"
    print_table((head, "", "90 % interval"), summary_rows(answer))
    step_ms = {name: value * 1e3 for name, value in answer.step.parts.items()}
    for title, parts, unit in (("one step", step_ms, "ms"), ("the run", answer.run.parts, "s")):
        print()
        print_table((title, "time", "share"), share_rows(parts, unit))
    points = [
        f"{p.gpus} x {p.batch}: {p.step_s * 1e3:.2f} ms ({p.source})" for p in answer.machine.points
    ]
    known = ["the data sheet"] if answer.machine.has_sheet else []
    print(f"\ncalibrated on {'; '.join([*known, *points])}")


def _print_support(answer: Prediction) -> None:
    """Each row that supports the prediction, the model's own error there, and the distance."""
    support = answer.support()
    if support.sheet is not None:
        sheet_fixed_s, sheet_per_image_s = support.sheet
        print(
            f"\nthe data sheet says {sheet_fixed_s * 1e3:.2f} ms + "
            f"{sheet_per_image_s * 1e3:.4f} ms per image; with the points "
            f"{answer.machine.fixed_s * 1e3:.2f} ms + {answer.machine.per_image_s * 1e3:.4f}"
        )
    print()
    print_table(
        ("supported by", "measured", "model there", "GPUs from it", "batch from it"),
        [
            (
                f"{row.point.gpus} x {row.point.batch}: {row.point.source}",
                f"{row.point.step_s * 1e3:.2f} ms",
                f"{row.error:+.1%}",
                f"x {row.gpus_ratio:.3g}",
                f"x {row.batch_ratio:.3g}",
            )
            for row in support.rows
        ],
    )
    print("\n1 sigma of the step: " + ", ".join(f"{k} {v:.1%}" for k, v in support.sigmas.items()))


def _validate(as_json: bool, plot: Path | None) -> None:
    from dataclasses import asdict

    from ..config.load import load_system
    from ..config.names import list_systems
    from ..scaling.crossval import LARGE_GPUS, count_constants, cross_validate
    from ..scaling.validate import left_out, summarise, validate

    rows = validate()
    if plot is not None:
        from ..report.prediction import write_validation

        write_validation(rows, plot)
    summaries = [summarise(rows, kind) for kind in ("step", "time")]
    scores = cross_validate()
    constants = count_constants(map(load_system, list_systems()))
    if as_json:
        print_json(
            {
                "summary": [asdict(summary) for summary in summaries],
                "cross_validation": [asdict(score) for score in scores],
                "constants": constants._asdict(),
                "rows": [{**asdict(row), "error": round(row.error, 5)} for row in rows],
                "left_out": left_out(),
            }
        )
        return
    print_table(
        ("error", "what", "published", "predicted", "GPUs x batch", "system", "row", "note"),
        [
            (
                f"{round(row.error, 9) + 0.0:+.1%}",  # no sign of the last bit
                row.kind,
                f"{row.published:.6g} {'ms' if row.kind == 'step' else 's'}",
                f"{row.predicted:.4g}",
                f"{row.gpus} x {row.batch}",
                row.machine,
                row.name,
                "calibrated" if row.calibrated else row.reason,
            )
            for row in rows
        ],
    )
    print()
    for summary in summaries:
        print(
            f"{summary.kind}: mean absolute error {summary.mean_absolute_error:.1%} over "
            f"{summary.rows} predicted rows (mean {summary.bias:+.1%}; {summary.within_10_percent} "
            f"within 10 %, {summary.within_interval} within their 90 % interval); "
            f"{summary.calibrated} calibrated rows do not count"
        )
    for line in left_out():
        say(f"left out: {line}")
    print("\nfp16 steps of machines with a data sheet, fitted without what is predicted:")
    print_table(
        (
            *("left out at a time", "rows", "mean error", "bias", "in 90 % interval"),
            *(f"from {LARGE_GPUS} on: rows", "mean error"),
        ),
        [
            (
                *(score.left_out, str(score.rows), f"{score.mean_absolute_error:.1%}"),
                *(f"{score.bias:+.1%}", f"{score.within_interval:.0%}"),
                *(str(score.large_rows), f"{score.large_mean_absolute_error:.1%}"),
            )
            for score in scores
        ],
    )
    print(
        f"{constants.free} constants that no data sheet gives and {constants.points} measured "
        f"steps of machine files, for {len(rows)} published figures"
    )


def _calibrate(
    logs: Sequence[str],
    name: str | None,
    precision: str | None,
    out: Path | None,
    *,
    as_json: bool,
    predicted_too: bool,
) -> tuple[System, str]:
    """The fitted system, and the precision that it was fitted in."""
    from ..config.load import load_system, system_yaml
    from ..report.predict_logs import check_device, common_precision, find_source, read_measurement
    from ..scaling.calibrate import calibrate

    sources = [find_source(log) for log in logs]
    own = next((source.run.system for source in sources if source.run), None)
    base = load_system(name or "local") if name or own is None else own
    for source in sources:
        check_device(source, base)
    precision = common_precision(sources, base, precision)
    runs = [read_measurement(source) for source in sources]
    fit = calibrate(name or base.name, base, runs, precision)
    text = system_yaml(fit.system)
    if out is not None:
        write_output(out, text)
    if as_json and not predicted_too:
        print_json(
            {
                "system": base.name,
                "precision": precision,
                "fixed_ms": round(fit.fixed_s * 1e3, 4),
                "per_image_ms": round(fit.per_image_s * 1e3, 5),
                "jitter": fit.jitter,
                "constants": list(fit.constants),
                "residual": None if fit.residual is None else round(fit.residual, 5),
                "runs": [run._asdict() for run in runs],
            }
        )
    if not as_json:
        for run in runs:
            say(f"{run.gpus} x {run.batch}: {run.step_s * 1e3:.2f} ms ({run.source})")
        print(_fit_in_words(fit))
        if out is None:
            print(text)
        elif not is_stdout(out):
            say(f"{out}: written")
    return fit.system, precision


def _fit_in_words(fit: Calibration) -> str:
    line = (
        f"step = {fit.fixed_s * 1e3:.2f} ms + {fit.per_image_s * 1e3:.4f} ms per image, jitter "
        f"{fit.jitter:.1%}"
    )
    names = " and ".join(name.replace("_", " ") for name in fit.constants)
    runs = "1 run" if fit.runs == 1 else f"{fit.runs} runs"
    if fit.residual is None:
        constants = f"constant{'s' * (len(fit.constants) > 1)} ({names})"
        return (
            f"{line}; no residual: {runs} fix{'es' * (fit.runs == 1)} {len(fit.constants)} "
            f"{constants}, so nothing is left to judge the fit by"
        )
    return f"{line}; off by {fit.residual:.1%} (rms) from {runs}, which fixed {names}"


def _simulate(job: Job, steps: int, seed: int, faults: dict[str, Any], as_json: bool) -> None:
    from ..scaling.simulate import simulate_job

    if job.gpus * steps > _MOST_RANK_STEPS:
        raise UserError(
            f"--steps: at most {_MOST_RANK_STEPS // job.gpus} expected for {job.gpus} ranks, "
            f"found {steps}"
        )
    figures = simulate_job(job, steps, seed, **faults)
    if as_json:
        print_json(figures)
        return
    print_table(
        (f"{job.name}: {job.gpus} ranks, {steps} steps", "value"),
        [
            (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
            for name, value in figures.items()
        ],
    )
