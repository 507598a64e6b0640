"""What `scripts/setup.sh --gpu` links and builds with, on machines that these tests make up."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

DRIVER = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
HEAD = """
set -euo pipefail
say() { echo "said: $*"; }
may_apt() { false; }
flags=() key=key log=$venv/setup.log
. scripts/setup_gpu.sh
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """An environment with MXNet and two CUDA libraries, and a PATH without nvcc and driver."""
    site = tmp_path / "venv/lib/python3.10/site-packages"
    for name in (
        "mxnet/libmxnet.so",
        "nvidia/cudnn/lib/libcudnn.so.8",
        "nvidia/nccl/lib/libnccl.so.2",
    ):
        (site / name).parent.mkdir(parents=True)
        (site / name).write_text(name)
    write(tmp_path / "venv/bin/python", f"echo {site}")
    write(tmp_path / "bin/ldconfig", "true")
    write(tmp_path / "bin/nvcc", "exit 127")
    write(tmp_path / "bin/g++", "echo 12")
    write(tmp_path / "bin/apt-get", "exit 100")
    return tmp_path


def write(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def nvcc(release: str) -> str:
    return f'echo "Cuda compilation tools, release {release[:4]}, V{release}"'


def run(root: Path, machine: Path, body: str) -> str:
    """What Bash prints for `body` with scripts/setup_gpu.sh at hand."""
    environment = {
        "PATH": f"{machine / 'bin'}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(machine / "cache"),
        "venv": str(machine / "venv"),
    }
    done = subprocess.run(
        ["bash", "-c", HEAD + body], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cudas_libraries_are_links_beside_mxnets_own(root: Path, machine: Path) -> None:
    run(root, machine, "stub_driver() { :; }; link_cuda; link_cuda")
    shutil.move(machine / "venv", machine / "moved")
    mxnet = machine / "moved/lib/python3.10/site-packages/mxnet"
    assert str((mxnet / "libcudnn.so.8").readlink()) == "../nvidia/cudnn/lib/libcudnn.so.8"
    assert (mxnet / "libnccl.so.2").read_text() == "nvidia/nccl/lib/libnccl.so.2"
    assert str((mxnet / "libcuda.so").readlink()) == DRIVER  # dangling until there is a driver


def test_horovods_libcuda_is_the_drivers(root: Path, machine: Path) -> None:
    lines = (
        r"printf '\tlibcuda.so.1 (libc6) => /lib32/libcuda.so.1\n"
        r"\tlibcuda.so.1 (libc6,x86-64) => /usr/lib64/nvidia/libcuda.so.1\n"
        r"\tlibcuda.so (libc6,x86-64) => /usr/lib64/nvidia/libcuda.so\n'"
    )
    write(machine / "bin/ldconfig", lines)
    assert run(root, machine, "stub_driver() { echo stub; }; link_cuda") == ""
    link = machine / "venv/lib/python3.10/site-packages/mxnet/libcuda.so"
    assert str(link.readlink()) == "/usr/lib64/nvidia/libcuda.so.1"


def test_nvcc_11_of_the_path_is_used(root: Path, machine: Path) -> None:
    write(machine / "bin/nvcc", nvcc("11.5.119"))
    out = run(root, machine, 'gpu_build; echo "$toolkit $key"; printf "%s\n" "${flags[@]}"')
    assert re.fullmatch(
        f"{machine} key-nccl2.21.5-nvcc11.5.119-[0-9a-f]{{12}}", out.splitlines()[0]
    )
    assert "HOROVOD_GPU_OPERATIONS=NCCL" in out and "HOROVOD_NCCL_LINK=SHARED" in out
    assert "HOROVOD_BUILD_CUDA_CC_LIST=50,60,70,80,86" in out
    link = machine / "venv/nccl/libnccl.so"
    assert link.resolve().name == "libnccl.so.2"


def test_nvcc_13_of_the_path_is_not(root: Path, machine: Path) -> None:
    write(machine / "bin/nvcc", nvcc("13.0.88"))
    kept = machine / "cache/rn50/nvcc-11.8.89"
    write(kept / "bin/nvcc", nvcc("11.8.89"))
    out = run(root, machine, 'gpu_build; echo "$toolkit $key"')
    assert re.fullmatch(f"{kept} key-nccl2.21.5-nvcc11.8.89-[0-9a-f]{{12}}\n", out)


def test_without_any_nvcc_horovod_is_built_without_gpu_operations(
    root: Path, machine: Path
) -> None:
    out = run(root, machine, 'gpu_build; echo "$key"; printf "%s\n" "${flags[@]}"')
    said = [line for line in out.splitlines() if line.startswith("said:")]
    assert len(said) == 2 and "Horovod gets no GPU operations" in said[1]
    assert "key-without-nccl" in out.splitlines()
    assert "HOROVOD_GPU_OPERATIONS" not in out
    # Horovod's CMake would compile its CUDA kernels for any MXNet that has CUDA.
    source = machine / "source/cmake/Modules"
    source.mkdir(parents=True)
    line = "    list(GET Mxnet_OUTPUT 5 Mxnet_USE_CUDA)\n"
    (source / "FindMxnet.cmake").write_text(line)
    write(machine / "venv/bin/cmake", 'printf "%s\n" "$@"')
    done = subprocess.run(
        [machine / "venv/cmake", machine / "source", "-DA=1"], capture_output=True, text=True
    )
    assert done.stdout == f"{machine / 'source'}\n-DA=1\n"
    assert (source / "FindMxnet.cmake").read_text() == "    set(Mxnet_USE_CUDA FALSE)\n"


def test_cmake_configures_with_what_setup_py_cannot_say(root: Path, machine: Path) -> None:
    write(machine / "bin/nvcc", nvcc("11.8.89"))
    run(root, machine, "gpu_build")
    write(machine / "venv/bin/cmake", 'printf "%s\n" "$@"')
    cmake = machine / "venv/cmake"
    configured = subprocess.run([cmake, "source"], capture_output=True, text=True).stdout
    assert configured.splitlines() == [
        "source",
        "-DCMAKE_CUDA_RUNTIME_LIBRARY=Shared",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN/../../mxnet",
    ]
    built = subprocess.run([cmake, "--build", "."], capture_output=True, text=True).stdout
    assert built.splitlines() == ["--build", "."]


@pytest.mark.parametrize(("version", "there", "flag"), [
    ("11", False, None),
    ("12", True, "CUDAHOSTCXX="),
    ("12", False, "-allow-unsupported-compiler"),
])  # fmt: skip
def test_nvcc_gets_a_compiler_that_it_takes(
    root: Path, machine: Path, version: str, there: bool, flag: str | None
) -> None:
    write(machine / "bin/nvcc", nvcc("11.8.89"))
    write(machine / "bin/g++", f"echo {version}")
    if there:
        write(machine / "bin/g++-11", "echo 11")
    # A g++-11 of this machine's own is not to be seen.
    hide = "" if there else 'command() { [ "$2" != g++-11 ] && builtin command "$@"; }\n'
    out = run(root, machine, hide + 'gpu_build; printf "%s\n" "${flags[@]}"')
    found = re.findall(r"CUDAHOSTCXX=|-allow-unsupported-compiler", out)
    assert found == ([] if flag is None else [flag])
