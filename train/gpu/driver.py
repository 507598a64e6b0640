"""The NVIDIA driver and its GPUs, asked through the driver's library: no framework is loaded."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import NamedTuple

from ...config.errors import UserError

NEEDED_CUDA = (12, 0)
NEEDED_DRIVER = 525
"""The CUDA of the driver that DALI and NCCL need, and the first driver that has it."""

LIBRARY = "libcuda.so.1"

_VERSION_FILE = Path("/proc/driver/nvidia/version")
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76  # of CUdevice_attribute


class Gpu(NamedTuple):
    """One visible device."""

    name: str
    capability: tuple[int, int]


class Gpus(NamedTuple):
    """The driver (its release as 535.129.03, the newest CUDA that it runs) and what it shows."""

    driver_release: str | None
    driver_cuda: tuple[int, int]
    devices: tuple[Gpu, ...]


def read_gpus(
    library: str = LIBRARY, version_file: Path = _VERSION_FILE
) -> Gpus | None:
    """The driver and the devices that CUDA_VISIBLE_DEVICES leaves; None: no driver here."""
    try:
        cuda = ctypes.CDLL(library)
        cuda.cuDeviceGetCount  # noqa: B018  # a stub to link with (scripts/setup_gpu.sh) has none
    except (OSError, AttributeError):
        return None
    value = ctypes.c_int()

    def number(function: str, *arguments: int) -> int:
        """What `function` writes to its first argument; 0 where it fails."""
        failed = cuda[function](ctypes.byref(value), *arguments)
        return 0 if failed else value.value

    version = number("cuDriverGetVersion")
    count = 0 if cuda.cuInit(0) else number("cuDeviceGetCount")
    return Gpus(
        _driver_release(version_file),
        (version // 1000, version % 1000 // 10),
        tuple(_read_gpu(cuda, number("cuDeviceGet", index)) for index in range(count)),
    )


def _read_gpu(cuda: ctypes.CDLL, device: int) -> Gpu:
    name = ctypes.create_string_buffer(256)
    value = ctypes.c_int()
    cuda.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return Gpu(name.value.decode(errors="replace"), (capability[0], capability[1]))


def _driver_release(version_file: Path) -> str | None:
    try:
        text = version_file.read_text(errors="replace")
    except OSError:
        return None
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
    found = re.search(r"Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else None


def visible_gpu(device_id: int) -> Gpu:
    """One of the visible devices, which is there."""
    found = read_gpus()
    assert found is not None
    return found.devices[device_id]


def check_driver(driver_cuda: tuple[int, int]) -> None:
    """Raise UserError for a driver too old for DALI and NCCL."""
    if driver_cuda < NEEDED_CUDA:
        raise UserError(
            f"a driver for CUDA {dotted(NEEDED_CUDA)} ({NEEDED_DRIVER} or newer) expected, "
            f"found one for {dotted(driver_cuda)}"
        )


def gpu_number(local_rank: int, found: int, visible: str | None) -> int:
    """The number of a rank's GPU among the `found` ones. `visible`: CUDA_VISIBLE_DEVICES.

    A launcher that shows each rank its own GPU alone (Slurm's --gpus-per-task) numbers it 0.
    """
    return 0 if found == 1 and visible and "," not in visible else local_rank


def check_machine(local_rank: int) -> Gpu:
    """The GPU of this rank, before anything else is done with it. Raises UserError: no driver, no
    GPU for this rank, or a driver that is too old."""
    found = read_gpus()
    if found is None:
        raise UserError(
            f"system.device: an NVIDIA driver ({LIBRARY}) for gpu expected, found none; "
            "use system.device=cpu"
        )
    number = gpu_number(
        local_rank, len(found.devices), os.environ.get("CUDA_VISIBLE_DEVICES")
    )
    if number >= len(found.devices):
        raise UserError(
            f"system.device: a GPU for local rank {local_rank} expected, found "
            f"{len(found.devices)} on this machine; use system.device=cpu or fewer ranks"
        )
    gpu = found.devices[number]
    check_driver(found.driver_cuda)
    return gpu


def dotted(version: tuple[int, int]) -> str:
    """A version or a compute capability as it is written: (8, 0) as 8.0."""
    return f"{version[0]}.{version[1]}"
