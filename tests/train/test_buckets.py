"""Gradients side by side in one array: where each lies, and that backward writes it there."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd
from mxnet.gluon import nn

from rn50.config.schema import Model
from rn50.predict.layer_table import wire_groups
from rn50.train.communication.buckets import ALIGN_BYTES, lay_out_gradients
from rn50.train.network.build import build_network, trainable
from tests.conftest import refused
from tests.train.emulated import CPU


def network(dtype: str = "float32") -> tuple[nn.HybridSequential, list]:
    net = nn.HybridSequential(prefix="")
    net.add(nn.Conv2D(5, 3, in_channels=3, use_bias=False), nn.BatchNorm(in_channels=5))
    net.add(nn.Dense(7, in_units=180))
    net.initialize()
    net.cast(dtype)
    return net, trainable(net)


@pytest.mark.parametrize(
    "rule", ["single", "equal_count(2)", "explicit(1,1,3)", "cubic(1)"]
)
def test_backward_writes_the_same_gradients_into_the_buckets(rule: str) -> None:
    net, parameters = network()
    images = nd.random.normal(shape=(4, 3, 8, 8))
    net.hybridize(static_alloc=True, static_shape=True)

    def gradients() -> list[np.ndarray]:
        with autograd.record():
            loss = (net(images) ** 2).sum()
        loss.backward()
        return [p.grad().asnumpy() for p in parameters]

    expected = gradients()
    buckets = lay_out_gradients(parameters, rule, CPU)
    # it had fixed where backward writes
    net.hybridize(static_alloc=True, static_shape=True)
    after = gradients()
    for first, second in zip(expected, after, strict=True):
        np.testing.assert_array_equal(second, first)
    # not a copy: a change of the bucket is a change of the gradient
    for bucket in buckets:
        bucket[:] = 1
    for p in parameters:
        assert (p.grad().asnumpy() == 1).all()
    for bucket in lay_out_gradients(parameters, rule, CPU, parts=3):
        assert bucket.size % 3 == 0
        assert bucket.size // 3 * 4 % ALIGN_BYTES == 0


def test_last_layers_come_first_each_on_its_boundary() -> None:
    _, parameters = network()
    (bucket,) = lay_out_gradients(parameters, "single", CPU)
    starts = []
    for number, p in enumerate(parameters, start=1):
        p.grad()[:] = number
        indices = np.flatnonzero(bucket.asnumpy() == number)
        starts.append(int(indices[0]))
    values = bucket.asnumpy()
    assert starts == sorted(starts, reverse=True)
    assert not any(start % (ALIGN_BYTES // 4) for start in starts)
    # gaps stay zero, so that they add nothing
    size = sum(p.grad().size for p in parameters)
    assert np.count_nonzero(values) == size


def test_float32_gradients_of_a_float16_model_travel_last_and_apart() -> None:
    _, parameters = network("float16")  # batch norm keeps float32
    # first layer first: convolution, gamma, beta, weight and bias of the dense layer
    buckets = lay_out_gradients(parameters, "explicit(2,3)", CPU)
    types = [np.dtype(bucket.dtype).name for bucket in buckets]
    assert types == ["float16", "float16", "float32"]
    for p in parameters:
        p.grad()[:] = 1
    assert buckets[-1].sum().asscalar() == 10  # gamma and beta of 5 channels


@pytest.fixture(scope="module")
def resnet50_half() -> list:
    """ResNet-50's parameters as a float16 model has them: 55 float16 tensors, 106 float32."""
    net = build_network(Model(), 1000, crop_px=224)
    net.initialize(mx.init.Zero())
    net.cast("float16")
    return trainable(net)


@pytest.mark.parametrize("rule", ["cubic(3)", "equal_bytes(8)"])
def test_nearly_all_bytes_of_a_float16_model_lie_in_the_groups_of_the_rule(
    rule: str, resnet50_half: list
) -> None:
    """Groups, their bytes and their order are those that recipes name and the predictor costs."""
    buckets = lay_out_gradients(resnet50_half, rule, CPU)
    types = [np.dtype(bucket.dtype) for bucket in buckets]
    sizes = [bucket.asnumpy().nbytes for bucket in buckets]
    assert types[:-1] == [np.float16] * (len(buckets) - 1)
    assert types[-1] == np.float32
    predicted = [group.n_bytes for group in wire_groups(rule, "fp16")]
    padding = ALIGN_BYTES * (len(resnet50_half) + 1)
    for laid_bytes, costed in zip(sizes, predicted, strict=True):
        assert 0 <= laid_bytes - costed < padding


def test_sizes_that_do_not_fit_the_network_are_named() -> None:
    _, parameters = network()
    with refused(
        r"comm\.groups: .*5 tensors \(not to 4\) expected, found explicit\(3,1\)"
    ):
        lay_out_gradients(parameters, "explicit(3,1)", CPU)
