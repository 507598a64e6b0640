"""Learning rate and momentum of every step of every published run, against its formula.

The formulas are written from the papers and the submissions, in float64. Nothing of the expectation
comes from the program: `walk` takes the images batch by batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.train.schedule import step_settings

IMAGES = 1_281_167
K = 1024


class At(NamedTuple):
    """A step, counted from 1, and how many images had been processed before and are after it."""

    step: int
    before: int
    after: int
    batch: int

    @property
    def epoch(self) -> float:
        """Processed samples / set size."""
        return self.after / IMAGES

    def past(self, epochs: int) -> bool:
        """Whether so many epochs were complete before this step."""
        return self.before >= epochs * IMAGES


Curve = Callable[[At], float]


class Published(NamedTuple):
    """A run's batches as (after epoch, global batch), whether each epoch ends with a padded batch
    of its own, and its curves."""

    source: str
    batches: tuple[tuple[int, int], ...]
    pads: bool
    epochs: int
    lr: Curve
    momentum: float | Curve = 0.9


def walk(
    batches: tuple[tuple[int, int], ...], epochs: int, *, pads: bool
) -> Iterator[At]:
    step = done = 0
    for epoch in range(epochs):
        batch = next(size for after, size in reversed(batches) if after <= epoch)
        end = done + IMAGES if pads else (epoch + 1) * IMAGES
        while done < end:
            step = step + 1
            done = done + batch
            yield At(step, done - batch, done, batch)


def nvidia(base: float, warmup: float, length: int) -> Curve:
    """MXNet's PolyScheduler, power 2 to 1e-4, at the number of the update."""

    def lr(at: At) -> float:
        if at.step <= warmup:
            return base * at.step / warmup
        return 1e-4 + (base - 1e-4) * (1 - (at.step - warmup) / (length - warmup)) ** 2

    return lr


def fujitsu(at: At) -> float:
    """Ends at the ratio 0.0025; `current_iter`, from which it decays, counts the steps before."""
    if at.step <= 36 * 15:
        return 13 * at.step / (36 * 15)
    decayed = min(1, (at.step - 1 - 36 * 15) / 780)
    return 13 * ((1 - 0.0025) * (1 - decayed) ** 2.2 + 0.0025)


def goyal(at: At) -> float:
    """From the rate of 256 images to k times that of k times the batch, in a constant step."""
    warmup = round(5 * IMAGES / 8192)
    if at.step <= warmup:
        return 0.1 + (3.2 - 0.1) * at.step / warmup
    return 3.2 / 10 ** sum(at.past(epochs) for epochs in (30, 60, 80))


def akiba(at: At) -> float:
    factors = {85: 0.001, 70: 0.01, 40: 0.075, 0: 0.5}
    return (
        0.1 * 32_768 / 256 * next(f for epochs, f in factors.items() if at.past(epochs))
    )


def sony_a(at: At) -> float:
    """Warm-up as printed; the decay is that of lars_util.py of the TPU repository, by epochs."""
    if at.epoch < 34:
        return 1e-5 + (34 - 1e-5) * at.epoch / 34
    return 1e-4 + (34 - 1e-4) * (1 - min(1, (at.epoch - 34) / (90 - 34))) ** 2


def sony_b(at: At) -> float:
    if at.epoch < 5:
        return 0.2 + (29 - 0.2) * at.epoch / 5
    return (29 if at.epoch < 30 else 50) * (1 - min(1, at.epoch / 90)) ** 2


def noise_scale(at: At) -> float:
    """Smith and Le: momentum that keeps the noise scale of 32,768 images at 0.9."""
    return 1 - (1 - 0.9) * 32_768 / at.batch


def you(at: At) -> float:
    """What Sony's formula B takes from its reference 10."""
    return sony_b(at) if at.epoch < 30 else 29 * (1 - min(1, at.epoch / 90)) ** 2


def alexnet(at: At) -> float:
    """rampup_lr 1, rampup_interval 400, base_lr 32, max_iter 4000, power 2, at iter = step."""
    return 1 + 31 * at.step / 400 if at.step <= 400 else 32 * (1 - at.step / 4000) ** 2


FUJITSU = "training_results_v0.6, Fujitsu/.../mxnet/python/mxnet/explorer/explorer.py"
GOYAL = "Goyal et al., arXiv:1706.02677, sections 2.2 and 5.1"
AKIBA = "Akiba et al., arXiv:1711.04325, slow-start learning rate"
SONY = "Mikami et al., arXiv:1811.05233, section 3.2 and Table 3"
RCP = "mlcommons/logging rcps_resnet.json 2.0.0 to 4.0.0; epochs of NVIDIA's entries"
NVIDIA = "training_results_{}, NVIDIA/benchmarks/resnet/implementations/mxnet"
GOOGLE = "training_results_v0.6, Google, batch 16,384 (25 after 5 epochs), poly in whole steps"
CAFFE = (
    "borisgin/nvcaffe, models/alexnet_bn/solver_32k.prototxt and solvers/sgd_solver.cpp"
)


def closed(
    source: str,
    batch: int,
    epochs: int,
    base: float,
    warmup: int,
    momentum: float = 0.9,
) -> Published:
    steps = math.ceil(IMAGES / batch)
    lr = nvidia(base, warmup * steps, epochs * steps)
    return Published(source, ((0, batch),), True, epochs, lr, momentum)


RUNS = {
    "abci_2048_open": Published(FUJITSU, ((0, 86_016),), True, 90, fujitsu, 0.96),
    "abci_2048_closed_32k": closed(RCP, 32_768, 58, 21.2, 16, 0.94),
    "abci_2048_closed_64k": closed(RCP, 65_536, 90, 24.699, 31, 0.951807),
    "dgx1_8": closed(NVIDIA.format("v0.7"), 1664, 37, 7.4, 2),
    "dgx1_n130": closed(NVIDIA.format("v0.6"), 54_080, 90, 38, 25),
    "dgx2h_n32": closed(NVIDIA.format("v0.7"), 33_280, 58, 21.2, 16, 0.94),
    "dgxa100_8": closed(NVIDIA.format("v2.0"), 3264, 37, 10.5, 2),
    "dgxa100_n128": closed(NVIDIA.format("v2.0"), 35_840, 60, 21.9, 17, 0.94),
    "dgxh100_8": closed(NVIDIA.format("v3.0"), 3200, 37, 11, 2),
    "goyal_256": Published(GOYAL, ((0, 8192),), False, 90, goyal),
    "akiba_1024": Published(AKIBA, ((0, 32_768),), False, 90, akiba),
    "sony_1024": Published(SONY, ((0, 32 * K),), False, 90, you),
    "sony_2176": Published(SONY, ((0, 34 * K), (30, 68 * K)), False, 90, sony_a),
    "sony_3456": Published(
        SONY, ((0, 54 * K), (30, 54 * K)), False, 90, sony_b, noise_scale
    ),
    "sony_3456_64k": Published(
        SONY, ((0, 54 * K), (30, 64 * K)), False, 90, sony_b, noise_scale
    ),
    "sony_4096": Published(
        SONY,
        ((0, 34 * K), (30, 68 * K), (45, 85 * K), (75, 119 * K)),
        False,
        90,
        sony_a,
    ),
    "you_2048_knl": Published(SONY, ((0, 32_768),), False, 90, you),
    "you_1600_cpu": Published(GOOGLE, ((0, 16_000),), False, 90, nvidia(25, 400, 7207)),
    "you_alexnet_32k": Published(CAFFE, ((0, 32_768),), True, 100, alexnet),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_step_has_the_published_learning_rate_and_momentum(name: str) -> None:
    run = load(name).run
    published = RUNS[name]
    plan = build_plan(run)
    settings_at = step_settings(run, plan)
    momentum = published.momentum
    steps = list(walk(published.batches, published.epochs, pads=published.pads))
    assert plan.total_steps == len(steps), published.source
    for at in steps:
        found = settings_at(at.step)
        expected = momentum(at) if callable(momentum) else momentum
        assert found.global_batch_size == at.batch, at
        assert math.isclose(found.lr, published.lr(at), rel_tol=1e-9, abs_tol=1e-15), (
            at,
            found,
        )
        assert math.isclose(found.momentum, expected, rel_tol=1e-9), (at, found)
