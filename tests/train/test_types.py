"""Types and shapes of every preset at full size, as MXNet infers them: no GPU, no memory."""

from __future__ import annotations

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
from rn50.train.network.build import Loss, build_network, image_shape
from rn50.train.network.layers import Network

KEYS = ("network", "dtype", "layout")
CHOICES = [
    tuple(NETWORKS),
    *(get_args(Model.model_fields[key].annotation) for key in ("dtype", "layout")),
]
TYPED = {"Convolution", "FullyConnected", "BatchNorm", "LRN", "Pooling", "Concat"}


class Case(NamedTuple):
    """A network and what goes through it in training; evaluation is NCHW."""

    name: str
    model: Model
    classes: int
    crop_px: int
    batch: int

    def __str__(self) -> str:
        return (
            f"{self.name}-{self.model.network}-{self.model.dtype}-{self.model.layout}"
        )


def cases() -> Iterator[Case]:
    """Every preset, and every network, type and layout of a GPU; equal nets once."""
    seen = set()
    settings = [dict(zip(KEYS, values, strict=True)) for values in product(*CHOICES)]
    for name, changes in [
        *((name, {}) for name in list_presets()),
        *(("base", s) for s in settings),
    ]:
        run = load(name).run
        model = run.model.model_copy(update=changes)
        if model.dtype != "bfloat16" and repr((model, run.data.crop_px)) not in seen:
            seen.add(repr((model, run.data.crop_px)))
            yield Case(
                name, model, run.data.classes, run.data.crop_px, run.batch.per_rank
            )


CASES = list(cases())


class Operator(NamedTuple):
    kind: str
    name: str
    inputs: list[np.dtype[Any]]
    output: np.dtype[Any]


def operators(symbol: Any) -> list[Operator]:
    """Every operator of the graph with the types MXNet infers for float32 images and labels."""
    inner = symbol.get_internals()
    given = {
        name: "float32" for name in ("images", "labels") if name in symbol.list_inputs()
    }
    _, types, _ = inner.infer_type(**given)
    by_output = dict(zip(inner.list_outputs(), types, strict=True))
    graph = json.loads(symbol.tojson())["nodes"]

    def type_of(node: dict[str, Any]) -> np.dtype[Any]:
        names = (node["name"], f"{node['name']}_output")
        return np.dtype(next(by_output[name] for name in names if name in by_output))

    return [
        Operator(
            node["op"],
            node["name"],
            [type_of(graph[number]) for number, *_ in node["inputs"]],
            type_of(node),
        )
        for node in graph
        if node["op"] in TYPED
    ]


def check_types(net: Network, symbol: Any, dtype: str) -> None:
    found = operators(symbol)
    assert {"Convolution", "FullyConnected", "Pooling"} <= {op.kind for op in found}
    for op in found:
        inputs = op.inputs[:1] if op.kind == "BatchNorm" else op.inputs
        expected = "float32" if op.kind == "LRN" else dtype
        assert {*inputs, op.output} == {np.dtype(expected)}, op
        if op.kind == "BatchNorm":
            assert {*op.inputs[1:]} == {np.dtype("float32")}, op
    for p in net.collect_params().values():
        of_norm = p.name.endswith(("gamma", "beta", "running_mean", "running_var"))
        assert np.dtype(p.dtype) == ("float32" if of_norm else dtype), p.name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_types_and_shapes(case: Case) -> None:
    """Of training, and of evaluation, which is NCHW."""
    for layout in {case.model.layout, "NCHW"}:
        model = case.model.model_copy(update={"layout": layout})
        net = build_network(model, case.classes, crop_px=case.crop_px)
        logits = net(mx.sym.var("images"))
        check_types(net, logits, model.dtype)
        losses = Loss(model, case.classes)(logits, mx.sym.var("labels"))
        assert losses.infer_type(images="float32", labels="float32")[1] == [np.float32]
        images = image_shape(net, case.batch, case.crop_px)
        assert logits.infer_shape(images=images)[1] == [(case.batch, case.classes)]
        shapes = {"images": images, "labels": (case.batch,)}
        assert losses.infer_shape(**shapes)[1] == [(case.batch,)]
