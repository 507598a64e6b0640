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
from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.names import list_presets
from rn50.config.schema import Model, Run
from rn50.train.capabilities import check_supported
from rn50.train.layers import Network
from rn50.train.networks import Loss, build_network, image_shape

KEYS = ("network", "dtype", "layout")
CHOICES = [
    tuple(NETWORKS),
    *(get_args(Model.model_fields[key].annotation) for key in ("dtype", "layout")),
]
TYPED = {"Convolution", "FullyConnected", "BatchNorm", "LRN", "Pooling", "Concat"}


class Case(NamedTuple):
    """A network and what goes through it in training; evaluation is NCHW."""

    model: Model
    classes: int
    crop_px: int
    batches: frozenset[int]
    eval_batches: frozenset[int]

    def __str__(self) -> str:
        m = self.model
        batches = ",".join(map(str, sorted(self.batches)))
        return f"{m.network}-{m.depth}-{m.width}-{m.dtype}-{m.layout}-{self.crop_px}px-{batches}"


def variants(run: Run) -> Iterator[Run]:
    """`run` on a GPU of any kind with every network, type and layout that is supported there."""
    system = run.system.model_copy(update={"device": "gpu", "compute_capability": None})
    for values in product(*CHOICES):
        model = run.model.model_copy(update=dict(zip(KEYS, values, strict=True)))
        other = run.model_copy(update={"system": system, "model": model})
        try:
            check_supported(other)
        except UserError:
            continue
        yield other


def cases() -> list[Case]:
    """Equal nets once, with the batches of all presets."""
    found: dict[str, tuple[Run, set[int], set[int]]] = {}
    for run in (other for name in list_presets() for other in variants(load(name).run)):
        m = run.model
        key = (m.network, m.depth, m.width, m.stem, m.norm, m.dtype, m.layout)
        entry = found.setdefault(
            repr((*key, run.data.classes, run.data.crop_px)), (run, set(), set())
        )
        entry[1].update([run.batch.per_rank, *(change.per_rank for change in run.batch.changes)])
        entry[2].add(run.eval.batch_per_rank)
    return [
        Case(run.model, run.data.classes, run.data.crop_px, frozenset(train), frozenset(evaluate))
        for run, train, evaluate in found.values()
    ]


CASES = cases()


class Operator(NamedTuple):
    kind: str
    name: str
    inputs: list[np.dtype[Any]]
    output: np.dtype[Any]


def operators(symbol: Any) -> list[Operator]:
    """Every operator of the graph with the types MXNet infers for float32 images and labels."""
    inner = symbol.get_internals()
    given = {name: "float32" for name in ("images", "labels") if name in symbol.list_inputs()}
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


def test_every_preset_has_a_case_of_its_own_settings() -> None:
    """The list above leaves no preset out, and has both layouts and both types of each network."""
    for name in list_presets():
        run = load(name).run
        assert any(other.model == run.model for other in variants(run)), name
    found = {(case.model.network, case.model.dtype, case.model.layout) for case in CASES}
    assert found == set(
        product(("resnet", "alexnet", "googlenet"), ("float32", "float16"), ("NCHW", "NHWC"))
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_types_and_shapes_of_training(case: Case) -> None:
    net = build_network(case.model, case.classes, crop_px=case.crop_px)
    logits = net(mx.sym.var("images"))
    check_types(net, logits, case.model.dtype)
    losses = Loss(case.model, case.classes)(logits, mx.sym.var("labels"))
    assert losses.infer_type(images="float32", labels="float32")[1] == [np.float32]
    for batch in case.batches:
        shapes = {"images": image_shape(net, batch, case.crop_px), "labels": (batch,)}
        assert losses.infer_shape(**shapes)[1] == [(batch,)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_types_and_shapes_of_evaluation(case: Case) -> None:
    model = case.model.model_copy(update={"layout": "NCHW"})
    net = build_network(model, case.classes, crop_px=case.crop_px)
    logits = net(mx.sym.var("images"))
    check_types(net, logits, model.dtype)
    assert logits.infer_type(images="float32")[1] == [np.dtype(model.dtype).type]
    for batch in case.eval_batches:
        shape = image_shape(net, batch, case.crop_px)
        assert logits.infer_shape(images=shape)[1] == [(batch, case.classes)]
