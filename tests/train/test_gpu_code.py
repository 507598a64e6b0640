"""GPU code as libraries hold it, and which kernels a GPU gets."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.schema import Model
from rn50.train import gpu_code as module
from rn50.train.gpu_code import WHEEL, choose_kernels, gpu_code, runs

PTX = 1
ELF = 2


def fat_binary(*codes: tuple[int, int, bytes]) -> bytes:
    """As nvcc writes it: (kind, version, payload) of each entry."""
    entries = b""
    for kind, version, payload in codes:
        sizes = (len(payload), 0, 0, 0, 8)
        entries += struct.pack("<HHIQIIHHIIIQQQ", kind, 257, 64, *sizes, version, *[0] * 5)
        entries += payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def test_every_entry_of_every_fat_binary_is_found(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    whole = fat_binary((ELF, 50, b"A" * 40), (PTX, 90, b"B" * 24), (8, 86, b"C" * 8))
    magic = whole[:4]  # also as data of something else, and at the end
    library.write_bytes(
        b"\x7fELF" + magic + b"text" * 9 + whole + bytes(24) + fat_binary((ELF, 80, b"")) + magic
    )
    assert gpu_code(library) == {"ELF": {50, 80}, "PTX": {90}}
    broken = tmp_path / "broken.so"
    broken.write_bytes(whole[:-1])
    assert gpu_code(broken) == {}


@pytest.mark.parametrize(
    ("capability", "code", "fit"),
    [
        ((8, 0), WHEEL, True),
        ((8, 9), WHEEL, True),  # by that of 8.6
        ((7, 5), WHEEL, True),
        ((9, 0), WHEEL, False),
        ((3, 7), WHEEL, False),
        ((8, 0), {"ELF": {86}}, False),
        ((9, 0), {"ELF": {86}, "PTX": {80}}, True),
        ((8, 0), {"PTX": {90}}, False),
        ((8, 0), {}, False),
    ],
)
def test_a_gpu_runs_its_own_major_version_or_older_ptx(
    capability: tuple[int, int], code: dict[str, set[int]], fit: bool
) -> None:
    assert runs(code, capability) is fit


HOPPERS = {"ELF": {80, 90}}
ALEXNET = {"network": "alexnet"}


@pytest.mark.parametrize(
    ("code", "model", "capability", "expected"),
    [
        (WHEEL, {}, (7, 0), "mxnet"),
        (WHEEL, {}, (8, 9), "mxnet"),
        (WHEEL, {}, (9, 0), "own"),
        (WHEEL, {"kernels": "own"}, (7, 0), "own"),
        (WHEEL, {"kernels": "mxnet"}, (9, 0), "MXNet has ELF for sm_50, sm_60"),
        (WHEEL, {}, (10, 0), r"our own kernels run from 5\.0 to 9\.0; MXNet has ELF for sm_50"),
        (WHEEL, {}, (3, 7), r"our own kernels run from 5\.0 to 9\.0; MXNet has ELF for sm_50"),
        (WHEEL, ALEXNET, (8, 0), "mxnet"),
        (WHEEL, ALEXNET, (9, 0), "our own kernels have no alexnet .*; MXNet has ELF for sm_50"),
        (WHEEL, {**ALEXNET, "kernels": "own"}, (8, 0), "our own kernels have no alexnet"),
        (HOPPERS, ALEXNET, (9, 0), "mxnet"),  # of a container
        (HOPPERS, {"kernels": "mxnet"}, (9, 0), "mxnet"),
    ],
)
def test_the_kernels_follow_from_gpu_network_and_library(
    code: dict[str, set[int]],
    model: dict[str, str],
    capability: tuple[int, int],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "code_here", lambda: code)
    if expected in ("own", "mxnet"):
        assert choose_kernels(Model(**model), "NVIDIA X", capability) == expected
    else:
        found = "found NVIDIA X with {}.{}: ".format(*capability)
        with pytest.raises(UserError, match=f"{found}{expected}"):
            choose_kernels(Model(**model), "NVIDIA X", capability)
