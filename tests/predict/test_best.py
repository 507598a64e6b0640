"""`rn50 predict --best`: the search agrees with single predictions, and has bounds."""

import json
import shlex
from typing import Any

import pytest

from rn50.config.load import load_system
from rn50.predict.best import LARGEST_GLOBAL_BATCH, best_of_each_batch
from rn50.predict.predictor import PredictedJob, Prediction, job_of_system, predict
from tests.conftest import refused

SYSTEM = load_system("dgxh100")


def job(gpus: int, batch: int, **choices: Any) -> PredictedJob:
    return job_of_system("dgxh100", SYSTEM, gpus, batch, **choices)


def best_of(gpus: int, **choices: Any) -> list[Prediction]:
    return best_of_each_batch(lambda batch: job(gpus, batch, **choices), choices)


def test_no_groups_and_no_algorithm_train_faster_than_those_found() -> None:
    answers = best_of(128)
    times = [best.run.total_s for best in answers]
    assert times == sorted(times)
    assert len(answers) > 10
    for best in answers[:3]:
        for groups, algorithm in (
            ("single", "ring"),
            ("equal_bytes(4)", "double_tree"),
            ("equal_bytes(8)", "auto"),
        ):
            alternative = job(128, best.job.batch, groups=groups, algorithm=algorithm)
            assert best.run.total_s <= predict(alternative).run.total_s


def test_what_is_given_is_not_searched_and_one_node_has_no_torus() -> None:
    for best in best_of(128, algorithm="torus_2d"):
        assert best.job.plan.algorithm == "torus_2d(16x8)"
    for best in best_of(8):
        assert best.job.plan.algorithm in ("ring", "double_tree", "auto")


def test_more_images_a_step_than_anybody_trained_with_are_refused() -> None:
    (only,) = best_of(20_480)
    assert only.job.global_batch_size == LARGEST_GLOBAL_BATCH
    with refused("beyond every published run"):
        best_of(24_000)


@pytest.mark.in_process
def test_the_command_prints_and_takes_nodes(rn50: Any) -> None:
    command = ("predict", "--best", "--system", "dgxh100")
    assert "dgxh100, 128 accelerators" in rn50.output(*command, "--nodes", "16")
    for wrong, expected in (
        (
            ("--batch-per-gpu", "8", "--gpus", "128"),
            "--best finds the batch: omit --batch-per-gpu",
        ),
        ((), "--best --system needs --gpus or --nodes"),
        (("--gpus", "8", "--nodes", "1"), "--nodes and --gpus exclude each other"),
    ):
        assert expected in rn50.error(*command, *wrong)


@pytest.mark.slow
@pytest.mark.in_process
@pytest.mark.parametrize(
    "arguments",
    [
        ("--system", "abci", "--nodes", "8", "--algorithm", "ring", "--epochs", "60"),
        ("sony_3456",),
        ("dgxh100_8", "--system", "dgxa100", "--gpus", "16"),
    ],
)
def test_the_printed_settings_give_the_first_row(
    rn50: Any, arguments: tuple[str, ...]
) -> None:
    """A config's settings differ from its own batch schedule, groups and algorithm."""
    first, settings = first_row(rn50, arguments)
    repeated = json.loads(rn50("predict", *arguments, *settings, "--json").stdout)
    for key in (
        "global_batch_size",
        "batch_per_gpu",
        "gpus",
        "epochs",
        "time_to_train_s",
        "breakdown",
    ):
        assert repeated[key] == first[key]


def first_row(
    rn50: Any, arguments: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    """The first row, and the settings that are printed for it."""
    done = rn50("predict", "--best", *arguments, "--json")
    first, *_ = json.loads(done.stdout)
    printed = rn50("predict", "--best", *arguments).stdout
    *_, last = printed.splitlines()
    return first, shlex.split(last.removeprefix("the first row, by itself: add "))


def test_the_printed_overrides_launch_the_first_row(rn50: Any) -> None:
    first, settings = first_row(rn50, ("dgxh100_8",))
    overrides = [setting for setting in settings if not setting.startswith("--")]
    plan = rn50("launch", "dgxh100_8", *overrides, "--dry-run").stdout
    plan_values: dict[str, str] = {}
    for line in plan.splitlines():
        name, value, *_ = line.split()
        plan_values.setdefault(name, value)
    assert int(plan_values["batch"]) == first["global_batch_size"]
    assert f"comm.algorithm={plan_values['allreduce']}" in overrides
