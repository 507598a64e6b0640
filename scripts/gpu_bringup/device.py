"""The one GPU that is checked, and how a check ends without it."""

from __future__ import annotations

import os
from typing import Any

REHEARSE = bool(os.environ.get("RN50_BRINGUP_REHEARSE"))
"""The CPU stands in for the GPU, to try the checks themselves."""

DEVICE_ID = None if REHEARSE else 0

Found = dict[str, Any]


class NoGpu(Exception):
    """No driver, or no device behind it; the message is one line."""


class Failed(Exception):
    """The GPU gives another answer than expected; one line with both."""


def find_gpu() -> tuple[str, str]:
    """Name and compute capability of device 0, as the driver tells them. Raises NoGpu."""
    from ...train.gpu import LIBRARY, dotted, read_gpus

    if REHEARSE:
        return "rehearsal on a CPU", "0.0"
    gpus = read_gpus()
    if gpus is None:
        raise NoGpu(f"no GPU: a driver ({LIBRARY}) expected, found none")
    if not gpus.devices:
        raise NoGpu("no GPU: a device expected, found a driver without one")
    gpu = gpus.devices[0]
    return gpu.name, dotted(gpu.capability)
