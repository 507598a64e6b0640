"""Which GPUs run the network of a config: by the GPU code in MXNet's library, or by our own
kernels. Loads no framework."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from ..config.errors import UserError
from ..config.schema import Model
from .gpu import dotted
from .mxnet_package import library

_MAGIC = struct.pack("<I", 0xBA55ED50)
_FATBIN = struct.Struct("<IHHQ")
_ENTRY = 64

OWN_CAPABILITIES = ((5, 0), (9, 0))
"""What NVRTC 11.8 compiles our kernels for, and cuDNN 8.9 has kernels for."""
OWN_FROM = (9, 0)
"""From here on `model.kernels: auto` takes our own, which no GPU has confirmed yet."""
WHEEL = {"ELF": frozenset({50, 60, 70, 80, 86})}
"""The code in mxnet-cu112 1.9.1 (tests/gpu reads it): what is planned with where no MXNet for GPUs
is installed. No PTX, so later GPUs answer 209, "no kernel image" (apache/mxnet issue 21166)."""


@cache
def gpu_code(path: Path) -> dict[str, set[int]]:
    """The GPU code of a library: "ELF" (machine code) and "PTX" -> versions; 80 is sm_80.

    nvcc's fat binaries, little-endian, as read from the wheels:

        fat binary  u32 magic BA55ED50 | u16 version | u16 header bytes | u64 bytes of its entries
        entry       u16 kind (1 PTX, 2 ELF) | u16 | u32 header bytes | u64 payload bytes
                    u32 | u32 | u16 | u16 | u32 sm | ... payload
    """
    found: dict[str, set[int]] = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        place = data.find(_MAGIC)
        while 0 <= place <= len(data) - _FATBIN.size:
            _, version, header, size = _FATBIN.unpack_from(data, place)
            end = place + header + size
            entry = place + header
            if (version, header) != (1, _FATBIN.size) or end > len(data):
                end = place + 1  # the same four bytes as part of something else
            while entry + _ENTRY <= end:
                kind, _, skip, payload = struct.unpack_from("<HHIQ", data, entry)
                (sm,) = struct.unpack_from("<I", data, entry + 28)
                if kind in (1, 2):
                    found.setdefault(("PTX", "ELF")[kind - 1], set()).add(sm)
                entry += max(skip + payload, _ENTRY)
            place = data.find(_MAGIC, end)
    return found


def code_here() -> Mapping[str, Collection[int]]:
    """The code of the MXNet that is installed; of one for CPUs, that of the wheel for GPUs."""
    path = library()
    return (gpu_code(path) if path else {}) or WHEEL


def runs(code: Mapping[str, Collection[int]], capability: tuple[int, int]) -> bool:
    """Whether a GPU can run `code`: machine code of its own major version and no later minor one,
    or PTX of no later version."""
    major, minor = capability
    native = [sm for sm in code.get("ELF", ()) if sm // 10 == major and sm % 10 <= minor]
    return bool(native) or any(sm <= 10 * major + minor for sm in code.get("PTX", ()))


def choose_kernels(model: Model, name: str, capability: tuple[int, int]) -> str:
    """`own` or `mxnet`: who computes beside cuDNN on a GPU.

    Args:
        name: of the GPU, for messages.

    Raises:
        UserError: it can run neither, or not what `model.kernels` asks for.
    """
    first, last = OWN_CAPABILITIES
    found = f"found {name} with {dotted(capability)}"
    no_own = no_mxnet = ""
    if model.network != "resnet":
        no_own = f"our own kernels have no {model.network} (dropout is MXNet's)"
    elif not first <= capability <= last:
        no_own = f"our own kernels run from {dotted(first)} to {dotted(last)}"
    if not runs(code := code_here(), capability):
        has = ", ".join(f"{kind} for {_versions(sms)}" for kind, sms in sorted(code.items()))
        no_mxnet = f"MXNet has {has}"
    wanted = model.kernels
    if wanted == "auto":
        wanted = "own" if not no_own and (no_mxnet or capability >= OWN_FROM) else "mxnet"
    reason = {"own": no_own, "mxnet": no_mxnet}[wanted]
    if reason and model.kernels == "auto":  # MXNet's, as ours do not run there either
        reason = f"{no_own}; {no_mxnet}"
    if reason:
        raise UserError(
            f"a compute capability that model.network={model.network} runs on expected, {found}: "
            + reason
        )
    return wanted


def _versions(versions: Collection[int]) -> str:
    return ", ".join(f"sm_{sm}" for sm in sorted(versions))
