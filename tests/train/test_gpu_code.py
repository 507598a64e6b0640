"""GPU code as libraries hold it, and which kernels a GPU gets."""

import struct
from pathlib import Path

import pytest

from rn50.config.schema import Model
from rn50.train.cuda import code as module
from rn50.train.cuda.code import WHEEL, check_step, gpu_code, runs
from tests.conftest import refused

PTX = 1
ELF = 2


def fat_binary(*codes: tuple[int, int, bytes]) -> bytes:
    """A fat binary as nvcc writes it: (kind, version, payload) of each entry."""
    entries = b""
    for kind, version, payload in codes:
        sizes = (len(payload), 0, 0, 0, 8)
        entries += struct.pack(
            "<HHIQIIHHIIIQQQ", kind, 257, 64, *sizes, version, *[0] * 5
        )
        entries += payload
    header = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries))
    return header + entries


def test_every_entry_of_every_fat_binary_is_found(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    binary = fat_binary((ELF, 50, b"A" * 40), (PTX, 90, b"B" * 24), (8, 86, b"C" * 8))
    magic = binary[:4]  # also as data of something else, and at the end
    another = fat_binary((ELF, 80, b""))
    parts = [b"\x7fELF", magic, b"text" * 9, binary, bytes(24), another, magic]
    library.write_bytes(b"".join(parts))
    assert gpu_code(library) == {"ELF": {50, 80}, "PTX": {90}}
    broken = tmp_path / "broken.so"
    broken.write_bytes(binary[:-1])
    assert gpu_code(broken) == {}


@pytest.mark.parametrize(
    ("capability", "code", "fit"),
    [
        ((8, 0), WHEEL, True),
        ((8, 9), WHEEL, True),  # by that of 8.6
        ((9, 0), WHEEL, False),
        ((3, 7), WHEEL, False),
        ((8, 0), {"ELF": {86}}, False),
        ((9, 0), {"ELF": {86}, "PTX": {80}}, True),
        ((8, 0), {"PTX": {90}}, False),
    ],
)
def test_a_gpu_runs_its_own_major_version_or_older_ptx(
    capability: tuple[int, int], code: dict[str, set[int]], fit: bool
) -> None:
    assert runs(code, capability) is fit


HOPPERS = {"ELF": {80, 90}}
ALEXNET = {"network": "alexnet"}


@pytest.mark.parametrize(
    ("code", "model", "capability", "message"),
    [
        (WHEEL, {}, (7, 0), None),
        (WHEEL, {}, (9, 0), None),
        (WHEEL, {}, (10, 0), r"from 7\.0 to 9\.0 for the plan expected"),
        (WHEEL, {}, (6, 1), r"from 7\.0 to 9\.0 for the plan expected"),
        (WHEEL, {"step": "operators"}, (6, 1), None),
        (WHEEL, {"step": "operators"}, (9, 0), "MXNet has ELF for sm_50, sm_60"),
        (WHEEL, {"norm": "none"}, (9, 0), "MXNet has ELF for sm_50"),
        (WHEEL, ALEXNET, (9, 0), "for alexnet, .*MXNet has ELF for sm_50"),
        (HOPPERS, ALEXNET, (9, 0), None),  # of a container
    ],
)
def test_what_a_gpu_runs_follows_from_network_and_library(
    code: dict[str, set[int]],
    model: dict[str, str],
    capability: tuple[int, int],
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "code_here", lambda: code)
    with refused(message) as caught:
        check_step(Model.model_validate(model), "NVIDIA X", capability)
    named = "found NVIDIA X with {}.{}".format(*capability)
    assert message is None or named in str(caught.value)
