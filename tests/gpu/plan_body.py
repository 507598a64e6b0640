"""A process of test_plan.py: `python plan_body.py JSON` does what the object says on a fake GPU and
prints an object.

    count      what a step of a preset asks of the device, at its full size
    distances  gradients by our norms and by the fused convolutions from those by cuDNN's
    gradients  the sums of two ranks' gradients, on two ranks or by this one alone
    losses     those of the trial of a device, and of the CPU
    preset     those of a preset's network at 32 px

`norms`: a name of gpu/norms.py that every row of its table gets.
"""

import ctypes
import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import rn50  # noqa: F401  before MXNet, whose finder it installs

# isort: split
import mxnet as mx
import numpy as np
from mxnet import nd

from rn50.config.load import load
from rn50.config.schema import Model, Optimizer, Run
from rn50.train import kernels
from rn50.train.communication.buckets import lay_out_gradients
from rn50.train.devices import operators_for
from rn50.train.gpu.norms import Norms
from rn50.train.network.build import build_networks, trainable
from rn50.train.operators import Criterion
from rn50.train.process_info import read_process_info
from rn50.train.trial_steps import trial_losses
from tests.gpu.hardware_body import moved_bytes
from tests.gpu.steps import Steps, force, join

FAKE = ctypes.CDLL("libcuda.so.1")
FAKE.fakecuda_report.restype = ctypes.c_char_p
STEPS = 4
CLASSES = 10
PX = 32
BATCH = 4


def report() -> dict[str, Any]:
    return json.loads(FAKE.fakecuda_report())


def count(preset: str, overrides: list[str]) -> dict[str, Any]:
    """The counts of a step by name, groups of gradients, bytes of memory."""
    run = load(preset, overrides).run
    ctx = mx.gpu(0)
    batch = run.batch.per_rank
    shape = (batch, run.data.crop_px, run.data.crop_px, 3)
    images = nd.empty(shape, ctx)
    steps = Steps(run, images, nd.array(np.zeros(batch), ctx))
    for _ in range(steps.operators.warm_up_steps):
        steps()
    nd.waitall()
    counts_before = report()["counts"]
    for _ in range(STEPS):
        steps()
    nd.waitall()
    after = report()
    per_step = {}
    for name, number in after["counts"].items():
        per_step[name] = (number - counts_before.get(name, 0)) / STEPS
    return {
        "each": per_step,
        "batch": batch,
        "groups": len(steps.buckets),
        "peak_bytes": after["peak_bytes"],
        "norms": str(steps.operators.norm_layers),
    } | size_of_a_step(steps)


def size_of_a_step(steps: Steps) -> dict[str, int]:
    """The calls and kernels of a plan, and what our kernels read and write; the fake counts cuDNN's
    calls alone."""
    tape = steps.written().tape
    kernels = [entry for entry in tape.entries if entry.blocks]
    of_images = steps.images.size * 4  # by their address
    moved = sum(moved_bytes(entry, tape) for entry in kernels)
    return {"calls": len(tape.entries), "own_bytes": of_images + moved}


def gradients(ranks: int) -> dict[str, Any]:
    """A digest of all gradients, summed over two batches."""
    run = load("smoke", ["system.device=gpu", f"system.ranks_per_node={ranks}"]).run
    model = Model(width=16, dtype="float16", depth="tiny")
    comm = join(run.model_copy(update={"model": model}))
    operators = comm.operators
    net, _, loss = build_networks(
        model, CLASSES, crop_px=PX, seed=1, operators=operators
    )
    comm.plan_groups("equal_count(3)", trainable(net), "float32")
    criterion = operators.criterion(net, loss, comm.buckets)
    sums = [np.zeros(bucket.shape, bucket.dtype) for bucket in comm.buckets]
    for number in range(comm.rank, 2, ranks):
        backward(criterion, operators.ctx, number)
        comm.reduce()
        for total, bucket in zip(sums, comm.buckets, strict=True):
            total += bucket.asnumpy()
    comm.stop()
    digest = hashlib.sha256()
    for total in sums:
        digest.update(total.data)
    magnitudes = np.abs(sums[0].astype(np.float64))
    return {
        "digest": digest.hexdigest(),
        "groups": len(sums),
        "size": float(magnitudes.sum()),
    }


def distances(kinds: list[str]) -> dict[str, Any]:
    """How far each way's float16 gradient of a parameter is from that of float32 by cuDNN's norms,
    as a share of its length: the mean over parameters. No unit is the identity: all of backward
    counts."""
    model = Model(width=16, depth="tiny", zero_gamma=False)
    exact = gradients_by(Norms.CUDNN, model)
    half = model.model_copy(update={"dtype": "float16"})
    shares = {}
    for kind in kinds:
        gradients = gradients_by(Norms[kind], half)
        errors = [
            np.linalg.norm(gradient - exact[name]) / np.linalg.norm(exact[name])
            for name, gradient in gradients.items()
        ]
        shares[kind] = float(np.mean(errors))
    return {"shares": shares}


def gradients_by(norms: Norms, model: Model) -> dict[str, Any]:
    """The gradients of a batch, by parameter."""
    force(norms)
    ctx = mx.gpu(0)
    operators = operators_for(model, ctx)
    net, _, loss = build_networks(
        model, CLASSES, crop_px=PX, seed=1, operators=operators
    )
    parameters = trainable(net)
    buckets = lay_out_gradients(parameters, "single", operators)
    backward(operators.criterion(net, loss, buckets), ctx, 0, images=16)
    nd.waitall()
    return {p.name: p.grad().asnumpy().astype(np.float64) for p in parameters}


def backward(
    criterion: Criterion, ctx: mx.Context, number: int, images: int = BATCH
) -> None:
    """The gradients of one of the batches."""
    rng = np.random.default_rng(number)
    pixels = rng.normal(size=(images, PX, PX, 3))
    labels = rng.integers(0, CLASSES, images)
    losses = criterion.forward(nd.array(pixels, ctx), nd.array(labels, ctx), 8.0)
    criterion.backward(losses, 8.0)


def losses(dtype: str, layout: str) -> dict[str, Any]:
    """The losses of the trial's steps, on the device and on the CPU."""
    return {
        "gpu": trial_losses(mx.gpu(0), dtype, layout).tolist(),
        "cpu": trial_losses(mx.cpu(), "float32").tolist(),
    }


def preset(preset: str, dtype: str) -> dict[str, Any]:
    """Losses of steps of a preset's network, on the device and on the CPU in float32. Its units
    begin as the identity: else batch norm over so few values makes 1e-6 of them a share of 0.07 of
    the loss, in float32 too."""
    kernels.load()
    of_gpu = {"dtype": dtype}
    of_cpu = {"dtype": "float32", "layout": "NCHW"}
    return {
        "gpu": step_losses(load(preset).run, mx.gpu(0), of_gpu),
        "cpu": step_losses(load(preset).run, mx.cpu(), of_cpu),
    }


def step_losses(run: Run, ctx: mx.Context, changes: dict[str, Any]) -> list[float]:
    """The losses of SGD's steps on one batch."""
    model = run.model.model_copy(update={"zero_gamma": True, **changes})
    sgd = Optimizer(variant="sgd", base_lr=0.01)
    run = run.model_copy(update={"model": model, "optimizer": sgd})
    images = np.random.default_rng(1).normal(size=(BATCH, 3, PX, PX))
    labels = np.arange(BATCH)
    steps = Steps(run, nd.array(images, ctx), nd.array(labels, ctx), 8.0)
    return [float(steps().asnumpy().mean()) for _ in range(STEPS)]


def main(options_json: str) -> None:
    options = json.loads(options_json)
    actions: dict[str, Callable[..., dict[str, Any]]] = {
        "count": count,
        "distances": distances,
        "gradients": gradients,
        "losses": losses,
        "preset": preset,
    }
    if name := options.pop("norms", None):
        force(Norms[name])
    answer = actions[options.pop("do")](**options)
    if read_process_info().rank == 0:
        print(json.dumps(report() | answer))


if __name__ == "__main__":
    main(sys.argv[1])
