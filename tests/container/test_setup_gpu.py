"""What `scripts/setup.sh --gpu` links and builds with, on machines that these tests make up."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import write_file, write_script
from tests.waiting import finished

DRIVER = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
PROJECT = """
cmake_minimum_required(VERSION 3.13)
project(horovod CXX)
set(CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake/upstream)
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit)
endif()
if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
endif()
find_package(CUDAToolkit REQUIRED)
add_subdirectory(horovod/common/ops/cuda)
message(STATUS "rpath: ${CMAKE_INSTALL_RPATH}")
"""
HEAD = """
set -euo pipefail
flags=() key=key
. scripts/setup_gpu.sh
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """An environment with MXNet and some CUDA libraries, and a PATH without a driver."""
    site = tmp_path / "venv/lib/python3.10/site-packages"
    for name in (
        "mxnet/libmxnet.so",
        "nvidia/cudnn/lib/libcudnn.so.8",
        "nvidia/nccl/lib/libnccl.so.2",
        "nvidia/cuda_runtime/lib/libcudart.so.11.0",
    ):
        write_file(site / name, name)
    write_script(tmp_path / "venv/bin/python", f"echo {site}")
    write_script(tmp_path / "bin/ldconfig", "true")
    return tmp_path


def run(root: Path, machine: Path, body: str) -> str:
    """What Bash prints for `body` with scripts/setup_gpu.sh at hand."""
    environment = {
        "PATH": f"{machine / 'bin'}:/usr/bin:/bin",
        "venv": str(machine / "venv"),
    }
    done = finished(["bash", "-c", HEAD + body], cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cudas_libraries_are_links_beside_mxnets_own(root: Path, machine: Path) -> None:
    run(root, machine, "stub_driver() { :; }; link_cuda; link_cuda")
    shutil.move(machine / "venv", machine / "moved")
    mxnet = machine / "moved/lib/python3.10/site-packages/mxnet"
    cudnn = str((mxnet / "libcudnn.so.8").readlink())
    assert cudnn == "../nvidia/cudnn/lib/libcudnn.so.8"
    assert (mxnet / "libnccl.so.2").read_text() == "nvidia/nccl/lib/libnccl.so.2"
    # dangling until there is a driver
    assert str((mxnet / "libcuda.so").readlink()) == DRIVER


def test_horovods_libcuda_is_the_drivers(root: Path, machine: Path) -> None:
    lines = (
        r"printf '\tlibcuda.so.1 (libc6) => /lib32/libcuda.so.1\n"
        r"\tlibcuda.so.1 (libc6,x86-64) => /usr/lib64/nvidia/libcuda.so.1\n"
        r"\tlibcuda.so (libc6,x86-64) => /usr/lib64/nvidia/libcuda.so\n'"
    )
    write_script(machine / "bin/ldconfig", lines)
    assert run(root, machine, "stub_driver() { echo stub; }; link_cuda") == ""
    link = machine / "venv/lib/python3.10/site-packages/mxnet/libcuda.so"
    assert str(link.readlink()) == "/usr/lib64/nvidia/libcuda.so.1"


def test_horovod_is_built_with_pips_cuda_alone(root: Path, machine: Path) -> None:
    script = 'gpu_build; echo "$key"; printf "%s\n" "${flags[@]}"'
    key, *lines = run(root, machine, script).splitlines()
    assert re.fullmatch(r"key-nccl-cu12-2\.21\.5-[0-9a-f]{12}", key)
    flags = dict(line.split("=", 1) for line in lines)
    assert flags["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert flags["HOROVOD_NCCL_LINK"] == "SHARED"
    headers = [Path(folder) for folder in flags["CPATH"].split(":")]
    assert {folder.parent.parent.name for folder in headers} == {"nvidia"}
    assert {"cuda_runtime", "cuda_nvcc"} <= {folder.parent.name for folder in headers}
    linked = Path(flags["LIBRARY_PATH"])
    assert flags["HOROVOD_NCCL_LIB"] == str(linked)
    assert (linked / "libnccl.so").resolve().name == "libnccl.so.2"
    assert (linked / "libcudart.so").resolve().name == "libcudart.so.11.0"


def test_cmake_neither_looks_for_nvcc_nor_for_a_toolkit(
    root: Path, machine: Path
) -> None:
    """A project as Horovod's, configured and built, with an nvcc on the PATH."""
    source = machine / "source"
    for name in ("horovod/common/ops/cuda", "cmake/upstream"):
        (source / name).mkdir(parents=True)
    (source / "CMakeLists.txt").write_text(PROJECT)
    write_script(machine / "bin/nvcc", f"touch {machine / 'asked'}; exit 1")
    run(root, machine, f"patch_horovod {source}")
    assert (source / "horovod/common/ops/cuda/horovod_kernels.cc").is_file()
    path = f"{machine / 'bin'}:{Path(sys.prefix) / 'bin'}:/usr/bin:/bin"
    command = ("cmake", "-S", source, "-B", machine / "build")
    done = finished(command, env={"PATH": path})
    assert done.returncode == 0, done.stderr
    assert "rpath: $ORIGIN/../../mxnet" in done.stdout
    assert not (machine / "asked").exists()
