"""Learning rate and momentum of every step of every published run, against its formula.

The formulas are written from the papers and the submissions, in float64. Nothing of the expectation
comes from the program: `walk` takes the images batch by batch.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import pytest

from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.train.schedule import step_settings

IMAGES = 1_281_167
K = 1024
T = TypeVar("T", int, float)


class Moment(NamedTuple):
    """A step, counted from 1, and how many images had been processed before and are after it."""

    step: int
    images_before: int
    images_after: int
    batch: int

    @property
    def epoch(self) -> float:
        """Processed samples / set size."""
        return self.images_after / IMAGES

    @property
    def epochs_complete(self) -> int:
        """Epochs that were complete before this step."""
        return self.images_before // IMAGES


Curve = Callable[[Moment], float]


class Published(NamedTuple):
    """A run's global batches by the epochs after which they begin, and its curves."""

    batches: dict[int, int]
    lr: Curve
    epochs: int = 90
    momentum: float | Curve = 0.9
    pads: bool = False
    """Each epoch ends with a padded batch of its own."""


def _last_from(values: dict[int, T], epoch: int) -> T:
    """The value that is in force after `epoch` epochs."""
    return values[max(after for after in values if after <= epoch)]


def walk(run: Published) -> Iterator[Moment]:
    step = 0
    done = 0
    for epoch in range(run.epochs):
        batch = _last_from(run.batches, epoch)
        end = done + IMAGES if run.pads else (epoch + 1) * IMAGES
        while done < end:
            step += 1
            images_before = done
            done += batch
            yield Moment(step, images_before, done, batch)


def nvidia(base: float, warmup: float, length: int) -> Curve:
    """MXNet's PolyScheduler, power 2 to 1e-4, at the number of the update."""

    def lr(moment: Moment) -> float:
        if moment.step <= warmup:
            return base * moment.step / warmup
        done = (moment.step - warmup) / (length - warmup)
        return 1e-4 + (base - 1e-4) * (1 - done) ** 2

    return lr


def fujitsu(moment: Moment) -> float:
    """Ends at the ratio 0.0025; `current_iter`, from which it decays, counts the steps before."""
    warmup = 36 * 15
    if moment.step <= warmup:
        return 13 * moment.step / warmup
    decayed = min(1, (moment.step - 1 - warmup) / 780)
    return 13 * ((1 - 0.0025) * (1 - decayed) ** 2.2 + 0.0025)


def goyal(moment: Moment) -> float:
    """From the rate of 256 images to k times that of k times the batch, in a constant step."""
    warmup = round(5 * IMAGES / 8192)
    if moment.step <= warmup:
        return 0.1 + (3.2 - 0.1) * moment.step / warmup
    exponents = {0: 0, 30: 1, 60: 2, 80: 3}
    return 3.2 / 10 ** _last_from(exponents, moment.epochs_complete)


def akiba(moment: Moment) -> float:
    factors = {0: 0.5, 40: 0.075, 70: 0.01, 85: 0.001}
    return 0.1 * 32_768 / 256 * _last_from(factors, moment.epochs_complete)


def sony_a(moment: Moment) -> float:
    """Warm-up as printed; the decay is that of lars_util.py of the TPU repository, by epochs."""
    if moment.epoch < 34:
        return 1e-5 + (34 - 1e-5) * moment.epoch / 34
    done = min(1, (moment.epoch - 34) / (90 - 34))
    return 1e-4 + (34 - 1e-4) * (1 - done) ** 2


def sony_b(moment: Moment) -> float:
    if moment.epoch < 5:
        return 0.2 + (29 - 0.2) * moment.epoch / 5
    base = 29 if moment.epoch < 30 else 50
    return base * (1 - min(1, moment.epoch / 90)) ** 2


def noise_scale(moment: Moment) -> float:
    """Smith and Le: momentum that keeps the noise scale of 32,768 images at 0.9."""
    return 1 - (1 - 0.9) * 32_768 / moment.batch


def you(moment: Moment) -> float:
    """What Sony's formula B takes from its reference 10."""
    if moment.epoch < 30:
        return sony_b(moment)
    return 29 * (1 - min(1, moment.epoch / 90)) ** 2


def alexnet(moment: Moment) -> float:
    """rampup_lr 1, rampup_interval 400, base_lr 32, max_iter 4000, power 2, at iter = step."""
    if moment.step <= 400:
        return 1 + 31 * moment.step / 400
    return 32 * (1 - moment.step / 4000) ** 2


def closed(
    batch: int, epochs: int, base: float, warmup: int, momentum: float = 0.9
) -> Published:
    steps = math.ceil(IMAGES / batch)
    lr = nvidia(base, warmup * steps, epochs * steps)
    return Published({0: batch}, lr, epochs, momentum, pads=True)


SONY_4096 = {0: 34 * K, 30: 68 * K, 45: 85 * K, 75: 119 * K}
RUNS = {
    # training_results_v0.6, Fujitsu/.../mxnet/python/mxnet/explorer/explorer.py
    "abci_2048_open": Published({0: 86_016}, fujitsu, momentum=0.96, pads=True),
    # mlcommons/logging rcps_resnet.json 2.0.0 to 4.0.0; epochs of NVIDIA's entries
    "abci_2048_closed_32k": closed(32_768, 58, 21.2, 16, 0.94),
    "abci_2048_closed_64k": closed(65_536, 90, 24.699, 31, 0.951807),
    # training_results_v0.6 to v3.0, NVIDIA/benchmarks/resnet/implementations/mxnet
    "dgx1_8": closed(1664, 37, 7.4, 2),
    "dgx1_n130": closed(54_080, 90, 38, 25),
    "dgx2h_n32": closed(33_280, 58, 21.2, 16, 0.94),
    "dgxa100_8": closed(3264, 37, 10.5, 2),
    "dgxa100_n128": closed(35_840, 60, 21.9, 17, 0.94),
    "dgxh100_8": closed(3200, 37, 11, 2),
    # Goyal et al., arXiv:1706.02677, sections 2.2 and 5.1
    "goyal_256": Published({0: 8192}, goyal),
    # Akiba et al., arXiv:1711.04325, slow-start learning rate
    "akiba_1024": Published({0: 32_768}, akiba),
    # Mikami et al., arXiv:1811.05233, section 3.2 and Table 3
    "sony_1024": Published({0: 32 * K}, you),
    "sony_2176": Published({0: 34 * K, 30: 68 * K}, sony_a),
    "sony_3456": Published({0: 54 * K}, sony_b, momentum=noise_scale),
    "sony_3456_64k": Published({0: 54 * K, 30: 64 * K}, sony_b, momentum=noise_scale),
    "sony_4096": Published(SONY_4096, sony_a),
    "you_2048_knl": Published({0: 32_768}, you),
    # training_results_v0.6, Google, batch 16,384 (25 after 5 epochs), poly in whole steps
    "you_1600_cpu": Published({0: 16_000}, nvidia(25, 400, 7207)),
    # borisgin/nvcaffe, models/alexnet_bn/solver_32k.prototxt and solvers/sgd_solver.cpp
    "you_alexnet_32k": Published({0: 32_768}, alexnet, epochs=100, pads=True),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_step_has_the_published_learning_rate_and_momentum(name: str) -> None:
    run = load(name).run
    published = RUNS[name]
    plan = build_plan(run)
    settings_at = step_settings(run, plan)
    momentum = published.momentum
    steps = list(walk(published))
    assert plan.total_steps == len(steps)
    for moment in steps:
        settings = settings_at(moment.step)
        lr = published.lr(moment)
        expected = momentum(moment) if callable(momentum) else momentum
        assert settings.global_batch_size == moment.batch, moment
        assert math.isclose(settings.lr, lr, rel_tol=1e-9, abs_tol=1e-15), moment
        assert math.isclose(settings.momentum, expected, rel_tol=1e-9), moment
