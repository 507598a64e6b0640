"""Predictions: the two runs that must be met, intervals, configs, calibration from runs."""

import re
from typing import Any

import pytest

from rn50.config.load import load, load_system
from rn50.config.machine import System
from rn50.config.names import list_presets
from rn50.host.errors import UserError
from rn50.predict.calibrate import Measurement, calibrate
from rn50.predict.fit import build
from rn50.predict.gpu import ENTRY_BYTES_PER_IMAGE, SHEET, from_sheet
from rn50.predict.predictor import (
    Prediction,
    job_of_config,
    job_of_system,
    precision_of,
    predict,
    strong_curve,
)
from rn50.predict.step import step_time
from rn50.predict.train_time import evaluation_s
from tests.conftest import refused
from tests.predict.systems import SYSTEMS, about


def answer(name: str, gpus: int, batch: int, **choices: Any) -> Prediction:
    job = job_of_system(name, load_system(name), gpus, batch, **choices)
    return predict(job)


def test_fujitsus_record() -> None:
    """70.4 s: step time within 5 %, time to train within 3 % with its own epoch count."""
    from_config = predict(job_of_config(load("abci_2048_open").run))
    for run in (answer("abci", 2048, 42, epochs=90), from_config):
        assert run.step.total_s == pytest.approx(49.2e-3, rel=0.05)
        assert run.run.total_s == pytest.approx(70.4, rel=0.03)
    assert from_config.epochs == 90
    assert from_config.evaluations == 23


def test_sonys_efficiency() -> None:
    """Table 6: 4 GPUs over p GPUs at 32 images each, within 3 points."""
    assert answer("abci_nnl", 4, 32).node_efficiency is None
    for gpus, efficiency in ((1024, 0.8475), (4096, 0.7344)):
        all_nodes = answer("abci_nnl", gpus, 32)
        assert all_nodes.node_efficiency == pytest.approx(efficiency, abs=0.03)


def test_json_is_the_one_of_the_design() -> None:
    figures = answer("dgxa100", 1024, 35).to_dict()
    low, high = figures["interval"]
    assert low < figures["time_to_train_s"] < high
    parts = figures["breakdown"]
    step_ms = sum(parts["step_ms"].values())
    assert step_ms == pytest.approx(figures["step_time_ms"], abs=0.01)
    run_s = sum(parts["run_s"].values())
    assert run_s == pytest.approx(figures["time_to_train_s"], abs=0.01)
    images = 1024 * 35
    rate = images / figures["step_time_ms"] * 1e3
    assert figures["images_per_s"] == pytest.approx(rate, rel=0.01)


def test_software_that_was_not_measured_is_priced_by_its_bytes() -> None:
    """Ours moves more of them than an entry, and is a CUDA graph as well."""
    ours = answer("dgxh100_own", 8, 400)
    performance = ours.machine.performance
    assert performance.bytes_per_image is not None
    fixed_s, per_image_s = from_sheet(about("dgxh100"), SHEET)
    share = performance.bytes_per_image / ENTRY_BYTES_PER_IMAGE
    more_bytes = (share - 1) * SHEET.bytes_per_image
    more_s = more_bytes / performance.memory_bytes_per_s
    difference_s = ours.machine.per_image_s - per_image_s
    assert difference_s == pytest.approx(more_s)
    assert ours.machine.fixed_s == fixed_s
    assert more_s > 0
    for name, measured in (
        ("dgxh100_own", False),
        ("dgxh100", True),
        ("h200_own", True),
    ):
        assert answer(name, 8, 400).to_dict()["measured"] is measured


def test_flops_and_cost_of_the_record() -> None:
    """90 epochs of 1,281,167 images at 24.5 GFLOP, on 2,048 x 125 TFLOP/s; with 20.9 s before the
    clock it holds 2,048 GPUs for 90.6 s."""
    record = predict(job_of_config(load("abci_2048_open").run))
    flops = 90 * 1_281_167 * 24.5e9
    assert record.training_flops == pytest.approx(flops, rel=0.01)
    peak = record.images_per_s * 24.5e9 / (2048 * 1.25e14)
    assert record.mfu == pytest.approx(peak, rel=0.01)
    assert predict(job_of_config(load("goyal_256").run)).mfu is None
    assert record.gpu_hours == pytest.approx(2048 * (20.9 + record.run.total_s) / 3600)
    assert record.gradient_bytes == 2 * 25_557_032 + 2 * 53_120


def test_the_global_batch_stays_in_strong_scaling() -> None:
    """More GPUs never take longer than in weak scaling would an epoch, and hold the same images."""
    weak = answer("dgxh100", 64, 64)
    points = strong_curve(weak)
    assert len(points) > 4
    for point in points:
        assert point.job.global_batch_size == 64 * 64
        assert point.epochs == weak.epochs
    times_s = [point.run.total_s for point in points]
    assert times_s[0] > 4 * min(times_s)


def test_float32_is_tf32_where_that_alone_was_measured() -> None:
    run = load("smoke").run
    assert precision_of(run, SYSTEMS["dgxa100"]) == "tf32"
    both = about("dgxa100").model_copy(update={"fp32": about("dgx1").fp32})
    assert precision_of(run, System(performance=both)) == "fp32"


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_is_predicted_or_refused_with_a_reason(name: str) -> None:
    run = load(name).run
    try:
        answer = predict(job_of_config(run))
    except UserError:
        model = run.model
        assert (
            model.network != "resnet"
            or model.depth != 50
            or model.width != 64
            or run.data.train_samples != 1_281_167
            or run.system.performance is None
        )
    else:
        assert answer.run.total_s > 0


@pytest.mark.parametrize(
    ("gpus", "batch", "choices", "message"),
    [
        (2047, 8, {}, "whole nodes of dgx1 expected, multiples of 8 such as 2040"),
        (16, 4096, {}, "found 4096, which need about 181"),
        (2048, 1000, {}, "--batch-per-gpu: 1 to 625 on 2048 GPUs expected"),
        (8, 32, {"epochs": 0.0}, "--epochs: 1 to"),
        (8, 32, {"groups": "three"}, "cubic"),
        (8, 32, {"algorithm": "star"}, "one of auto, ring"),
        (8, 32, {"algorithm": "torus_2d(3x5)"}, "a grid of 8 ranks"),
    ],
)
def test_bad_jobs_name_key_expected_and_found(
    gpus: int, batch: int, choices: dict[str, object], message: str
) -> None:
    with refused(re.escape(message)):
        answer("dgx1", gpus, batch, **choices)


# --- calibration from a user's runs ------------------------------------------------------------


def test_calibration_recovers_a_machine_from_its_own_steps() -> None:
    """Runs made up by one machine, fitted onto another with the same network."""
    truth = build("dgxa100", load_system("dgxa100"))
    runs = []
    for gpus, batch in ((8, 256), (8, 64), (16, 64), (64, 48)):
        step_s = step_time(truth, gpus, batch).total_s
        runs.append(Measurement(gpus, batch, step_s, "made up"))
    fit = calibrate("mine", load_system("dgxa100_v07"), runs)
    assert fit.residual is not None
    assert fit.residual < 1e-3
    assert fit.constants == ("fixed", "per_image", "jitter")
    assert fit.fixed_s == pytest.approx(truth.fixed_s, rel=0.02)
    assert fit.per_image_s == pytest.approx(truth.per_image_s, rel=0.01)
    assert fit.jitter == pytest.approx(0.005, abs=0.002)
    large_s = step_time(build("mine", fit.system), 1024, 35).total_s
    true_s = step_time(truth, 1024, 35).total_s
    assert large_s == pytest.approx(true_s, rel=0.01)


def test_one_run_fixes_one_constant_and_its_clocks() -> None:
    base = load_system("dgxh100")
    run = Measurement(
        gpus=8, batch=400, step_s=0.06, source="one", startup_s=7.0, evaluation_s=0.9
    )
    both = calibrate("mine", base, [run, run._replace(batch=200, step_s=0.04)])
    assert len(both.constants) == 2
    assert both.residual is None
    fit = calibrate("mine", base, [run])
    assert fit.constants == ("per_image",)
    assert fit.residual is None
    assert fit.fixed_s == pytest.approx(build("h", base).fixed_s)
    job = job_of_system("mine", fit.system, 8, 400)
    answer = predict(job)
    assert answer.step.total_s == pytest.approx(0.06)
    assert answer.run.startup_s == 7.0
    assert evaluation_s(answer.machine, 8) == pytest.approx(0.9)


def test_runs_that_differ_alone_by_chance_are_met_in_their_middle() -> None:
    # shorter than what the data sheet calls fixed
    steps_s = (0.0040, 0.0048, 0.0044)
    runs = [Measurement(8, 16, step_s, "again") for step_s in steps_s]
    fit = calibrate("mine", load_system("dgxa100"), runs)
    step = step_time(build("mine", fit.system), 8, 16)
    assert step.total_s == pytest.approx(0.0044, rel=1e-6)
    squares = 0.1**2 + (1 / 12) ** 2
    residual = (squares / 3) ** 0.5
    assert fit.residual == pytest.approx(residual, rel=1e-6)


def test_a_run_ends_with_its_schedule_or_its_limit() -> None:
    """Published runs of such a batch needed 57.2 epochs."""
    preset = "abci_2048_closed_32k"
    assert predict(job_of_config(load(preset).run)).epochs == 56
    limited = predict(job_of_config(load(preset, ["limits.epochs=10"]).run))
    assert limited.epochs == 10
    assert limited.epochs_interval == (10, 10)
    longer = predict(job_of_config(load(preset, ["schedule.length=90 epochs"]).run))
    assert (longer.epochs, longer.epochs_interval) == (60, (56, 60))
