"""ResNet-50 by layer against the trainer's network and published figures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.schema import Model
from rn50.scaling.layers import (
    BATCH_NORM_EXCHANGES,
    backward_fraction,
    backward_shares,
    ready_shares,
    resnet50,
    wire_groups,
)
from rn50.scaling.train_time import BATCH_NORM_STATISTICS_BYTES


def payload_bytes(precision: str) -> int:
    """All gradients of a step."""
    return sum(tensor.gradient_bytes(precision) for tensor in resnet50()[1])


def test_tensors_are_those_of_the_trainers_network() -> None:
    from rn50.train.network.build import trainable
    from rn50.train.network.resnet import ResNet

    resnet = ResNet(Model(), 1000, prefix="")
    net = [(p.name, math.prod(p.shape)) for p in trainable(resnet)]
    _, tensors = resnet50()
    assert [(tensor.name, tensor.size) for tensor in tensors] == net
    statistics = resnet.collect_params(".*running_(mean|var)").values()
    assert (
        sum(4 * math.prod(p.shape) for p in statistics) == BATCH_NORM_STATISTICS_BYTES
    )


def test_published_totals() -> None:
    """4.1 G multiply-adds an image."""
    layers, _ = resnet50()
    assert len(layers) == 54
    assert BATCH_NORM_EXCHANGES == 106
    assert sum(layer.forward_flops for layer in layers) == pytest.approx(
        2 * 4.1e9, rel=0.01
    )


def test_payload_on_the_wire() -> None:
    """51.1 MB in fp16 (batch norm in fp32), 102.2 MB in fp32."""
    assert payload_bytes("fp16") == 2 * (25_557_032 - 53_120) + 4 * 53_120
    assert payload_bytes("fp32") == payload_bytes("tf32") == 4 * 25_557_032


def test_fujitsus_groups_have_their_published_bytes() -> None:
    """4.10, 22.02, 20.05, 4.84 MB of 2, 7, 19, 27 tensors, then one fp32 group of 0.212 MB."""
    groups = wire_groups("cubic(3)", "fp16")
    assert [group.tensors for group in groups] == [2, 7, 19, 27, 106]
    assert [round(group.n_bytes / 1e6, 2) for group in groups] == [
        4.10,
        22.02,
        20.05,
        4.84,
        0.21,
    ]
    assert groups[-1].n_bytes == 212_480


def test_backward_takes_some_two_thirds() -> None:
    assert math.fsum(backward_shares()) == pytest.approx(1)
    assert 0.6 < backward_fraction() < 0.7


def test_last_layers_are_ready_first_although_they_hold_most_bytes() -> None:
    """Stage 4 and fc: two thirds of the bytes in the first quarter of backward."""
    ready = ready_shares()
    assert list(ready) == sorted(ready, reverse=True)
    assert ready[0] == pytest.approx(1)
    _, tensors = resnet50()
    early = [t.size for t in tensors if ready[t.layer] <= 0.25]
    assert sum(early) / 25_557_032 > 0.6


RULES = st.one_of(
    st.just("single"),
    st.builds("cubic({})".format, st.integers(1, 50)),
    st.builds("equal_bytes({})".format, st.integers(1, 60)),
    st.builds("equal_count({})".format, st.integers(1, 60)),
)


@settings(max_examples=40)
@given(rule=RULES, precision=st.sampled_from(["fp16", "fp32", "tf32"]))
def test_every_grouping_carries_all_bytes_and_ends_with_backward(
    rule: str, precision: str
) -> None:
    groups = wire_groups(rule, precision)
    assert sum(group.n_bytes for group in groups) == payload_bytes(precision)
    assert sum(group.tensors for group in groups) == 161
    ready = [group.ready for group in groups]
    assert ready == sorted(ready)
    assert ready[-1] == pytest.approx(1)
    assert all(0 < group.ready_fixed <= 1 for group in groups)
