"""What the driver says, asked of a driver's library that the test compiles."""

from pathlib import Path

from rn50.train.cuda.driver import Gpu, Gpus, check_driver, read_gpus
from tests.conftest import refused
from tests.train.test_mpi_library import compile_library

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
int cuDeviceGetUuid(char *uuid, int device) {
  __builtin_memset(uuid, device, 16);
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


def test_driver_and_devices_are_read(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "libcuda.so.1", DRIVER.replace("CUINIT", "0"))
    version = tmp_path / "version"
    version.write_text(VERSION.format("535.129.03"))
    uuids = (
        "GPU-" + "-".join(digits * n for n in (4, 2, 2, 2, 6))
        for digits in ("0a", "0b")
    )
    v100, a100 = uuids
    devices = (
        Gpu("Tesla V100-SXM2-16GB", (7, 0), v100),
        Gpu("NVIDIA A100", (8, 0), a100),
    )
    assert read_gpus(str(library), version) == Gpus("535.129.03", (12, 4), devices)


def test_without_a_device_or_a_driver_there_is_less_to_say(tmp_path: Path) -> None:
    code = DRIVER.replace("CUINIT", "100")
    library = compile_library(tmp_path / "libcuda.so.1", code)
    assert read_gpus(str(library), tmp_path / "none") == Gpus(None, (12, 4), ())
    assert read_gpus("libcuda-of-nobody.so.1") is None


def test_a_driver_older_than_dalis_and_nccls_is_refused() -> None:
    check_driver((12, 0))
    with refused(r"a driver for CUDA 12\.0 .* found one for 11\.8"):
        check_driver((11, 8))
