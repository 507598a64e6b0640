"""`rn50 doctor`: GPU code as libraries hold it, GPUs that cannot run it, what a trial leaves."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from rn50.launch.doctor import FAILED, NO_GPU, OK, code_row, gpu_code, gpu_rows, try_library
from rn50.train.gpu import Gpu, Gpus

PTX, ELF = 1, 2
WHEEL = {"ELF": {50, 60, 70, 80, 86}}
"""What mxnet-cu112 1.9.1 holds."""


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
    library.write_bytes(whole[:-1])  # broken off
    assert gpu_code(library) == {}


@pytest.mark.parametrize(
    ("capability", "code", "outcome"),
    [
        ((8, 0), WHEEL, OK),
        ((8, 9), WHEEL, OK),  # by that of 8.6
        ((7, 5), WHEEL, OK),
        ((9, 0), WHEEL, FAILED),
        ((3, 7), WHEEL, FAILED),
        ((8, 0), {"ELF": {86}}, FAILED),
        ((9, 0), {"ELF": {86}, "PTX": {80}}, OK),
        ((8, 0), {"PTX": {90}}, FAILED),
        ((8, 0), {}, FAILED),
    ],
)
def test_a_gpu_runs_its_own_major_version_or_older_ptx(
    capability: tuple[int, int], code: dict[str, set[int]], outcome: str
) -> None:
    row = code_row(3, Gpu("NVIDIA H200", capability), code)
    assert (row.check, row.outcome) == ("GPU 3", outcome)
    assert "NVIDIA H200" in row.found and f"{capability[0]}.{capability[1]}" in row.found
    assert all(f"sm_{sm}" in row.found for versions in code.values() for sm in versions)


def test_driver_and_libraries_are_judged(tmp_path: Path) -> None:
    for gpus in (None, Gpus("535.1", (12, 2), ())):
        assert [row[:2] for row in gpu_rows(gpus, tmp_path)] == [("driver", NO_GPU)]
    (tmp_path / "libmxnet.so").write_bytes(fat_binary((ELF, 80, b"")))
    old = Gpus("470.1", (11, 4), (Gpu("A100", (8, 0)), Gpu("H100", (9, 0))))
    driver, first, second = gpu_rows(old, tmp_path)
    assert (driver.outcome, first.outcome, second.outcome) == (FAILED, OK, FAILED)
    assert "12.0" in driver.found and "11.4" in driver.found


@pytest.mark.slow
def test_a_library_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = try_library("mxnet", "gpu0")  # of a machine without one
    assert row.outcome == FAILED and "exit code" in row.found
    monkeypatch.setattr("sys.executable", "/bin/false")
    row = try_library("dali", "cpu")
    assert (row.check, row.outcome) == ("dali on cpu", FAILED) and "exit code 1" in row.found


@pytest.mark.slow
def test_this_machine_is_fit_and_a_host_without_an_address_is_named(rn50) -> None:
    done = rn50("doctor", "nosuch.invalid", "--json")
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    assert [name for name, row in rows.items() if row["outcome"] == FAILED] == [
        "host nosuch.invalid"
    ]
    assert done.returncode == 1
    assert "float32" in rows["mxnet on cpu"]["found"] and "grey" in rows["dali on cpu"]["found"]
