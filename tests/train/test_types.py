"""Types of every preset's network, as MXNet infers them: no GPU, no memory. Shapes:
test_networks.py and, shrunk, test_presets_train.py."""

from itertools import product

import mxnet as mx
import numpy as np
import pytest

from rn50.config.choices import NETWORKS
from rn50.config.load import load
from rn50.config.names import list_presets
from rn50.config.schema import Model
from rn50.train.network.build import Loss, build_network

MODELS = [load(name).run.model for name in list_presets()]
for values in product(NETWORKS, ("float32", "float16"), ("NCHW", "NHWC")):
    settings = dict(zip(("network", "dtype", "layout"), values, strict=True))
    MODELS.append(Model.model_validate(settings))
IN_FLOAT32 = ("images", "gamma", "beta", "running_mean", "running_var", "lrn0_output")
"""What keeps it in a float16 model: parameters of norms, and AlexNet's normalisation."""


@pytest.mark.parametrize("model", {repr(model): model for model in MODELS}.values())
def test_types(model: Model) -> None:
    """Casts have either type."""
    logits = build_network(model, 10, crop_px=224)(mx.sym.var("images"))
    inner = logits.get_internals()
    _, types, _ = inner.infer_type(images="float32")
    for name, inferred in zip(inner.list_outputs(), types, strict=True):
        if "_cast" not in name:
            expected = "float32" if name.endswith(IN_FLOAT32) else model.dtype
            assert np.dtype(inferred) == expected, name
    losses = Loss(model, 10)(logits, mx.sym.var("labels"))
    _, types, _ = losses.infer_type(images="float32", labels="float32")
    assert types == [np.float32]
