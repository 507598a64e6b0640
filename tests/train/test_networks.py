"""All networks: sizes of the literature, shapes, gradients, shared weights, seeds, the loss."""

import threading
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd

from rn50.config import benchmark
from rn50.config.load import load
from rn50.config.schema import Model
from rn50.train.capabilities import check_supported
from rn50.train.network.build import (
    Loss,
    bn_statistics,
    build_network,
    build_networks,
    copy_parameters,
    image_shape,
    trainable,
    weights_digest,
)
from rn50.train.network.googlenet import LocalNorm
from tests.conftest import refused
from tests.train.emulated import CPU

# Small enough to run, with their crop sizes: every network, stem and kind of block.
SMALL = {
    "tiny": (Model(depth="tiny", width=8), 64),
    "small stem": (Model(depth="tiny", width=8, stem="small"), 32),
    "18": (Model(depth=18, width=8), 64),
    "alexnet": (Model(network="alexnet"), 64),
    "googlenet": (Model(network="googlenet"), 64),
}
LAYOUTS = ("NCHW", "NHWC")
TO_NHWC = (0, 2, 3, 1)
TO_NCHW = (0, 3, 1, 2)


@pytest.mark.parametrize(
    ("model", "tensors", "count"),
    [
        (Model(depth=18), 62, 11_689_512),
        (Model(depth=34), 110, 21_797_672),
        (Model(depth=50), benchmark.RESNET50_TENSORS, 25_557_032),
        (Model(depth=101), 314, 44_549_160),
        (Model(depth=152), 467, 60_192_808),
        (Model(network="alexnet"), 16, 61_100_840),
        (Model(network="googlenet"), 116, 6_998_552),
    ],
)
def test_parameters_are_those_of_the_literature(
    model: Model, tensors: int, count: int
) -> None:
    parameters = trainable(build_network(model, 1000, crop_px=224))
    assert len(parameters) == tensors
    elements = sum(int(np.prod(p.shape)) for p in parameters)
    assert elements == count


@pytest.mark.parametrize("layout", LAYOUTS)
def test_googlenets_last_maps_of_224_px_are_those_of_the_paper(layout: Any) -> None:
    """7 x 7 into the mean. AlexNet's are in its number of parameters, ResNet's in its strides."""
    model = Model(network="googlenet", layout=layout)
    net = build_network(model, 1000, crop_px=224)
    inner = net(mx.sym.var("images")).get_internals()
    joined = [name for name in inner.list_outputs() if "concat" in name]
    last = joined[-1]
    images = image_shape(net, 1, 224)
    _, shapes, _ = inner[last].infer_shape(images=images)
    expected = {"NCHW": (1, 1024, 7, 7), "NHWC": (1, 7, 7, 1024)}
    assert shapes == [expected[layout]]


def built(case: str, **changes: str) -> Any:
    """(training network, evaluation network, loss) of a case, for five classes."""
    model, px = SMALL[case]
    model = model.model_copy(update=changes)
    return build_networks(model, 5, crop_px=px, seed=3, operators=CPU)


def random_images(case: str) -> np.ndarray:
    px = SMALL[case][1]
    rng = np.random.default_rng(0)
    return rng.normal(size=(4, 3, px, px))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["tiny", "alexnet"])
def test_the_evaluation_network_has_copied_parameters(case: str) -> None:
    net, eval_net, _ = built(case)
    images = nd.array(random_images(case))
    assert not eval_net(images).asnumpy().any()  # nothing copied yet
    copy_parameters(net, eval_net, CPU)
    logits_before = eval_net(images).asnumpy()
    # both in inference mode here
    np.testing.assert_array_equal(logits_before, net(images).asnumpy())
    net.collect_params()["fc_bias"].data()[:] = 1
    copy_parameters(net, eval_net, CPU)  # over weights that inference has rewritten
    after = eval_net(images).asnumpy()
    assert np.allclose(after - logits_before, 1, atol=1e-5)


@pytest.mark.parametrize("case", SMALL)
def test_names_end_as_the_optimizers_rule_expects(case: str) -> None:
    model, px = SMALL[case]
    net = build_network(model, 4, crop_px=px)
    for p in trainable(net):
        ending = p.name.rpartition("_")[2]
        if len(p.shape) > 1:
            assert ending == "weight", p.name
        else:
            assert ending in ("bias", "gamma", "beta"), p.name
    has_statistics = bool(bn_statistics(net))
    assert has_statistics == (model.network == "resnet")


@pytest.mark.slow
def test_initial_scale_is_he_normal_but_for_the_classifier() -> None:
    """AlexNet has other dense layers; test_resnet.py pins ResNet's draw."""
    net, *_ = built("alexnet")
    parameters = net.collect_params()
    for layer in ("conv3", "fc6", "fc7", "fc"):
        name = f"{layer}_weight"
        weight = parameters[name].data().asnumpy()
        expected = np.sqrt(2 / weight[0].size)
        if name == "fc_weight":
            expected = 0.01
        assert weight.std() == pytest.approx(expected, rel=0.02), name
    bias = parameters["fc6_bias"].data().asnumpy()
    assert not bias.any()


def channels_first_convolution(convolution: Any, transpose: Any) -> Any:
    """MXNet's convolution with NHWC computed as NCHW: a CPU has no other."""

    def compute(x: Any, weight: Any, *bias: Any, layout: str, **kwargs: Any) -> Any:
        if layout == "NCHW":
            return convolution(x, weight, *bias, **kwargs)
        first = (transpose(array, axes=TO_NCHW) for array in (x, weight))
        return transpose(convolution(*first, *bias, **kwargs), axes=TO_NHWC)

    return compute


@pytest.mark.slow
@pytest.mark.parametrize("case", ["18", "alexnet", "googlenet"])
def test_both_layouts_are_the_same_function(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits, losses, all gradients, and what evaluation gets of the same draw; only the
    convolution of NHWC is another than on a GPU."""
    networks = [built(case, layout=layout) for layout in LAYOUTS]
    for module in (mx.nd, mx.sym):
        compute = channels_first_convolution(module.Convolution, module.transpose)
        monkeypatch.setattr(module, "Convolution", compute)
    images = random_images(case)
    for net, eval_net, _ in networks:
        copy_parameters(net, eval_net, CPU)
    digests = {weights_digest(eval_net) for _, eval_net, _ in networks}
    assert len(digests) == 1
    computed = []
    for net, _, loss in networks:
        in_layout = images if net.layout == "NCHW" else images.transpose(TO_NHWC)
        mx.random.seed(1)  # dropout, after which all is of one order in both
        with autograd.record():
            logits = net(nd.array(in_layout))
            losses = loss(logits, nd.array([0, 1, 2, 3]))
        losses.backward()
        gradients = {p.name: p.grad().asnumpy() for p in trainable(net)}
        computed.append((logits.asnumpy(), losses.asnumpy(), gradients))
    first, last = computed
    logits, losses, gradients = first
    turned_logits, turned_losses, turned = last
    np.testing.assert_allclose(turned_logits, logits, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(turned_losses, losses, rtol=1e-3)
    for name, expected in gradients.items():
        assert np.isfinite(expected).all(), name
        assert expected.any(), name
        if expected.ndim == 4:
            expected = expected.transpose(TO_NHWC)
        # Rounding decides some maxima of the poolings: 0.3 % of the largest in GoogLeNet's first.
        close = 0.02 * np.abs(expected).max()
        np.testing.assert_allclose(
            turned[name], expected, rtol=0, atol=close, err_msg=name
        )


@pytest.mark.slow
def test_dropout_follows_the_seed_of_the_thread_that_trains() -> None:
    net, *_ = built("alexnet")
    images = nd.array(random_images("alexnet"))

    def train_logits() -> bytes:
        with autograd.record():
            return bytes(net(images).asnumpy())

    def logits(seed: int) -> bytes:
        mx.random.seed(seed)
        return train_logits()

    def run_in_thread(target: Any, *arguments: int) -> None:
        thread = threading.Thread(target=target, args=arguments)
        thread.start()
        thread.join()

    run_in_thread(train_logits)  # the trainer's warm-up is in a start-up thread as well
    assert logits(1) == logits(1) != logits(2)
    mx.random.seed(1)
    run_in_thread(mx.random.seed, 2)
    assert train_logits() == logits(1)


def test_local_norm_is_that_of_alexnets_paper() -> None:
    """Krizhevsky et al., 2012, section 3.3: k = 2, n = 5, alpha = 1e-4, beta = 0.75."""
    x = np.random.default_rng(0).normal(scale=300, size=(2, 9, 3, 3))
    expected = np.empty_like(x)
    for i in range(9):
        window = x[:, max(0, i - 2) : i + 3]
        squares = (window**2).sum(axis=1)
        expected[:, i] = x[:, i] / (2 + 1e-4 * squares) ** 0.75
    for dtype, close in (("float32", 1e-4), ("float16", 2e-3)):
        first, last = (
            LocalNorm(Model.model_validate({"layout": layout, "dtype": dtype}))
            for layout in LAYOUTS
        )
        images = nd.array(x, dtype=dtype)
        normed = first(images).asnumpy()
        assert normed.dtype == dtype
        np.testing.assert_allclose(normed, expected, rtol=close)
        turned = nd.array(x.transpose(TO_NHWC), dtype=dtype)
        turned_back = last(turned).asnumpy().transpose(TO_NCHW)
        np.testing.assert_array_equal(turned_back, normed)


@pytest.mark.parametrize(
    ("preset", "good", "bad"),
    [
        ("base", ["model.network=alexnet", "data.crop_px=64"], "data.crop_px=63"),
        ("base", ["model.network=googlenet", "data.crop_px=64"], "data.crop_px=63"),
        ("base", ["model.network=alexnet"], "model.depth=18"),
        ("quick", [], "model.layout=NHWC"),
        ("quick", ["model.dtype=bfloat16"], "model.dtype=float16"),
        ("dgxa100_8", [], "model.dtype=bfloat16"),
    ],
)
def test_what_a_network_or_a_device_lacks_is_refused(
    preset: str, good: list[str], bad: str
) -> None:
    check_supported(load(preset, good).run)
    with refused(f"^{bad.partition('=')[0]}: "):
        check_supported(load(preset, [*good, bad]).run)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_against_its_definition(smoothing: float) -> None:
    classes = 6
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, classes))
    labels = np.array([0, 5, 2, 3, 3])
    powers = np.exp(logits)
    p = powers / powers.sum(axis=1, keepdims=True)
    target = np.full((5, classes), smoothing / (classes - 1))
    target[np.arange(5), labels] = 1 - smoothing
    loss = Loss(Model(label_smoothing=smoothing), classes)
    losses = loss(nd.array(logits), nd.array(labels)).asnumpy()
    expected = -(target * np.log(p)).sum(axis=1)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
