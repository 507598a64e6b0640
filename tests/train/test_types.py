"""Types of every preset at full size, as MXNet infers them: no GPU, no memory. Shapes:
test_networks.py and, shrunk, test_presets_train.py."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple, get_args

import mxnet as mx
import numpy as np
import pytest

from rn50.config.choices import NETWORKS
from rn50.config.load import load
from rn50.config.names import list_presets
from rn50.config.schema import Model
from rn50.train.network.build import Loss, build_network
from rn50.train.network.layers import Network

TYPED = {"Convolution", "FullyConnected", "BatchNorm", "LRN", "Pooling", "Concat"}


class Case(NamedTuple):
    """A network and what goes through it in training; evaluation is NCHW."""

    name: str
    model: Model
    classes: int
    crop_px: int

    def __str__(self) -> str:
        model = self.model
        return f"{self.name}-{model.network}-{model.dtype}-{model.layout}"


def settings() -> Iterator[tuple[str, dict[str, str]]]:
    """Every preset, and every network, type and layout of a GPU."""
    for name in list_presets():
        yield name, {}
    layouts = get_args(Model.model_fields["layout"].annotation)
    for values in product(NETWORKS, ("float32", "float16"), layouts):
        keys = ("network", "dtype", "layout")
        yield "base", dict(zip(keys, values, strict=True))


def cases() -> Iterator[Case]:
    """Equal nets once."""
    seen = set()
    for name, changes in settings():
        run = load(name).run
        model = run.model.model_copy(update=changes)
        net = repr((model, run.data.crop_px))
        if net not in seen:
            seen.add(net)
            yield Case(name, model, run.data.classes, run.data.crop_px)


CASES = list(cases())


class Operator(NamedTuple):
    name: str
    inputs: list[np.dtype[Any]]
    output: np.dtype[Any]


def operators(symbol: Any) -> list[Operator]:
    """Every operator of the graph with the types MXNet infers for float32 images."""
    inner = symbol.get_internals()
    _, types, _ = inner.infer_type(images="float32")
    names = inner.list_outputs()
    by_output = dict(zip(names, types, strict=True))
    graph = json.loads(symbol.tojson())["nodes"]

    def type_of(node: dict[str, Any]) -> np.dtype[Any]:
        name = node["name"]
        return np.dtype(by_output.get(name) or by_output[f"{name}_output"])

    typed = []
    for node in graph:
        if node["op"] in TYPED:
            inputs = [type_of(graph[number]) for number, *_ in node["inputs"]]
            typed.append(Operator(node["op"], inputs, type_of(node)))
    return typed


def check_types(net: Network, symbol: Any, dtype: str) -> None:
    typed = operators(symbol)
    names = {operator.name for operator in typed}
    assert {"Convolution", "FullyConnected", "Pooling"} <= names
    for name, inputs, output in typed:
        expected = "float32" if name == "LRN" else dtype
        if name == "BatchNorm":
            assert {*inputs[1:]} == {np.dtype("float32")}
            inputs = inputs[:1]
        assert {*inputs, output} == {np.dtype(expected)}, name
    for p in net.collect_params().values():
        of_norm = p.name.endswith(("gamma", "beta", "running_mean", "running_var"))
        expected = "float32" if of_norm else dtype
        assert np.dtype(p.dtype) == expected, p.name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_types(case: Case) -> None:
    """The graphs are those of training, and of evaluation, which is NCHW."""
    for layout in {case.model.layout, "NCHW"}:
        model = case.model.model_copy(update={"layout": layout})
        net = build_network(model, case.classes, crop_px=case.crop_px)
        logits = net(mx.sym.var("images"))
        check_types(net, logits, model.dtype)
        losses = Loss(model, case.classes)(logits, mx.sym.var("labels"))
        _, types, _ = losses.infer_type(images="float32", labels="float32")
        assert types == [np.float32]
