"""What a config may ask for that this trainer or this device does not do: refused by name. Pure."""

from __future__ import annotations

from ..config.schema import Model, Run
from ..host.errors import UserError
from .cuda.code import check_step

SMALLEST_CROP_PX = {"alexnet": 64, "googlenet": 64}
"""AlexNet's last pooling needs 63 px; GoogLeNet's last modules see 2 x 2 at 64."""

# device -> (precisions that work on it, why not the rest); the GPU row: docs/gpu.md
DTYPES = {
    "cpu": (("float32", "bfloat16"), "MXNet has no float16 GEMM on a CPU"),
    "gpu": (("float32", "float16"), "MXNet 1.9.1 has no bfloat16 on a GPU"),
}

RESNET_KEYS = ("depth", "width", "stem", "norm", "zero_gamma")


def check_supported(run: Run) -> None:
    """Raise UserError for the first setting of `run` that cannot be honoured here."""
    if run.ruleset == "0.6.0":
        raise UserError(
            "ruleset: 0.7.0 to 4.0.0 expected, found 0.6.0: its log format (:::MLL, seconds) is "
            "read but not written"
        )
    check_network(run.model, run.data.crop_px)
    offered, why = DTYPES[run.system.device]
    if run.model.dtype not in offered:
        raise UserError(
            f"model.dtype: {' or '.join(offered)} expected on a {run.system.device}, "
            f"found {run.model.dtype}: {why}"
        )
    if run.model.layout == "NHWC" and run.system.device == "cpu":
        raise UserError(
            "model.layout: NCHW expected on a cpu, found NHWC: MXNet has no such convolution there"
        )
    check_accelerator(run)
    if run.data.decoder == "gpu" and run.system.device == "cpu":
        raise UserError("data.decoder: auto or cpu expected on a cpu, found gpu")
    if run.model.dtype != "float32" and run.optimizer.variant == "akiba":
        raise UserError(
            f"model.dtype: float32 expected for variant akiba, found {run.model.dtype}"
        )


def check_accelerator(run: Run) -> None:
    """Raise UserError for a GPU that cannot run the network, before anything waits for it."""
    system = run.system
    capability = system.compute_capability
    can_plan = system.device == "gpu" and run.model.has_plan
    if run.model.step == "plan" and not can_plan:
        raise UserError(
            "model.step: plan is for a resnet with batch norm on a GPU; auto or operators expected"
        )
    if system.device == "gpu" and capability is not None:
        major, minor = divmod(round(capability * 10), 10)
        try:
            check_step(run.model, system.accelerator, (major, minor))
        except UserError as error:
            raise UserError(f"system.accelerator: {error}") from None


def decodes_on_gpu(run: Run) -> bool:
    """Does DALI's pipeline end on the GPU?"""
    return run.system.device == "gpu" and run.data.decoder != "cpu"


def check_network(model: Model, crop_px: int) -> None:
    """Raise UserError for a setting that `model.network` does not have, or crops too small for it.

    Only a value other than the default is refused: the default is what every config carries.
    """
    if model.network == "resnet":
        return
    for key in RESNET_KEYS:
        default = Model.model_fields[key].default
        value = getattr(model, key)
        if value != default:
            raise UserError(
                f"model.{key}: its default ({default}) for {model.network} expected, "
                f"found {value}: only a resnet has it"
            )
    smallest = SMALLEST_CROP_PX.get(model.network, 1)
    if crop_px < smallest:
        raise UserError(
            f"data.crop_px: at least {smallest} for {model.network} expected, found {crop_px}"
        )
