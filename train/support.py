"""What a config may ask for that this trainer or this device does not do: refused by name. Pure."""

from __future__ import annotations

from ..config.errors import UserError
from ..config.schema import Run


def check_supported(run: Run) -> None:
    """Raise UserError for the first setting of `run` that cannot be honoured here."""
    if run.ruleset == "0.6.0":
        raise UserError(
            "ruleset: 0.7.0 to 4.0.0 expected, found 0.6.0: its log format (:::MLL, seconds) is "
            "read but not written"
        )
    if run.model.dtype == "float16":
        why = (
            "MXNet has no float16 GEMM on a CPU"
            if run.system.device == "cpu"
            else "mixed precision with fp32 masters is not built yet"
        )
        raise UserError(f"model.dtype: float32 expected, found float16: {why}")
