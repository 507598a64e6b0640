"""What the driver says, asked of a driver's library that the test compiles."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.train import gpu as module
from rn50.train.gpu import (
    SUPPORTED,
    Gpu,
    Gpus,
    can_open_libcuda,
    check_capability,
    check_driver,
    read_gpus,
)

DRIVER = """
extern "C" {
int cuInit(unsigned) { return CUINIT; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index + 10; return 0; }
int cuDeviceGetName(char *name, int, int device) {
  __builtin_strcpy(name, device == 10 ? "Tesla V100-SXM2-16GB" : "NVIDIA A100");
  return 0;
}
int cuDeviceGetAttribute(int *value, int what, int device) {
  *value = what == 75 ? (device == 10 ? 7 : 8) : 0;
  return 0;
}
}
"""
VERSION = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Oct 19 18:56:32 UTC 2023\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)


def compile_library(path: Path, source: str) -> Path:
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_driver_and_devices_are_read(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "libcuda.so.1", DRIVER.replace("CUINIT", "0"))
    version = tmp_path / "version"
    version.write_text(VERSION.format("535.129.03"))
    devices = (Gpu("Tesla V100-SXM2-16GB", (7, 0)), Gpu("NVIDIA A100", (8, 0)))
    assert read_gpus(str(library), version) == Gpus("535.129.03", (12, 4), devices)


def test_a_driver_without_a_device_is_said_to_be_that(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "libcuda.so.1", DRIVER.replace("CUINIT", "100"))
    assert read_gpus(str(library), tmp_path / "none") == Gpus(None, (12, 4), ())


def test_without_a_driver_there_is_nothing_to_say() -> None:
    assert read_gpus("libcuda-of-nobody.so.1") is None


@pytest.mark.parametrize(
    ("line", "release"),
    [
        (VERSION.format("525.60.13"), "525.60.13"),
        (VERSION.format("470.82"), "470.82"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.05  Release Build\n",
            "560.35.05",
        ),
        ("something else\n", None),
    ],
)
def test_the_drivers_release_as_the_kernel_module_tells_it(
    tmp_path: Path, line: str, release: str | None
) -> None:
    (tmp_path / "version").write_text(line)
    assert module._driver_release(tmp_path / "version") == release


@pytest.mark.parametrize("capability", [(5, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9)])
def test_gpus_that_the_wheel_has_machine_code_for(capability: tuple[int, int]) -> None:
    check_capability("any", capability)


def test_a_gpu_without_machine_code_is_refused_by_name() -> None:
    message = (
        "mxnet-cu112 1.9.1 holds machine code for sm_50 to sm_86 and no PTX: compute capability "
        "5.0 to 8.9 expected, found NVIDIA H100 80GB HBM3 with 9.0"
    )
    with pytest.raises(UserError) as caught:
        check_capability("NVIDIA H100 80GB HBM3", (9, 0))
    assert str(caught.value) == message
    for capability in ((3, 7), (10, 0)):
        with pytest.raises(UserError, match=rf"with {capability[0]}\.{capability[1]}$"):
            check_capability("other", capability)
    assert SUPPORTED == ((5, 0), (8, 9))


def test_a_driver_older_than_dalis_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        check_driver((11, 8), decodes=True)
    assert str(caught.value) == (
        "DALI: a driver for CUDA 12.0 (525 or newer) expected, found one for 11.8"
    )


def test_horovods_libcuda_is_found_beside_mxnets_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the loader finds it by the RPATH of Horovod's library."""
    monkeypatch.setattr(module, "HOROVODS_LIBRARY", "libcuda-of-horovod.so")
    package = tmp_path / "mxnet"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)
    assert not can_open_libcuda()
    link = package / "libcuda-of-horovod.so"
    link.symlink_to(tmp_path / "libcuda.so.1")  # dangling: no driver yet
    assert not can_open_libcuda()
    compile_library(tmp_path / "libcuda.so.1", "int nothing;")
    assert can_open_libcuda()
    assert ctypes.CDLL(str(link))
