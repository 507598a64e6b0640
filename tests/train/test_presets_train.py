"""Every preset takes two training steps and one evaluation on a CPU, shrunk in size alone."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from mxnet import nd

from rn50.config.leaves import flatten
from rn50.config.load import load
from rn50.config.names import list_presets
from rn50.config.plan import build_plan
from rn50.config.schema import Run
from rn50.train.capabilities import check_supported
from rn50.train.context import RunContext
from rn50.train.loop import train_steps
from rn50.train.network.build import build_networks, trainable
from rn50.train.process_info import ProcessInfo
from rn50.train.run import evaluate_epoch, log_point
from rn50.train.seeding import stream_seed
from rn50.train.trainer import Trainer, start_up
from tests.conftest import metrics

pytestmark = pytest.mark.slow
SMALL_PX = {"resnet": (32, 36), "alexnet": (64, 72), "googlenet": (64, 72)}
DISTINCT = {"abci_2048_open", "sony_4096", "you_alexnet_32k"}
"""One of each network, batch that changes and way of statistics, and of each update rule that no
other run of these tests has; the rest at night."""
# Not size, and nothing else may differ: a CPU has no float16 GEMM, no NHWC, and MPI no torus.
EXCEPTIONS = {
    ("model.dtype", "float16"): "float32",
    ("model.layout", "NHWC"): "NCHW",
    ("comm.algorithm", "torus_2d"): "auto",
}


def global_batches(run: Run) -> list[int]:
    """Those of all segments, then the one that learning rate or momentum follow."""
    batches = [segment.global_batch_size for segment in build_plan(run).segments]
    return [*batches, run.batch.reference or batches[0]]


def shrunk_batches(run: Run) -> list[int]:
    """The same in the smallest whole numbers of the same proportions, from 2 images on."""
    batches = global_batches(run)
    unit = math.gcd(*batches)
    factor = math.ceil(2 * unit / min(batches))
    return [factor * batch // unit for batch in batches]


def smoke_overlay(run: Run, folder: str) -> list[str]:
    """Overrides that make `run` a run of one CPU rank on the images of `small_data`."""
    first, *following, reference = shrunk_batches(run)
    changes = [
        {"after_epoch": change.after_epoch, "per_rank": batch, "active_ranks": 1}
        for change, batch in zip(run.batch.changes, following, strict=True)
    ]
    crop_px, eval_resize_px = SMALL_PX[run.model.network]
    overlay = {
        "system.nodes": 1,
        "system.ranks_per_node": 1,
        "system.device": "cpu",
        "data.path": folder,
        "data.train_samples": 400,
        "data.eval_samples": 200,
        "data.classes": 4,
        "batch.per_rank": first,
        "batch.active_ranks": 1,
        "batch.changes": changes,
        "eval.batch_per_rank": 50,
    }
    if run.data.crop_px > crop_px:
        overlay |= {"data.crop_px": crop_px, "data.eval_resize_px": eval_resize_px}
    if run.batch.reference is not None:
        overlay["batch.reference"] = reference
    leaves = dict(flatten(run.model_dump(mode="json")))
    for (key, value), replaced in EXCEPTIONS.items():
        if leaves[key] == value:
            overlay[key] = replaced
    return [f"{key}={json.dumps(value)}" for key, value in overlay.items()]


def too_small_a_change(run: Run, tensor: str) -> bool:
    """Inner gammas (1) of a residual branch whose last gamma (0) has made one step of warm-up.

    Their gradient is that gamma times the usual one, and their change less than a bit of a float32.
    """
    return run.model.zero_gamma and tensor.endswith(("_bn1_gamma", "_bn2_gamma"))


def weights(trainer: Trainer) -> dict[str, np.ndarray]:
    return {p.name: p.data().asnumpy() for p in trainable(trainer.model.net)}


@pytest.mark.usefixtures("over_gloo")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in DISTINCT else pytest.mark.nightly)
        for name in list_presets()
    ],
)
def test_preset_takes_two_steps_and_evaluates(
    name: str, small_data: Path, tmp_path: Path
) -> None:
    """Cut off after two steps, then evaluated: the calls and the order of `run`."""
    overlay = smoke_overlay(load(name).run, str(small_data))
    loaded = load(name, overlay)
    run = loaded.run
    check_supported(run)
    context = RunContext(loaded, tmp_path, ProcessInfo(0, 1, 0, "here"))
    context.prepare()
    trainer = start_up(context)
    weights_before = weights(trainer)
    context.log.event("block_start", first_epoch_num=1, epoch_count=1)
    context.log.event("epoch_start", epoch_num=1)
    for point in train_steps(trainer, 1, 2, log_every=1):
        log_point(trainer, point)
    context.log.event("epoch_stop", epoch_num=1)
    nd.waitall()
    after = weights(trainer)
    accuracy = evaluate_epoch(trainer, 1)
    trainer.comm.stop()
    assert accuracy.total == 200
    points = metrics(tmp_path, "train")
    assert [point["step"] for point in points] == [1, 2]
    for point in points:
        # sony_1024 has no label smoothing and is certain of two images: 0 up to rounding, -1.4e-6.
        assert -1e-5 < point["loss"] < math.inf
        assert 0 < point["momentum"] < 1
        assert point["global_batch_size"] == run.batch.per_rank
    unchanged = []
    for tensor, values in after.items():
        assert np.isfinite(values).all(), tensor
        if np.array_equal(values, weights_before[tensor]):
            unchanged.append(tensor)
    assert [t for t in unchanged if not too_small_a_change(run, t)] == []
    assert len(unchanged) < len(after) / 2
    redrawn, *_ = build_networks(
        run.model,
        run.data.classes,
        crop_px=run.data.crop_px,
        seed=stream_seed(run.seed or 0, "weights"),
        operators=trainer.comm.operators,
    )
    for p in trainable(redrawn):
        np.testing.assert_array_equal(p.data().asnumpy(), weights_before[p.name])
