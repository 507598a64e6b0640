"""`rn50 predict`: what would this config take on that machine?"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..host.atomic import is_stdout, write_output
from ..host.errors import UserError
from ..host.reading import JsonObject
from .console import (
    TYPER_OPTIONS,
    Json,
    Nodes,
    argument,
    complete_key,
    complete_preset,
    machine_option,
    on_machine,
    option,
    output_file,
    print_json,
    print_table,
    say,
    say_aside,
)
from .usage import Group

if TYPE_CHECKING:
    from ..predict.calibrate import Calibration
    from ..predict.predictor import PredictedJob, Prediction


class Predict(Group):
    """`rn50 predict` itself is a command; the other commands are named after it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what names no command for the arguments of `run`."""
        if args and args[0] not in (*self.commands, "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


predict_app = typer.Typer(**TYPER_OPTIONS | {"cls": Predict})


@predict_app.callback()
def root() -> None:
    """Step time, images/s and time to train on a described machine, and where the time goes.

    `rn50 predict CONFIG [key.path=value ...]` and `rn50 predict --system MACHINE` are short for
    `rn50 predict run ...`.
    """


Arguments = Annotated[
    list[str] | None,
    argument(
        "A config and its overrides.",
        metavar="CONFIG",
        show_default=False,
        autocompletion=lambda incomplete: (
            complete_preset(incomplete) + complete_key(incomplete)
        ),
    ),
]
Machine = Annotated[
    str | None,
    machine_option(
        "A name (`rn50 config list --systems`) or a YAML file; with CONFIG: moves its recipe "
        "there and keeps the number of ranks, as `system=MACHINE` does."
    ),
]
Gpus = Annotated[
    int | None, option("Accelerators; instead of the config's nodes and ranks.", min=1)
]
Batch = Annotated[int | None, option("Images per accelerator and step.", min=1)]
Algorithm = Annotated[
    str | None,
    option("What if this summed, launched or not: auto, ring, torus_2d(32x64), ..."),
]
Groups = Annotated[
    str | None,
    option("What if in these gradient groups: cubic(3), equal_bytes(8), single, ..."),
]
Precision = Annotated[
    str | None, option("fp16, fp32 or tf32; default: the config's, or fp16.")
]


@dataclass(frozen=True)
class Request:
    """What is to be predicted: a config and overrides, or a machine and a size on it."""

    arguments: list[str] | None
    system: str | None
    gpus: int | None
    batch: int | None
    choices: JsonObject
    """What replaces the config's or the machine's: epochs, algorithm, groups, precision; None: it
    does not."""

    def job(self) -> PredictedJob:
        """The job. Raises UserError: neither config nor machine, or what makes no run."""
        from ..data.survey import is_photo

        if self.arguments and is_photo(self.arguments[0]):
            photo = shlex.quote(self.arguments[0])
            raise UserError(
                f"{photo}: a config expected, whose time is predicted; the class of a photo: "
                f"rn50 evaluate RUN --image {photo}"
            )
        if self.arguments and "=" not in self.arguments[0]:
            return self._of_config(self.arguments[0], self.arguments[1:])
        if self.system is None or self.arguments:
            raise UserError(
                "CONFIG (before its overrides) or --system NAME alone expected; see "
                "`rn50 predict --help`"
            )
        return self._of_system(self.system)

    def best(self) -> list[Prediction]:
        """The best way of each batch, the fastest first. Raises UserError: as `job`."""
        from ..predict.best import best_of_each_batch

        if self.batch is not None:
            raise UserError("--best finds the batch: omit --batch-per-gpu")
        if self.system is not None and not self.arguments and self.gpus is None:
            raise UserError("--best --system needs --gpus or --nodes")
        return best_of_each_batch(self._one_batch, self._made_choices())

    def _made_choices(self) -> JsonObject:
        return {key: value for key, value in self.choices.items() if value is not None}

    def _one_batch(self, batch: int) -> PredictedJob:
        """The job with `batch` images a GPU for the whole run, and, unless they are given, the
        epochs that published runs of such a batch needed."""
        # a recipe's later batches would not be the one that is tried
        arguments = self.arguments and [*self.arguments, "batch.changes=[]"]
        job = replace(self, arguments=arguments, batch=batch).job()
        return replace(job, epochs=self.choices.get("epochs"), last_epoch=None)

    def _of_system(self, name: str) -> PredictedJob:
        """A batch on a machine, in a precision that it has."""
        from ..config.load import load_system
        from ..config.names import is_file
        from ..launch.launchers import family_here
        from ..predict.hardware import known_precisions
        from ..predict.predictor import job_of_system

        system = load_system(name)
        # a user's file may bear the name of a machine of ours
        if is_file(Path(name)):
            name = f"{system.name} ({Path(name).name})"
        choices = self._made_choices()
        if system.performance:
            # the first one, fp16 where it is known; some machines have been measured in fp32 alone
            for precision in known_precisions(system.performance)[:1]:
                choices.setdefault("precision", precision)
        if self.gpus is None or self.batch is None:
            raise UserError(
                "--system without CONFIG needs --gpus (or --nodes) and --batch-per-gpu, or --best, "
                "which finds the batch"
            )
        return job_of_system(
            name, system, self.gpus, self.batch, mpi=family_here(), **choices
        )

    def _of_config(self, config: str, overrides: list[str]) -> PredictedJob:
        """The recipe on its own machine or on another one; `gpus` instead of its ranks."""
        from ..config.load import load
        from ..launch.launchers import family_here
        from ..launch.preflight import refusals, refuse
        from ..predict.predictor import job_of_config, on_system

        if self.batch is not None:
            overrides = [*overrides, f"batch.per_rank={self.batch}"]
        overrides = on_machine(overrides, self.system)
        run = load(config, overrides).run
        choices = self._made_choices()
        if self.gpus is not None:  # laid on whole nodes of the machine
            one_node = load(config, [*overrides, "system.nodes=1"])
            choices["system"] = one_node.run.system
            run = on_system(run, choices["system"], self.gpus)
        refuse(refusals(run))
        return job_of_config(run, mpi=family_here(), **choices)


@predict_app.command("run")
def predict(
    arguments: Arguments = None,
    system: Machine = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    batch_per_gpu: Batch = None,
    epochs: Annotated[
        float | None, option("Epochs of the run; default: what published runs needed.")
    ] = None,
    algorithm: Algorithm = None,
    groups: Groups = None,
    precision: Precision = None,
    best: Annotated[
        bool,
        option("Search batch, groups and algorithm: a row for each batch.", "--best"),
    ] = False,
    plot: Annotated[
        Path | None,
        output_file("Draw as SVG: the curve over GPUs, the step, algorithms, overlap"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict step time, images/s and time to train, and where the time goes.

    Example: `rn50 predict abci_2048_open`

    Example: `rn50 predict abci_2048_open --system dgxa100`

    Example: `rn50 predict --system dgxa100 --gpus 1024 --batch-per-gpu 35 --json`

    Example: `rn50 predict --best --system dgxh100 --gpus 128`

    Example: `rn50 predict --system abci --gpus 2048 --batch-per-gpu 42 --epochs 90 --plot abci.svg`
    """
    from ..config.load import load_system
    from ..predict.predictor import predict as run_predict

    choices = {
        "epochs": epochs,
        "algorithm": algorithm,
        "groups": groups,
        "precision": precision,
    }
    if nodes is not None:
        if gpus is not None:
            raise UserError("--nodes and --gpus exclude each other")
        # of a machine alone; else of the config
        if system is not None and not arguments:
            gpus = nodes * load_system(system).ranks_per_node
        else:
            arguments = [*(arguments or []), f"system.nodes={nodes}"]
    request = Request(arguments, system, gpus, batch_per_gpu, choices)
    if best:
        _predict_best(request, plot, as_json=as_json)
        return
    answer = run_predict(request.job())
    for line in answer.warnings():
        say_aside(f"rn50: warning: {line}")
    if as_json:
        print_json(answer.to_dict())
    else:
        _print_prediction(answer)
    if plot is not None:
        from ..report.prediction import write_plot

        write_plot(answer, plot)
        if not as_json and not is_stdout(plot):
            say(f"{plot}: drawn")


def _predict_best(request: Request, plot: Path | None, *, as_json: bool) -> None:
    from ..report.prediction import BEST_HEADER, best_rows, write_best_plot

    answers = request.best()
    if as_json:
        print_json([answer.to_dict() for answer in answers])
    else:
        first = answers[0]
        say(f"{first.job.name}, {first.job.gpus} accelerators: the fastest batch first")
        print_table(BEST_HEADER, best_rows(answers), right=(0, 1, 4, 5, 6))
        settings = shlex.join(settings_of(first, of_config=bool(request.arguments)))
        say(f"the first row, by itself: add {settings}")
    if plot is not None:
        write_best_plot(answers, plot)


def settings_of(answer: Prediction, *, of_config: bool) -> list[str]:
    """What makes the same prediction beside the words of the search, without `--best`. A config's
    keys are for `rn50 launch` as well."""
    plan = answer.job.plan
    batch = answer.job.batch
    settings = [f"--batch-per-gpu={batch}"]
    settings += [f"--groups={plan.groups}", f"--algorithm={plan.algorithm}"]
    if of_config:
        settings = [f"batch.per_rank={batch}", "batch.changes=[]"]
        settings += [f"comm.groups={plan.groups}", f"comm.algorithm={plan.algorithm}"]
    return [*settings, f"--epochs={answer.epochs:g}"]


def _print_prediction(answer: Prediction) -> None:
    from ..report.prediction import share_rows, summary_rows

    job = answer.job
    head = f"{job.name}: {job.gpus} x {answer.job.batch}"
    print_table((head, "", "90 % interval", ""), summary_rows(answer))
    step_ms = {name: value * 1e3 for name, value in answer.step.parts.items()}
    for title, parts, unit in (
        ("one step", step_ms, "ms"),
        ("the run", answer.run.parts, "s"),
    ):
        print()
        print_table((title, "time", "share"), share_rows(parts, unit))
    # what the constants come from
    machine = answer.machine
    sources = list(map(_step_in_words, machine.points))
    if machine.has_sheet:
        sources.insert(0, "the data sheet")
    line = f"calibrated on {'; '.join(sources)}"
    if not machine.measured:
        line += ": it was not measured"
    print(f"\n{line}")


def _step_in_words(step: Any) -> str:
    """A measured step time."""
    return f"{step.gpus} x {step.batch}: {step.step_s * 1e3:.2f} ms ({step.source})"


@predict_app.command("validate")
def validate(as_json: Json = False) -> None:
    """Compare every published figure with the model, worst first.

    Example: `rn50 predict validate >docs/scaling/validation.txt`
    """
    from ..predict import validate as validation

    rows = validation.validate()
    table = [*rows, *validation.left_out()]
    figures = sorted({row.figure for row in table})
    summaries = [validation.summarise(figure, table) for figure in figures]
    report = {
        "rows": [row._asdict() for row in rows],
        "summaries": [summary._asdict() for summary in summaries],
        "without_machine": validation.without_machine(),
    }
    if as_json:
        print_json(report)
        return
    for title, records in report.items():
        say(f"{title.replace('_', ' ')}: {len(records)}")
        cells = [tuple(map(_cell, record.values())) for record in records]
        print_table([name.replace("_", " ") for name in records[0]], cells)
        print()


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@predict_app.command("calibrate")
def calibrate(
    runs: Annotated[list[str], argument("Run folders or LOG:GPUS.")],
    system: Annotated[
        str | None,
        machine_option("The machine that the runs were on; default: their own."),
    ] = None,
    precision: Precision = None,
    out: Annotated[
        Path | None, output_file("Write the fitted system's YAML here")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit a machine to runs on it; `rn50 predict --system FILE` then predicts on it.

    Example: `rn50 predict calibrate runs/1 runs/2 --system dgxa100 --out mine.yaml`
    """
    from ..config.load import load_system, system_yaml
    from ..predict.calibrate import calibrate as fit_to
    from ..report.predict_logs import common_precision, find_source, read_measurement

    sources = [find_source(run) for run in runs]
    machines = [source.run.system for source in sources if source.run]
    if system:
        machines = [load_system(system)]
    if not machines:
        raise UserError("--system: the machine of a log expected, found none")
    base = machines[0]
    precision = common_precision(sources, base, precision)
    measured = [read_measurement(source) for source in sources]
    fit = fit_to(system or base.name, base, measured, precision)
    content = system_yaml(fit.system)
    if out is not None:
        write_output(out, content)
    if as_json:
        print_json(
            {
                "system": base.name,
                "precision": precision,
                "fixed_ms": round(fit.fixed_s * 1e3, 4),
                "per_image_ms": round(fit.per_image_s * 1e3, 5),
                "jitter": fit.jitter,
                "constants": list(fit.constants),
                "residual": fit.residual and round(fit.residual, 5),
                "runs": [run._asdict() for run in measured],
            }
        )
        return
    for run in measured:
        say(_step_in_words(run))
    print(_fit_in_words(fit))
    if out is None:
        print(content)
    elif not is_stdout(out):
        say(f"{out}: written")


def _fit_in_words(fit: Calibration) -> str:
    line = (
        f"step = {fit.fixed_s * 1e3:.2f} ms + {fit.per_image_s * 1e3:.4f} ms per image, jitter "
        f"{fit.jitter:.1%}"
    )
    names = " and ".join(name.replace("_", " ") for name in fit.constants)
    if fit.residual is None:
        return f"{line}; no residual: as many constants ({names}) as runs"
    return f"{line}; off by {fit.residual:.1%} (rms) from {fit.runs} runs, which fixed {names}"
