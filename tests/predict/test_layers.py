"""ResNet-50 by layer against the trainer's network and published figures."""

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.resnet_stages import UNITS
from rn50.config.schema import Data, Model
from rn50.predict.layer_table import BATCH_NORM_EXCHANGES, resnet, resnet50, wire_groups
from rn50.predict.train_time import BATCH_NORM_STATISTICS_BYTES
from rn50.predict.work import training_flops
from tests.predict.test_groups import RULES

ELEMENTS = 25_557_032
BYTES = {
    "fp16": 2 * (ELEMENTS - 53_120) + 4 * 53_120,
    "fp32": 4 * ELEMENTS,
    "tf32": 4 * ELEMENTS,
}
"""All gradients of a step: batch norm's stay fp32."""


def test_statistics_are_those_of_the_trainers_network() -> None:
    from rn50.train.network.resnet import ResNet

    statistics = ResNet(Model(), 1000).collect_params(".*running_(mean|var)").values()
    elements = sum(math.prod(p.shape) for p in statistics)
    assert 4 * elements == BATCH_NORM_STATISTICS_BYTES
    assert len(statistics) == BATCH_NORM_EXCHANGES


NETWORKS = [
    {"depth": depth, "width": width, "stem": stem, "norm": norm}
    for depth, width, stem, norm in product(
        UNITS, (16, 64), ("imagenet", "small"), ("batch", "none")
    )
]


@pytest.mark.parametrize("choices", NETWORKS, ids=str)
def test_flops_and_tensors_are_those_of_every_residual_network(choices: Any) -> None:
    """A side that no stride divides, so that each rounding counts; images have 3 channels."""
    from rn50.train.gpu.layers import Convolution, Dense, LayerList
    from rn50.train.network.build import trainable
    from rn50.train.network.resnet import ResNet

    model = Model(layout="NHWC", **choices)
    data = Data(classes=10, crop_px=75)
    net = ResNet(model, data.classes)
    described = [(tensor.name, tensor.size) for tensor in resnet(model, 75, 10)[1]]
    assert described == [(p.name, math.prod(p.shape)) for p in trainable(net)]
    if model.norm == "none":  # a plan has none
        return
    flops = 0
    plan = LayerList(net, 75, 75)
    for layer in plan.layers:
        if isinstance(layer, Convolution | Dense):
            maps = plan.values[layer.target]
            flops += 6 * math.prod(layer.weight.shape) * maps.height * maps.width
    assert training_flops(model, data) == flops


def test_published_flops() -> None:
    """4.1 G multiply-adds an image."""
    layers, _ = resnet50()
    flops = sum(layer.forward_flops for layer in layers)
    assert flops == pytest.approx(2 * 4.1e9, rel=0.01)


def test_fujitsus_groups_have_their_published_bytes() -> None:
    """4.10, 22.02, 20.05, 4.84 MB, then one fp32 group of 0.212 MB."""
    groups = wire_groups("cubic(3)", "fp16")
    megabytes = [round(group.n_bytes / 1e6, 2) for group in groups]
    assert megabytes == [4.10, 22.02, 20.05, 4.84, 0.21]
    assert groups[-1].n_bytes == 212_480


@settings(max_examples=40)
@given(rule=RULES, precision=st.sampled_from(sorted(BYTES)))
def test_every_grouping_carries_all_bytes_and_ends_with_backward(
    rule: str, precision: str
) -> None:
    groups = wire_groups(rule, precision)
    assert sum(group.n_bytes for group in groups) == BYTES[precision]
    ready = [group.ready for group in groups]
    assert ready == sorted(ready)
    assert ready[-1] == pytest.approx(1)
    for group in groups:
        assert 0 < group.ready_fixed <= 1
