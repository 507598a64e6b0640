"""What stands in the way of a run is the same to every command, and told before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rn50.compliance.config_rules import check_config
from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.memory import rank_bytes
from rn50.config.names import list_presets
from rn50.launch.preflight import (
    check_whether_it_runs,
    obstacles_here,
    refusals,
)
from rn50.launch.run import Options, launch
from rn50.launch.submit import plan_submission
from rn50.train.gpu import Gpu

NEVER = [
    (("quick", "model.dtype=float16"), "model.dtype: float32 or bfloat16 expected on a cpu"),
    (("quick", "comm.algorithm=double_tree"), "comm.algorithm: one that "),
    (("quick", "model.layout=NHWC"), "model.layout: NCHW expected on a cpu"),
    (
        ("dgx1_8", "batch.per_rank=1000"),
        "batch.per_rank: at most what 17.2 GB hold expected (system.accelerator: NVIDIA Tesla V100 "
        "SXM2 16 GB), found 1000: 44.7 GB or more",
    ),
    (
        ("dgxh100_8", "system.compute_capability=10.0"),
        "system.accelerator: a compute capability that model.network=resnet runs on expected",
    ),
]


@pytest.mark.parametrize(("words", "why"), NEVER)
def test_what_launch_refuses_check_and_submit_refuse(
    words: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    loaded = load(words[0], [*words[1:], f"system.results={tmp_path}"])
    (found,) = refusals(loaded.run)
    assert why in found
    checked = check_whether_it_runs(check_config(loaded), loaded.run)
    assert (checked.verdict, checked.cause) == ("FAIL", found)
    assert checked.findings[0].message == found
    with pytest.raises(UserError) as submitted:
        plan_submission(loaded, "slurm", 1, tmp_path)
    with pytest.raises(UserError) as launched:
        launch(loaded, lambda name: lambda done, total: None, Options("mpirun"))
    assert str(submitted.value) == str(launched.value) == found
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(set(list_presets())))
def test_no_preset_is_refused_for_this_machines_sake(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rn50.train.gpu.read_gpus", lambda: None)
    assert refusals(load(name).run) == []


def test_a_batch_that_memory_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    run = load("quick", ["batch.per_rank=400"]).run
    later = load("quick", ["batch.changes=[{after_epoch: 1, per_rank: 400}]"]).run
    free = "rn50.launch.preflight.free_memory_bytes"
    monkeypatch.setattr(free, lambda: 8_000_000_000)
    (found,) = obstacles_here(run)
    assert found == (
        "batch.per_rank: at most what 8 GB hold expected (free for 2 ranks), found 400: 16.6 GB or "
        "more"
    )
    assert obstacles_here(later) == [found]
    monkeypatch.setattr(free, lambda: 17_000_000_000)
    assert obstacles_here(run) == []


# One rank's peak resident memory in GB, as /usr/bin/time shows it (config/memory.py).
MEASURED = [
    (("smoke", "batch.per_rank=10"), 0.575),
    (("smoke", "batch.per_rank=400", "model.norm=none"), 2.099),
    (("quick", "batch.per_rank=400"), 9.727),
    (("quick", "batch.per_rank=800", "model.dtype=bfloat16"), 9.544),
    (("cpu_small", "batch.per_rank=12", "data.crop_px=224", "data.eval_resize_px=256"), 5.663),
]


@pytest.mark.parametrize(("words", "peak_gb"), MEASURED)
def test_the_estimate_lies_below_what_was_measured(words: tuple[str, ...], peak_gb: float) -> None:
    """A run that would fit is never refused; one of twice the memory is."""
    estimate = rank_bytes(load(words[0], words[1:]).run)
    assert estimate is not None and 0.6 * peak_gb < estimate / 1e9 < peak_gb


def test_mxnet_without_gpus_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("Tesla V100", (7, 0))
    monkeypatch.setattr("rn50.launch.preflight.check_machine", lambda rank, decodes: gpu)
    monkeypatch.setattr("rn50.launch.preflight.gpu_code", lambda path: {"ELF": {70}})
    run = load("dgx1_8").run
    assert obstacles_here(run) == []
    monkeypatch.setattr("rn50.launch.preflight.gpu_code", lambda path: {})
    (found,) = obstacles_here(run)
    assert found.startswith("system.device: MXNet for GPUs (scripts/setup.sh --gpu) for gpu expect")
