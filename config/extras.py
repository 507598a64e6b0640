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
TRAINING = ("mxnet", "horovod", "nvidia.dali")
"""What no rank starts without."""


def how_to_install(module: str | None) -> str | None:
    """What a user has to do for a module that is not there; None: it is of no extra."""
    extra = _EXTRAS.get((module or "").partition(".")[0])
    if extra is None:
        return None
    checkout = " and Horovod, or in a checkout scripts/setup.sh" if extra == "train" else ""
    return f"pip install 'rn50[{extra}]'{checkout}"


def require(*modules: str) -> None:
    """Raises UserError: one of these packages of an extra is not installed."""
    for module in modules:
        if not _is_installed(module):
            advice = how_to_install(module)
            raise UserError(f"{module}: an installed package expected, found none: {advice}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # no parent; a name without a specification
        return False
