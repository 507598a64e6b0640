"""One plan of communication, of config check, launch, dry run, predict and report."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rn50.cli.predict import Request, settings_of
from rn50.config.choices import ALGORITHMS
from rn50.config.communication import launched, plan_own
from rn50.config.load import Loaded, load
from rn50.host.errors import UserError
from rn50.launch.dry_run import describe_launch
from rn50.launch.environment_record import describe_environment
from rn50.launch.launch_plan import Options, plan_launch
from rn50.launch.launchers import build_job, family_here
from rn50.launch.preflight import refusals
from rn50.predict.predictor import job_of_config, predict
from tests import mpi
from tests.predict.systems import SYSTEMS

GRIDS = ("torus_2d(7x9)", "torus_2d(2x1)")
SOME_PRESETS = ("smoke", "dgxa100_n128", "sony_3456", "you_1600_cpu")
"""One of each engine, kind of grid and size."""
LAUNCHER = "gloo" if mpi.WHY_NOT else mpi.LAUNCHER
Reader = Callable[[Loaded], str]


def of_config_check(loaded: Loaded) -> str:
    return "\n".join(refusals(loaded.run))


def of_launch(loaded: Loaded) -> str:
    """The plan as the ranks' environment is built, and as the report has it of a run."""
    _, settings = build_job(loaded.run, LAUNCHER, ())
    return describe_environment(settings, LAUNCHER, ()).allreduce


def of_dry_run(loaded: Loaded) -> str:
    """What the dry run shows."""
    shows = describe_launch(plan_launch(loaded, Options(LAUNCHER)))
    refused = [line for line in shows["problems"] if line.startswith("comm.algorithm")]
    if refused:
        raise UserError(*refused)
    return f"{shows['allreduce']} ({shows['allreduce by']})"


def of_predict(loaded: Loaded) -> str:
    return str(job_of_config(loaded.run, mpi=family_here()).plan)


def outcome(reader: Reader, loaded: Loaded) -> str:
    """The plan, or the refusal."""
    try:
        return reader(loaded)
    except UserError as error:
        return str(error)


def is_predicted(loaded: Loaded) -> bool:
    try:
        of_predict(loaded)
    except UserError:
        return False
    return True


def with_algorithm(loaded: Loaded, algorithm: str) -> Loaded:
    comm = loaded.run.comm.model_copy(update={"algorithm": algorithm})
    return replace(loaded, run=loaded.run.model_copy(update={"comm": comm}))


@pytest.mark.parametrize("name", SOME_PRESETS)
def test_all_readers_have_the_same_plan_or_the_same_refusal(name: str) -> None:
    preset = load(name)
    predicted = is_predicted(preset)
    for algorithm in (*ALGORITHMS, *GRIDS):
        loaded = with_algorithm(preset, algorithm)
        plan = outcome(of_launch, loaded)
        assert outcome(of_dry_run, loaded) == plan
        if predicted:
            assert outcome(of_predict, loaded) == plan
        refused = of_config_check(loaded)
        if LAUNCHER != "gloo":
            assert refused == (plan if plan.startswith("comm.algorithm") else "")


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("goyal_256", "auto"), ("goyal_256", "ring"), ("dgxh100_8", "auto")],
)
def test_the_configs_auto_is_the_engines_choice_not_the_machines(
    name: str, algorithm: str
) -> None:
    """Big Basin's own software halves and doubles, which NCCL does not offer."""
    run = load(name, [f"comm.algorithm={algorithm}"]).run
    answer = predict(job_of_config(run))
    assert answer.job.plan.algorithm == algorithm
    assert answer.job.plan.algorithm_by == (
        "engine" if algorithm == "auto" else "config"
    )
    assert set(answer.step.allreduce.split(", ")) <= {"ring", "double_tree"}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_machines_own_software_is_named_and_what_launch_takes_is_said(
    name: str,
) -> None:
    system = SYSTEMS[name]
    ranks = 4 * system.ranks_per_node
    plan = plan_own(system, ranks, "openmpi")
    assert system.performance is not None
    own_algorithm = system.performance.algorithm
    assert plan.algorithm.partition("(")[0] == own_algorithm
    assert plan.algorithm_by == ("engine" if own_algorithm == "auto" else "machine")
    try:
        launched(plan.algorithm, system, ranks, plan.engine)
    except UserError as error:
        assert plan.refusal == str(error)
    else:
        assert plan.refusal == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "machine"),
    [
        ("goyal_256", ()),
        ("dgxh100_8", ("system.nodes=2048",)),
        ("abci_2048_open", ("system=dgxa100",)),
    ],
)
def test_every_row_of_best_is_launched_and_auto_is_no_faster(
    config: str, machine: tuple[str, ...]
) -> None:
    answers = Request([config, *machine], None, None, None, {}).best()
    for answer in (*answers[:4], *answers[-4:]):
        settings = settings_of(answer, of_config=True)
        keys = [setting for setting in settings if not setting.startswith("--")]
        overrides = [*machine, *keys]
        run = load(config, overrides).run
        assert refusals(run) == []
        for algorithm, faster in ((run.comm.algorithm, False), ("auto", None)):
            variant = load(config, [*overrides, f"comm.algorithm={algorithm}"]).run
            job = job_of_config(variant, mpi=family_here(), epochs=answer.epochs)
            time_s = predict(job).run.total_s
            assert time_s >= answer.run.total_s
            assert time_s == answer.run.total_s or faster is None


@pytest.mark.in_process
def test_a_what_if_is_free_and_marked(rn50: Any) -> None:
    command = ("predict", "goyal_256", "--algorithm", "recursive_halving_doubling")
    assert "a what-if; rn50 launch refuses it" in rn50.output(*command)
    plan = json.loads(rn50.output(*command, "--json"))["communication"]
    assert plan["what_if"] is True
    refusal = plan["launch_refuses"]
    assert refusal.startswith("comm.algorithm: one that nccl offers")
    overridden = "comm.algorithm=recursive_halving_doubling"
    assert refusal in rn50.error("predict", "goyal_256", overridden)
