from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from rn50.config import benchmark
from rn50.config.load import load
from rn50.config.schema import Model
from rn50.train.resnet import Loss, ResNet, bn_statistics, build_networks, trainable
from rn50.train.weights import weights_digest


def parameters_of(model: Model, classes: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(p.name, p.shape) for p in trainable(ResNet(model, classes, prefix=""))]


def test_resnet50_has_161_tensors_and_25557032_parameters() -> None:
    shapes = parameters_of(Model(), benchmark.IMAGENET_CLASSES)
    assert len(shapes) == benchmark.RESNET50_TENSORS == 161
    assert sum(int(np.prod(s)) for _, s in shapes) == benchmark.RESNET50_PARAMETERS == 25_557_032


def test_resnet50_parameters_by_stage() -> None:
    """Convolution weights of each stage: recipes.md section 4."""
    shapes = parameters_of(Model(), 1000)

    def weights(prefix: str) -> int:
        return sum(int(np.prod(s)) for n, s in shapes if n.startswith(prefix) and len(s) == 4)

    assert weights("conv0") == 9_408
    assert weights("stage1_unit1") == 4096 + 36864 + 16384 + 16384
    stages = [weights(f"stage{stage}_") for stage in range(1, 5)]
    assert stages == [212_992, 1_212_416, 7_077_888, 14_942_208]
    assert sum(int(np.prod(s)) for n, s in shapes if n.startswith("fc_")) == 2_049_000
    gammas_betas = [s for n, s in shapes if n.endswith(("gamma", "beta"))]
    assert (len(gammas_betas), sum(s[0] for s in gammas_betas)) == (106, 53_120)


def test_quick_has_the_real_depth() -> None:
    run = load("quick").run
    assert len(parameters_of(run.model, run.data.classes)) == 161


def test_stride_is_on_the_3x3() -> None:
    net = ResNet(Model(), 10, prefix="")
    for name, block in _units(net):
        strides = (block.conv1.conv, block.conv2.conv, block.conv3.conv)
        first_of_later_stage = name[1] == 1 and name[0] > 1
        expected = [(1, 1), (2, 2) if first_of_later_stage else (1, 1), (1, 1)]
        assert [conv._kwargs["stride"] for conv in strides] == expected


def _units(net: ResNet) -> list[tuple[tuple[int, int], object]]:
    blocks = [b for b in net.body._children.values() if hasattr(b, "conv3")]
    places = [(s, u) for s, n in enumerate((3, 4, 6, 3), 1) for u in range(1, n + 1)]
    return list(zip(places, blocks, strict=True))


@pytest.mark.parametrize(("stem", "px"), [("imagenet", 64), ("small", 32)])
def test_output_shape_and_shared_parameters(stem: str, px: int) -> None:
    model = Model(depth="tiny", width=8, stem=stem)
    net, eval_net, _ = build_networks(model, 7, seed=3, ctx=mx.cpu())
    images = mx.nd.random.uniform(shape=(2, 3, px, px))
    assert net(images).shape == eval_net(images).shape == (2, 7)
    before = eval_net(images).asnumpy()
    np.testing.assert_array_equal(before, net(images).asnumpy())  # both in inference mode here
    net.collect_params()["fc_bias"].data()[:] = 1
    assert np.allclose(eval_net(images).asnumpy() - before, 1, atol=1e-5)


def test_no_batch_norm_has_no_statistics() -> None:
    net = ResNet(Model(depth="tiny", width=8, norm="none"), 4, prefix="")
    assert bn_statistics(net) == []


def test_weights_depend_on_the_seed_alone() -> None:
    model = Model(depth="tiny", width=8)

    def digest(seed: int, disturb: int) -> bytes:
        mx.random.seed(disturb)
        np.random.seed(disturb)
        net, _, _ = build_networks(model, 4, seed=seed, ctx=mx.cpu())
        return weights_digest(net)

    assert digest(1, 5) == digest(1, 6)
    assert digest(1, 5) != digest(2, 5)


def test_initial_scale_is_he_normal() -> None:
    net, _, _ = build_networks(Model(width=32), 100, seed=1, ctx=mx.cpu())
    parameters = net.collect_params()
    weight = parameters["stage3_unit2_conv2_weight"].data().asnumpy()
    expected = np.sqrt(2 / np.prod(weight.shape[1:]))
    assert weight.std() == pytest.approx(expected, rel=0.02)
    assert parameters["fc_weight"].data().asnumpy().std() == pytest.approx(0.01, rel=0.02)


def test_zero_gamma_is_on_the_last_norm_of_each_unit_only() -> None:
    net, _, _ = build_networks(
        Model(depth="tiny", width=8, zero_gamma=True), 4, seed=1, ctx=mx.cpu()
    )
    for name, p in net.collect_params().items():
        if name.endswith("gamma"):
            assert p.data().asnumpy().any() == (not name.endswith("bn3_gamma")), name


@pytest.mark.parametrize("form", ["others", "uniform"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_against_its_definition(form: str, smoothing: float) -> None:
    classes = 6
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(5, classes)), np.array([0, 5, 2, 3, 3])
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    if form == "others":
        target = np.full((5, classes), smoothing / (classes - 1))
        target[np.arange(5), labels] = 1 - smoothing
    else:
        target = np.full((5, classes), smoothing / classes)
        target[np.arange(5), labels] += 1 - smoothing
    loss = Loss(Model(label_smoothing=smoothing, smoothing_form=form), classes)
    found = loss(mx.nd.array(logits), mx.nd.array(labels)).asnumpy()
    np.testing.assert_allclose(found, -(target * np.log(p)).sum(axis=1), rtol=1e-5)


def test_digest_sees_one_bit() -> None:
    net, _, _ = build_networks(Model(depth="tiny", width=8), 4, seed=1, ctx=mx.cpu())
    before = weights_digest(net)
    weight = net.collect_params()["conv0_weight"].data()
    value = weight[0, 0, 0, 0].asnumpy()
    weight[0, 0, 0, 0] = np.nextafter(value, np.float32(np.inf))
    assert weights_digest(net) != before
