"""`rn50 doctor`: GPU code as libraries hold it, GPUs that cannot run it, what a trial leaves."""

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
    gpus_together,
    library_rows,
    machine_rows,
    try_library,
)
from rn50.launch.host_limits import Limits
from rn50.train.cuda.driver import Gpu, Gpus
from tests.conftest import Rn50
from tests.train.test_gpu_code import ELF, fat_binary


def machine(*capabilities: int) -> Gpus:
    """A machine with a GPU of each compute capability."""
    cards = [Gpu(f"sm_{major}0", (major, 0)) for major in capabilities]
    return Gpus("535.1", (12, 2), tuple(cards))


def test_driver_and_libraries_are_judged(tmp_path: Path) -> None:
    for gpus in (None, machine()):
        (row,) = gpu_rows(gpus, None)
        assert row.outcome == NO_GPU
    library = tmp_path / "libmxnet.so"
    library.write_bytes(fat_binary((ELF, 80, b"")))
    cards = machine(8, 9, 10)
    driver, a100, h100, b200 = gpu_rows(cards._replace(driver_cuda=(11, 4)), library)
    assert driver.outcome == FAILED
    assert "12.0" in driver.found
    assert "11.4" in driver.found
    assert a100.outcome == OK
    assert h100.outcome == OK
    assert "model.step=plan" in h100.found
    assert b200.outcome == FAILED


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
    cudnn, nccl = library_rows("".join(lines[:3]), mxnet)  # cuBLAS is not loaded
    assert cudnn == Row("cuDNN", OK, f"{files[0]} and 1 parts")
    assert nccl.outcome == OK
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


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [
        (machine(), ["cpu"]),
        (machine(9), ["cpu", "gpu0"]),
        (machine(8, 8), ["cpu", "gpu0", "gpu1"]),
    ],
)
def test_both_libraries_are_tried_on_every_device(
    gpus: Gpus, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(library: str, device: str) -> list[Row]:
        return [Row(device, library, "")]

    def together(count: int) -> list[Row]:
        return [Row("together", OK, str(count))]

    monkeypatch.setattr("rn50.launch.doctor.read_gpus", lambda: gpus)
    monkeypatch.setattr("rn50.launch.doctor.try_library", process)
    monkeypatch.setattr("rn50.launch.doctor.gpus_together", together)
    rows = list(examine(()))
    summed = [row.found for row in rows if row.check == "together"]
    assert summed == ["2"] * (len(devices) > 2)
    for library in ("mxnet", "dali"):
        assert [row.check for row in rows if row.outcome == library] == devices
    assert (rows[-1].outcome == NO_GPU) == (devices == ["cpu"])


def test_sums_are_tried_on_this_node_and_over_all_nodes_of_an_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def rows(*arguments: str) -> list[Row]:
        calls.append(arguments[-2:])
        return []

    monkeypatch.setattr("rn50.launch.doctor._rows_of", rows)
    hosts = tmp_path / "hosts"
    hosts.write_text("node1\nnode2\n")
    monkeypatch.setenv("RN50_HOSTS", str(hosts))
    assert not list(gpus_together(8))
    monkeypatch.delenv("RN50_HOSTS")
    assert not list(gpus_together(4))
    assert calls == [("1", "8"), ("2", "8"), ("1", "4")]


@pytest.mark.slow
def test_a_library_that_fails_is_a_row() -> None:
    # of a machine without one
    assert {row.outcome for row in try_library("dali", "gpu0")} == {FAILED}


@pytest.mark.slow
def test_this_machine_is_fit_and_a_host_without_an_address_is_named(rn50: Rn50) -> None:
    done = rn50("doctor", "nosuch.invalid", "--json")
    outcomes = {row["check"]: row["outcome"] for row in json.loads(done.stdout)}
    assert outcomes.pop("host nosuch.invalid") == FAILED
    assert FAILED not in outcomes.values()
    assert done.returncode == 1
    assert outcomes["convolution on cpu"] == OK
    assert outcomes["JPEG decoder on cpu"] == OK
