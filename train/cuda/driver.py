"""The NVIDIA driver and its GPUs, asked through the driver's library: no framework is loaded."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ...host.errors import UserError
from ...host.reading import read_text

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
    uuid: str = ""


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

    def gpu(index: int) -> Gpu:
        """The visible device of this number."""
        device = number("cuDeviceGet", index)
        name = ctypes.create_string_buffer(256)
        cuda.cuDeviceGetName(name, len(name), device)
        major = number("cuDeviceGetAttribute", _CAPABILITY_MAJOR, device)
        minor = number("cuDeviceGetAttribute", _CAPABILITY_MINOR, device)
        uuid = (ctypes.c_ubyte * 16)()
        cuda.cuDeviceGetUuid(uuid, device)
        return Gpu(
            name.value.decode(errors="replace"),
            (major, minor),
            f"GPU-{UUID(bytes=bytes(uuid))}",
        )

    version = number("cuDriverGetVersion")
    count = 0 if cuda.cuInit(0) else number("cuDeviceGetCount")
    return Gpus(
        _driver_release(version_file),
        (version // 1000, version % 1000 // 10),
        tuple(map(gpu, range(count))),
    )


def _driver_release(version_file: Path) -> str | None:
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
    release = re.search(r"Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", read_text(version_file))
    return release[1] if release else None


def visible_gpu(device_id: int) -> Gpu:
    """One of the visible devices, which is there."""
    gpus = read_gpus()
    assert gpus is not None
    return gpus.devices[device_id]


def check_driver(driver_cuda: tuple[int, int]) -> None:
    """Raise UserError for a driver too old for DALI and NCCL."""
    if driver_cuda < NEEDED_CUDA:
        raise UserError(
            f"a driver for CUDA {dotted(NEEDED_CUDA)} ({NEEDED_DRIVER} or newer) expected, "
            f"found one for {dotted(driver_cuda)}"
        )


def check_machine(local_rank: int) -> tuple[int, Gpu]:
    """The GPU of a rank, and its number among those that the rank sees. Raises UserError: no
    driver, no GPU for this rank, or a driver that is too old."""
    gpus = read_gpus()
    if gpus is None:
        raise UserError(
            f"system.device: an NVIDIA driver ({LIBRARY}) for gpu expected, found none; "
            "use system.device=cpu"
        )
    count = len(gpus.devices)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    number = local_rank
    # A launcher may show each rank its own GPU alone (Slurm's --gpus-per-task).
    if count == 1 and visible and "," not in visible:
        number = 0
    if number >= count:
        raise UserError(
            f"system.device: a GPU for local rank {local_rank} expected, found "
            f"{count} on this machine; use system.device=cpu or fewer ranks"
        )
    check_driver(gpus.driver_cuda)
    return number, gpus.devices[number]


def dotted(version: tuple[int, int]) -> str:
    """A version or a compute capability as it is written: (8, 0) as 8.0."""
    return f"{version[0]}.{version[1]}"
