"""Which GPUs run the network of a config: by the GPU code in MXNet's library, or by our own plan.
Loads no framework."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from ...config.schema import Model
from ...host.errors import UserError
from ..mxnet_package import library
from .driver import Gpu, check_machine, dotted

_MAGIC = struct.pack("<I", 0xBA55ED50)
_FATBIN = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HxxIQ12xI32x")
_FORMS = {1: "PTX", 2: "ELF"}

PLAN_CAPABILITIES = ((7, 0), (9, 0))
"""From the first with tensor cores to the last that NVRTC 11.8 and cuDNN 8.9 know."""
WHEEL = {"ELF": frozenset({50, 60, 70, 80, 86})}
"""The code in mxnet-cu112 1.9.1 (tests/gpu reads it): what is planned with where no MXNet for GPUs
is installed. No PTX, so later GPUs answer 209, "no kernel image" (apache/mxnet issue 21166)."""


@cache
def gpu_code(path: Path) -> dict[str, set[int]]:
    """The GPU code of a library: "ELF" (machine code) and "PTX" -> versions; 80 is sm_80.

    nvcc's fat binaries, little-endian, as read from the wheels:

        fat binary  u32 magic BA55ED50 | u16 version | u16 header bytes | u64 bytes of its entries
        entry       u16 form (1 PTX, 2 ELF) | u16 | u32 header bytes | u64 payload bytes
                    u32 | u32 | u16 | u16 | u32 sm | ... payload
    """
    code: dict[str, set[int]] = {}
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        offset = data.find(_MAGIC)
        while 0 <= offset <= len(data) - _FATBIN.size:
            _, version, header, size = _FATBIN.unpack_from(data, offset)
            end = offset + header + size
            entry = offset + header
            if (version, header) != (1, _FATBIN.size) or end > len(data):
                end = offset + 1  # the same four bytes as part of something else
            while entry + _ENTRY.size <= end:
                form, skip, payload, sm = _ENTRY.unpack_from(data, entry)
                if form in _FORMS:
                    code.setdefault(_FORMS[form], set()).add(sm)
                entry += max(skip + payload, _ENTRY.size)
            offset = data.find(_MAGIC, end)
    return code


def code_here() -> Mapping[str, Collection[int]]:
    """The code of the MXNet that is installed; of one for CPUs, that of the wheel for GPUs."""
    path = library()
    return (gpu_code(path) if path else {}) or WHEEL


def runs(code: Mapping[str, Collection[int]], capability: tuple[int, int]) -> bool:
    """Whether a GPU can run `code`: machine code of its own major version and no later minor one,
    or PTX of no later version."""
    major, minor = capability
    latest = 10 * major + minor
    native = code.get("ELF", ())
    ptx = code.get("PTX", ())
    if any(10 * major <= sm <= latest for sm in native):
        return True
    return any(sm <= latest for sm in ptx)


def require_gpu(model: Model, local_rank: int) -> Gpu:
    """The GPU of a rank on this machine. Raises UserError: there is none, or it cannot run the
    network."""
    _, gpu = check_machine(local_rank)
    check_step(model, gpu.name, gpu.capability)
    return gpu


def check_step(model: Model, name: str, capability: tuple[int, int]) -> None:
    """Raise UserError for a GPU that cannot run a network's step as `model.step` has it.

    Args:
        name: of the GPU, for messages.
    """
    device = f"{name} with {dotted(capability)}"
    first, last = PLAN_CAPABILITIES
    if not model.is_planned:
        code = code_here()
        if not runs(code, capability):
            forms = [f"{form} for {_versions(code[form])}" for form in sorted(code)]
            raise UserError(
                f"model.step: a GPU that MXNet's operators run on expected for {model.network}, "
                f"found {device}: MXNet has {', '.join(forms)}"
            )
    elif not first <= capability <= last:
        has_code = runs(code_here(), capability)
        cure = "; use model.step=operators" if has_code else ""
        raise UserError(
            f"model.step: a GPU from {dotted(first)} to {dotted(last)} for the plan expected, "
            f"found {device}{cure}"
        )


def _versions(versions: Collection[int]) -> str:
    return ", ".join(f"sm_{sm}" for sm in sorted(versions))
