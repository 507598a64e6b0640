"""The packages of the extras of pyproject.toml, which not every installation has."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import UserError

_EXTRAS = {
    "horovod": "train",
    "mxnet": "train",
    "nvidia": "train",
    "optuna": "train",
    "safetensors": "train",
    "simplejpeg": "train",
    "yaml": "train",
    "onnx": "onnx",
    "tensorboardX": "tensorboard",
}
"""The extra that each imported name belongs to."""


def how_to_install(module: str | None) -> str | None:
    """What a user has to do for a module that is not there; None: it is of no extra."""
    extra = _EXTRAS.get((module or "").partition(".")[0])
    if extra is None:
        return None
    command = f"pip install 'rn50[{extra}]'"
    if extra == "train":
        return f"{command} and Horovod, or run scripts/setup.sh in a checkout"
    return command


def require(module: str) -> None:
    """Raises UserError: this package of an extra is not installed."""
    if find_spec(module) is None:
        advice = how_to_install(module)
        raise UserError(f"{module}: an installed package expected, found none: {advice}")
