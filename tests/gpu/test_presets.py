"""Every GPU preset at its full size a rank: 224 px, its batch, precision, layout and recipe.

One rank of each trains on the fake GPU until its first evaluation, on the images of `smoke`, with
the memory and the compute capability of its accelerator; activations take no memory here, so a
batch of 408 fits.
"""

import json
import re

import pytest

from rn50.config.load import load
from rn50.config.names import list_presets
from rn50.config.plan import build_plan
from rn50.config.schema import Run
from tests.gpu.runs import GpuRun

pytestmark = pytest.mark.slow
TRAIN_SAMPLES = 1000
EVAL_SAMPLES = 400
CLASSES = 4
GPU_PRESETS = [name for name in list_presets() if load(name).run.system.device == "gpu"]


def overlay(run: Run) -> dict[str, object]:
    """One rank of `run`: how many there are changes, and what follows from that, nothing else."""
    changes = [
        {
            "after_epoch": change.after_epoch,
            "per_rank": change.per_rank,
            "active_ranks": 1,
        }
        for change in run.batch.changes
    ]
    settings: dict[str, object] = {
        "system.nodes": 1,
        "system.ranks_per_node": 1,
        "data.train_samples": TRAIN_SAMPLES,
        "data.eval_samples": EVAL_SAMPLES,
        "data.classes": CLASSES,
        "data.decode_threads": 1,
        "batch.active_ranks": 1,
        "batch.changes": changes,
        "checkpoint.enabled": False,
    }
    if run.batch.reference is not None:
        settings["batch.reference"] = run.batch.per_rank
    if run.comm.algorithm.startswith(("torus_2d", "hierarchical")):
        settings["comm.algorithm"] = "auto"  # they need two nodes: test_nodes.py
    return settings


ON_HOPPER = ("abci_2048_open", "dgx1_8", "dgxa100_n128", "sony_4096")
"""One preset of each update rule and layout in float16."""


@pytest.mark.parametrize(
    ("name", "hopper"),
    [*((name, False) for name in GPU_PRESETS), *((name, True) for name in ON_HOPPER)],
)
def test_a_rank_of_the_preset_runs_to_its_first_evaluation(
    name: str, hopper: bool, gpu_run: GpuRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs on its own accelerator, and some in float16 on an H100 as well."""
    run = load(name).run
    overlaid = overlay(run)
    capability = run.system.compute_capability or 8.0
    if hopper:
        capability = overlaid["system.compute_capability"] = 9.0
    monkeypatch.setenv("FAKECUDA_CAPABILITY", f"{capability}")
    if memory := re.search(r"(\d+) GB", run.system.accelerator):
        monkeypatch.setenv("FAKECUDA_MEMORY_GIB", memory[1])
    settings = [f"{key}={json.dumps(value)}" for key, value in overlaid.items()]
    done = gpu_run(*settings, config=name, accuracy=[0.99])
    assert done.result["status"] == "success"
    assert done.result["epochs"] == build_plan(run).eval_epochs[0]
    # our kernels, by the real compiler
    if run.model.network == "resnet" and capability >= 7:
        assert done.counts[f"modules compiled for sm_{round(10 * capability)}"] == 1
    print(f"{name}: {done.reports[0]['peak_bytes'] / 2**30:.1f} GiB of the device")
