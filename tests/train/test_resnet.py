"""ResNet: names, order and draw are pinned; depths, strides, projections and zero gammas."""

import hashlib
import json
from typing import Any

import mxnet as mx
import pytest

from rn50.config.schema import Model
from rn50.train.network.build import build_networks
from rn50.train.network.resnet import ResNet
from tests.train.emulated import CPU


def nodes(net: ResNet) -> list[dict[str, Any]]:
    """The nodes of its graph."""
    logits = net(mx.sym.var("images"))
    return json.loads(logits.tojson())["nodes"]


@pytest.mark.slow
def test_resnet50_names_order_and_values_are_pinned() -> None:
    """A changed name, order or draw would change every published run."""
    net, _, _ = build_networks(Model(), 1000, crop_px=224, seed=7, operators=CPU)
    parameters = net.collect_params()
    listed = repr([(p.name, p.shape, p.grad_req) for p in parameters.values()])
    digest = hashlib.sha256(listed.encode()).hexdigest()
    assert digest.startswith("800b3c7138ab27fc")
    weights = [
        parameters["conv0_weight"].data()[0, 0, 0, 2].asscalar(),
        parameters["fc_weight"].data()[0, 0].asscalar(),
    ]
    assert weights == pytest.approx([0.09314013, 0.00597772], rel=1e-6)


@pytest.mark.parametrize(
    ("depth", "strided", "projected"), [(18, 1, (2, 3, 4)), (50, 2, (1, 2, 3, 4))]
)
def test_stride_is_on_the_first_3x3_and_projections_are_where_shapes_differ(
    depth: int, strided: int, projected: tuple[int, ...]
) -> None:
    net = ResNet(Model(depth=depth, width=4), 10)
    strides = {
        node["name"]: node["attrs"]["stride"]
        for node in nodes(net)
        if node["op"] == "Convolution"
    }
    halved = {name for name, stride in strides.items() if stride == "(2, 2)"}
    expected = {"conv0_fwd"}
    for stage in (2, 3, 4):
        for name in (strided, "sc"):
            expected.add(f"stage{stage}_unit1_conv{name}_fwd")
    assert halved == expected
    shortcuts = [name for name in strides if "convsc" in name]
    assert shortcuts == [f"stage{stage}_unit1_convsc_fwd" for stage in projected]


@pytest.mark.parametrize(("depth", "last"), [("tiny", "bn3_gamma"), (18, "bn2_gamma")])
def test_zero_gamma_is_on_the_last_norm_of_each_unit_only(
    depth: int | str, last: str
) -> None:
    model = Model(depth=depth, width=8, zero_gamma=True)
    net, _, _ = build_networks(model, 4, crop_px=64, seed=1, operators=CPU)
    for name, p in net.collect_params().items():
        if name.endswith("gamma"):
            assert p.data().asnumpy().any() == (not name.endswith(last)), name


def test_every_relu_is_onednns() -> None:
    """MXNet's own takes oneDNN's blocked maps back to rows: a fifth of the rate, in bfloat16 most
    of it."""
    net = ResNet(Model(), 1000)
    operators = [node["op"] for node in nodes(net)]
    assert operators.count("Activation") == 49
    assert "relu" not in operators
