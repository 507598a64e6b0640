"""A checkpoint as files that other programs load: MXNet's symbol and parameters, and ONNX.

The network is the one of evaluation, from float32 images in NCHW to logits; float16 and bfloat16
runs and those with channels last become that without a change of any weight.
"""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from ...config.manifest import load_manifest
from ...config.schema import Data, Run
from ...host.errors import UserError
from ...host.progress import say_aside
from ..network.build import build_network, copy_parameters, image_shape
from ..operators import Operators
from .file import Checkpoint
from .restore import restore
from .resume import recorded_run

PREFIX = "model"
_OPSET = 13
_FORMAT = 7
"""ONNX's operator set, and the version of its files that goes with it."""


def export_model(checkpoint: Checkpoint, folder: Path, *, onnx: bool) -> None:
    """Write `model-symbol.json`, `model-0000.params` and `model.json`, which describes the images;
    with `onnx` `model.onnx` too. Raises UserError: the checkpoint is damaged, or is not of the
    network that its config names."""
    run = recorded_run(checkpoint)
    net = build_evaluation_network(checkpoint, run)
    shape = image_shape(net, 1, run.data.crop_px)
    net.hybridize()
    net(mx.nd.zeros(shape)).wait_to_read()  # MXNet exports what it has run
    prefix = folder / PREFIX
    net.export(str(prefix))
    description = describe(checkpoint, run)
    (folder / f"{PREFIX}.json").write_text(json.dumps(description, indent=1) + "\n")
    if onnx:
        write_onnx(prefix, shape, description)


def build_evaluation_network(checkpoint: Checkpoint, run: Run) -> Any:
    """The network with the checkpoint's weights, in float32 and NCHW, on the CPU."""
    plain = run.model.model_copy(update={"dtype": "float32", "layout": "NCHW"})
    nets = []
    for model in (run.model, plain):
        net = build_network(model, run.data.classes, crop_px=run.data.crop_px)
        net.initialize(mx.init.Zero())
        nets.append(net)
    trained, exported = nets
    restore(checkpoint, trained)
    copy_parameters(trained, exported, Operators(mx.cpu()))
    return exported


def describe(checkpoint: Checkpoint, run: Run) -> dict[str, Any]:
    """What a program needs besides the files: the images of evaluation, and where it comes from."""
    data = run.data
    state = checkpoint.meta.state
    return {
        "input": {
            "name": "data",
            "layout": "NCHW",
            "dtype": "float32",
            "channels": "RGB, 0 to 255, minus mean, divided by std",
            "mean": data.mean,
            "std": data.std,
            "resize_shorter_px": data.eval_resize_px,
            "interpolation": "linear",
            "antialias": False,
            "scale": "resize_shorter_px / shorter side, of both sides, about the image's centre",
            "resized_px": "side * scale in float32, rounded half up",
            "levels": "whole ones, rounded after the resize",
            "centre_crop_px": data.crop_px,
            "crop_from_px": "(resized_px - centre_crop_px + 1) // 2",
            "alpha": "on white",
            "exif_orientation": "not applied",
        },
        "output": {
            "logits": data.classes,
            **class_names(data, checkpoint.meta.image_set),
        },
        "network": run.model.model_dump(mode="json"),
        "step": state.step,
        "epochs": state.epochs_trained,
        "accuracy": state.accuracy,
        "config_sha256": checkpoint.meta.config_sha256,
    }


def class_names(data: Data, image_set: str) -> dict[str, list[str]]:
    """The names of the logits, by the image set's manifest; none, and a note, where the set with
    the digest `image_set` is out of reach."""
    with suppress(UserError):
        manifest = load_manifest(Path(data.path))
        if manifest.digest == image_set:
            # else the folder was packed again
            return {"classes": manifest.classes}
    say_aside(f"rn50: note: {data.path}: not the run's image set, so no class names")
    return {}


def write_onnx(
    prefix: Path, shape: tuple[int, ...], description: dict[str, Any]
) -> None:
    """`prefix`.onnx from MXNet's two files, for any number of images at once; ONNX checks it. Its
    metadata has the description as JSON."""
    import onnx
    from mxnet.onnx import export_model as convert
    from mxnet.onnx.mx2onnx import _op_translations

    # imported without ONNX (mxnet_import.py), they hold no operator
    for number in (12, 13):
        importlib.reload(getattr(_op_translations, f"_op_translations_opset{number}"))
    path = f"{prefix}.onnx"
    convert(
        f"{prefix}-symbol.json",
        f"{prefix}-0000.params",
        [shape],
        np.float32,
        path,
        dynamic=True,
        dynamic_input_shapes=[("images", *shape[1:])],
    )
    model = onnx.load(path)
    # MXNet writes operators of this set, and the newest that onnx has as its number.
    model.opset_import[0].version = _OPSET
    model.ir_version = _FORMAT
    weight_names = {weights.name for weights in model.graph.initializer}
    for value in list(model.graph.input):
        # as an input a weight is no constant: slower, warnings
        if value.name in weight_names:
            model.graph.input.remove(value)
    onnx.helper.set_model_props(model, {PREFIX: json.dumps(description)})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
