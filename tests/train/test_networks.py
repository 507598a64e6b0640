"""All networks: sizes of the literature, shapes, gradients, shared weights, seeds, the loss."""

from __future__ import annotations

import threading
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

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
from rn50.train.operators import Operators
from tests.conftest import refused

CPU = Operators(mx.cpu())

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


def in_layout(layout: str, *nchw: int) -> tuple[int, ...]:
    return tuple(nchw[axis] for axis in TO_NHWC) if layout == "NHWC" else nchw


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
    found = trainable(build_network(model, 1000, crop_px=224))
    assert (len(found), sum(int(np.prod(p.shape)) for p in found)) == (tensors, count)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("network", "kind", "channels", "side"),
    [
        ("alexnet", "pool", 256, 6),
        ("googlenet", "concat", 1024, 7),
        ("resnet", "stage4_unit3_activation", 2048, 7),
    ],
)
def test_feature_maps_of_224_px_are_those_of_the_papers(
    network: str, kind: str, channels: int, side: int, layout: str
) -> None:
    """256 x 6 x 6 into AlexNet's dense layers; 7 x 7 into the mean of the others."""
    net = build_network(
        Model(network=network, layout=layout),
        1000,
        crop_px=224,
    )
    inner = net(mx.sym.var("images")).get_internals()
    last = [name for name in inner.list_outputs() if kind in name][-1]
    _, shapes, _ = inner[last].infer_shape(images=image_shape(net, 1, 224))
    assert shapes == [in_layout(layout, 1, channels, side, side)]


@pytest.mark.slow
@pytest.mark.parametrize("case", SMALL)
def test_output_shape_and_copied_parameters(case: str) -> None:
    model, px = SMALL[case]
    net, eval_net, _ = build_networks(
        model,
        7,
        crop_px=px,
        seed=3,
        operators=CPU,
    )
    images = mx.nd.array(np.random.default_rng(0).uniform(size=(2, 3, px, px)))
    assert net(images).shape == eval_net(images).shape == (2, 7)
    assert not eval_net(images).asnumpy().any()  # nothing copied yet
    copy_parameters(net, eval_net, CPU)
    before = eval_net(images).asnumpy()
    # both in inference mode here
    np.testing.assert_array_equal(before, net(images).asnumpy())
    net.collect_params()["fc_bias"].data()[:] = 1
    copy_parameters(net, eval_net, CPU)  # over weights that inference has rewritten
    assert np.allclose(eval_net(images).asnumpy() - before, 1, atol=1e-5)


@pytest.mark.parametrize("case", SMALL)
def test_names_end_as_the_optimizers_rule_expects(case: str) -> None:
    model, px = SMALL[case]
    net = build_network(model, 4, crop_px=px)
    for p in trainable(net):
        assert p.name.endswith("_weight") == (len(p.shape) > 1), p.name
        assert p.name.endswith(("_weight", "_bias", "_gamma", "_beta")), p.name
    assert bool(bn_statistics(net)) == (model.network == "resnet")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["tiny", "googlenet"])
def test_weights_depend_on_the_seed_alone(case: str) -> None:
    model, px = SMALL[case]

    def digest(seed: int, disturb: int) -> bytes:
        mx.random.seed(disturb)
        np.random.seed(disturb)
        net, _, _ = build_networks(
            model,
            4,
            crop_px=px,
            seed=seed,
            operators=CPU,
        )
        return weights_digest(net)

    assert digest(1, 5) == digest(1, 6)
    assert digest(1, 5) != digest(2, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Model(width=32), ["stage3_unit2_conv2_weight"]),
        (Model(network="alexnet"), ["conv3_weight", "fc6_weight", "fc7_weight"]),
        (Model(network="googlenet"), ["conv2_weight", "inception4c_3x3_weight"]),
    ],
)
def test_initial_scale_is_he_normal_but_for_the_classifier(
    model: Model, names: list[str]
) -> None:
    net, _, _ = build_networks(
        model,
        100,
        crop_px=64,
        seed=1,
        operators=CPU,
    )
    drawn = {name: p.data().asnumpy() for name, p in net.collect_params().items()}
    for name in names:
        expected = np.sqrt(2 / np.prod(drawn[name].shape[1:]))
        assert drawn[name].std() == pytest.approx(expected, rel=0.02), name
    assert drawn["fc_weight"].std() == pytest.approx(0.01, rel=0.02)
    assert not any(
        values.any() for name, values in drawn.items() if name.endswith("bias")
    )


def of_both_layouts(case: str) -> list[tuple[Any, Any, Any]]:
    """Networks of the same seed: NCHW, then NHWC."""
    model, px = SMALL[case]
    models = [model.model_copy(update={"layout": layout}) for layout in LAYOUTS]
    return [build_networks(m, 5, crop_px=px, seed=3, operators=CPU) for m in models]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["18", "googlenet"])
def test_weights_of_both_layouts_are_the_same_draw(case: str) -> None:
    (first, first_eval, _), (last, last_eval, _) = of_both_layouts(case)
    shape = last.collect_params()[
        "conv2_weight" if "goog" in case else "conv0_weight"
    ].shape
    assert shape[1] == shape[2]
    assert shape[1] in (3, 7)
    for source, target in ((first, first_eval), (last, last_eval)):
        copy_parameters(source, target, CPU)
    for name, p in last_eval.collect_params().items():  # NCHW, as all evaluation
        expected = first_eval.collect_params()[name].data().asnumpy()
        found = p.data().asnumpy()
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected, err_msg=name)


def channels_first_convolution(convolution: Any, transpose: Any) -> Any:
    """MXNet's convolution with NHWC computed as NCHW: a CPU has no other."""

    def compute(x: Any, weight: Any, *bias: Any, layout: str, **kwargs: Any) -> Any:
        if layout == "NCHW":
            return convolution(
                x,
                weight,
                *bias,
                layout=layout,
                **kwargs,
            )
        first = (transpose(array, axes=TO_NCHW) for array in (x, weight))
        return transpose(
            convolution(*first, *bias, layout="NCHW", **kwargs), axes=TO_NHWC
        )

    return compute


@pytest.mark.slow
@pytest.mark.parametrize("case", ["18", "alexnet", "googlenet"])
def test_both_layouts_are_the_same_function(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits, losses and all gradients; only the convolution of NHWC is another than on a GPU."""
    networks = of_both_layouts(case)
    for module in (mx.nd, mx.sym):
        compute = channels_first_convolution(module.Convolution, module.transpose)
        monkeypatch.setattr(module, "Convolution", compute)
    px = SMALL[case][1]
    images = np.random.default_rng(0).normal(size=(4, 3, px, px))
    found = []
    for net, _, loss in networks:
        mine = images if net.layout == "NCHW" else images.transpose(TO_NHWC)
        mx.random.seed(1)  # dropout, after which all is of one order in both
        with autograd.record():
            logits = net(mx.nd.array(mine))
            losses = loss(logits, mx.nd.array([0, 1, 2, 3]))
        losses.backward()
        gradients = {p.name: p.grad().asnumpy() for p in trainable(net)}
        found.append((logits.asnumpy(), losses.asnumpy(), gradients))
    (logits, losses, gradients), (turned_logits, turned_losses, turned) = found
    np.testing.assert_allclose(
        turned_logits,
        logits,
        rtol=1e-3,
        atol=1e-4,
    )
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
@pytest.mark.parametrize("network", ["alexnet", "googlenet"])
def test_dropout_follows_the_seed_of_the_thread_that_trains(network: str) -> None:
    net, _, _ = build_networks(
        Model(network=network), 9, crop_px=64, seed=1, operators=CPU
    )
    images = mx.nd.array(np.random.default_rng(0).normal(size=(2, 3, 64, 64)))

    def train_logits() -> bytes:
        with autograd.record():
            return bytes(net(images).asnumpy())

    def logits(seed: int) -> bytes:
        mx.random.seed(seed)
        return train_logits()

    def run_in_thread(target: object, *arguments: int) -> None:
        thread = threading.Thread(target=target, args=arguments)  # type: ignore[arg-type]
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
        expected[:, i] = x[:, i] / (2 + 1e-4 * (window**2).sum(axis=1)) ** 0.75
    for dtype, close in (("float32", 1e-4), ("float16", 2e-3)):
        norms = [LocalNorm(Model(layout=layout, dtype=dtype)) for layout in LAYOUTS]
        found = norms[0](mx.nd.array(x, dtype=dtype)).asnumpy()
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=close)
        last = norms[1](mx.nd.array(x.transpose(TO_NHWC), dtype=dtype)).asnumpy()
        np.testing.assert_array_equal(last.transpose(TO_NCHW), found)


@pytest.mark.parametrize(
    ("preset", "good", "bad"),
    [
        ("base", ["model.network=alexnet", "data.crop_px=64"], "data.crop_px=63"),
        ("base", ["model.network=googlenet", "data.crop_px=64"], "data.crop_px=63"),
        ("base", ["model.network=alexnet"], "model.depth=18"),
        ("base", ["model.network=googlenet"], "model.zero_gamma=true"),
        ("quick", [], "model.layout=NHWC"),
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
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    target = np.full((5, classes), smoothing / (classes - 1))
    target[np.arange(5), labels] = 1 - smoothing
    model = Model(label_smoothing=smoothing)
    found = Loss(model, classes)(mx.nd.array(logits), mx.nd.array(labels)).asnumpy()
    np.testing.assert_allclose(
        found,
        -(target * np.log(p)).sum(axis=1),
        rtol=1e-5,
    )
