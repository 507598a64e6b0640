"""`rn50 doctor`: GPU code as libraries hold it, GPUs that cannot run it, what a trial leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rn50.launch.doctor import (
    FAILED,
    NO_GPU,
    OK,
    Row,
    examine,
    gpu_rows,
    library_rows,
    machine_rows,
    try_library,
)
from rn50.launch.host_limits import Limits
from rn50.train.gpu.driver import Gpu, Gpus
from tests.conftest import Rn50
from tests.train.test_gpu_code import ELF, fat_binary


def test_driver_and_libraries_are_judged(tmp_path: Path) -> None:
    for gpus in (None, Gpus("535.1", (12, 2), ())):
        assert [row[:2] for row in gpu_rows(gpus, None)] == [("driver", NO_GPU)]
    library = tmp_path / "libmxnet.so"
    library.write_bytes(fat_binary((ELF, 80, b"")))
    cards = (Gpu("A100", (8, 0)), Gpu("H100", (9, 0)), Gpu("B200", (10, 0)))
    driver, *found = gpu_rows(Gpus("470.1", (11, 4), cards), library)
    assert driver.outcome == FAILED
    assert [row.outcome for row in found] == [OK, OK, FAILED]
    assert "model.step=plan" in found[1].found
    assert "12.0" in driver.found
    assert "11.4" in driver.found


def test_a_library_of_another_place_is_named(tmp_path: Path) -> None:
    names = ("cudnn/libcudnn.so.8", "cudnn/libcudnn_ops.so.8", "nccl/libnccl.so.2")
    files = [tmp_path / name for name in (*names, "module/libcudnn_ops.so.8")]
    mxnet = tmp_path / "mxnet"
    mxnet.mkdir()
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    for file in files[:2]:
        (mxnet / file.name).symlink_to(file)
    lines = [
        f"7f00-7f01 r-xp 00000000 08:01 42 {' ' * 20}{file}\n7f02-7f03 rw-p 0 00:00 0\n"
        for file in files
    ]
    rows = list(library_rows("".join(lines[:3]), mxnet))
    # cuBLAS is not loaded
    assert [row[:2] for row in rows] == [("cuDNN", OK), ("NCCL", OK)]
    assert f"{files[0]} and 1 parts" in rows[0].found
    (row,) = library_rows(lines[0] + lines[3], mxnet)
    assert row.outcome == FAILED
    assert str(files[1]) in row.found
    assert str(files[3]) in row.found


def test_a_container_in_which_runs_pass_is_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Podman's /dev/shm is 64,000 KiB; without a network a container's name has no address."""

    def outcomes(free_bytes: int, *hosts: str) -> set[str]:
        limits = Limits({}, None, free_bytes, 64_000 << 10)
        monkeypatch.setattr("rn50.launch.doctor.read_limits", lambda: limits)
        return {row.outcome for row in machine_rows(hosts)}

    monkeypatch.setattr("platform.node", lambda: "nosuch.invalid")
    assert outcomes(60_000 << 10) == {OK}
    assert FAILED in outcomes(8 << 20)
    assert FAILED in outcomes(60_000 << 10, "localhost")


@pytest.mark.parametrize("count", [0, 2])
def test_both_libraries_are_tried_on_every_device(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = Gpus("535.1", (12, 2), (Gpu("A100", (8, 0)),) * count)
    tried = []

    def process(library: str, device: str) -> list[Row]:
        tried.append((device, library))
        return []

    monkeypatch.setattr("rn50.launch.doctor.read_gpus", lambda: gpus)
    monkeypatch.setattr("rn50.launch.doctor.try_library", process)
    *_, last = examine(())
    devices = ["cpu", "gpu0", "gpu1"][: count + 1]
    assert tried == [(device, name) for device in devices for name in ("mxnet", "dali")]
    assert (last.outcome == NO_GPU) == (count == 0)


@pytest.mark.slow
def test_a_library_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = try_library("mxnet", "gpu0")  # of a machine without one
    assert rows
    assert {row.outcome for row in rows} == {FAILED}
    monkeypatch.setattr("sys.executable", "/bin/false")
    (row,) = try_library("dali", "cpu")
    assert (row.check, row.outcome) == ("dali on cpu", FAILED)
    assert "exit code 1" in row.found


@pytest.mark.slow
def test_this_machine_is_fit_and_a_host_without_an_address_is_named(rn50: Rn50) -> None:
    done = rn50("doctor", "nosuch.invalid", "--json")
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    assert [name for name, row in rows.items() if row["outcome"] == FAILED] == [
        "host nosuch.invalid"
    ]
    assert done.returncode == 1
    assert {"convolution on cpu", "JPEG decoder on cpu"} <= {*rows}


def test_a_parameter_servers_role_hides_no_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DMLC_ROLE", "server")
    assert {row.outcome for row in try_library("mxnet", "cpu")} == {OK}
