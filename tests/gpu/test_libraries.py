"""Which libraries are loaded, with no variable set, and which GPUs their code is for."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rn50.config.load import load
from rn50.launch.doctor import OK, try_library
from rn50.launch.launchers import LAUNCHERS, build_job
from rn50.train.cuda.code import PLAN_CAPABILITIES, WHEEL, gpu_code, runs
from tests.waiting import output_of

pytestmark = pytest.mark.slow

# Imports as a rank does, then names every loaded CUDA library and what Horovod was built with.
LOAD = """
import json, re, rn50, mxnet, horovod.mxnet as hvd
mxnet.nd.ones(1, mxnet.gpu(0)).wait_to_read()
names = {line.rstrip().split(maxsplit=5)[-1] for line in open("/proc/self/maps") if ".so" in line}
wanted = r"lib(cudart|cudnn|cublas|cufft|curand|cusolver|nccl|nvrtc)[^/]*$"
print(json.dumps({"nccl": bool(hvd.nccl_built()), "gloo": bool(hvd.gloo_built()),
                  "libraries": sorted(n for n in names if re.search(wanted, n))}))
"""


# Each way in which a rank comes to MXNet's library first; then what the libraries say themselves.
IMPORT = "import rn50, mxnet"
JOIN = """
from rn50.config.load import load
from rn50.logging.clock import Clock
from rn50.logging.timeline import Timeline
from rn50.train.communication.connection import Connection
Connection(load("smoke").run, Timeline(0, Clock(0.0)), over_mpi=False).wait()
"""
ASK = """
import ctypes, json
every = ctypes.CDLL(None)
value = ctypes.c_void_p()
version = ctypes.c_int()
said = {"cudnn": every.cudnnCreate(ctypes.byref(value)),
        "cublas": every.cublasCreate_v2(ctypes.byref(value)),
        "nccl": every.ncclGetVersion(ctypes.byref(version)),
        "cudart": every.cudaGetDeviceCount(ctypes.byref(version))}
names = {line.rstrip().split(maxsplit=5)[-1] for line in open("/proc/self/maps") if ".so" in line}
print(json.dumps({"said": said, "libraries": sorted(names)}))
"""
NOT_INITIALIZED = 1  # of cuDNN and cuBLAS
TOO_OLD_A_DRIVER = 35


architectures = cache(gpu_code)


def load_libraries(code: str = LOAD, /, **environment: str) -> dict[str, Any]:
    printed = output_of(
        [sys.executable, "-c", code], env=environment, cwd="/", timeout=300
    )
    return json.loads(printed.splitlines()[-1])


def check_own(loaded: dict[str, Any], site: Path) -> None:
    libraries = loaded["libraries"]
    assert len(libraries) >= 7
    assert [
        name for name in libraries if not name.startswith(str(site / "nvidia"))
    ] == []


@pytest.fixture
def driver(fake: Path) -> dict[str, str]:
    """All that a machine with a driver has, which the loader finds by itself there."""
    return {"LD_PRELOAD": str(fake / "libcuda.so.1"), "LD_LIBRARY_PATH": str(fake)}


def test_an_empty_environment_is_enough(driver: dict[str, str], site: Path) -> None:
    loaded = load_libraries(**driver)
    check_own(loaded, site)
    assert loaded["gloo"]
    assert loaded["nccl"]


@pytest.fixture(scope="module")
def modules(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster's modules: an empty library of the name of each that set-up installed."""
    folder = tmp_path_factory.mktemp("modules")
    for path in site.glob("nvidia/*/lib/*.so*"):
        command = ["g++", "-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{path.name}"]
        subprocess.run([*command, "-o", folder / path.name], check=True)
    return folder


def test_a_clusters_modules_do_not_come_first(
    driver: dict[str, str], site: Path, modules: Path
) -> None:
    path = f"{modules}:{driver['LD_LIBRARY_PATH']}"
    check_own(load_libraries(**{**driver, "LD_LIBRARY_PATH": path}), site)


@pytest.mark.parametrize("start", [IMPORT, JOIN], ids=["import", "join"])
def test_without_a_fake_the_installed_libraries_answer(
    start: str, site: Path, modules: Path
) -> None:
    """Set-up's stub is in place of a driver."""
    path = f"{modules}:{Path(sys.prefix) / 'cuda-stub'}"
    loaded = load_libraries(start + ASK, PATH=os.environ["PATH"], LD_LIBRARY_PATH=path)
    assert loaded["said"] == {
        "cudnn": NOT_INITIALIZED,
        "cublas": NOT_INITIALIZED,
        "nccl": 0,
        "cudart": TOO_OLD_A_DRIVER,
    }
    libraries = {Path(name) for name in loaded["libraries"]}
    assert [path for path in libraries if path.parent == modules] == []
    parts = {
        path.name for path in libraries if path.parent == site / "nvidia/cudnn/lib"
    }
    assert parts == {path.name for path in site.glob("nvidia/cudnn/lib/*.so*")}


def test_doctor_names_their_files(
    driver: dict[str, str], site: Path, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", driver["LD_PRELOAD"])
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{modules}:{driver['LD_LIBRARY_PATH']}")
    rows = {row.check: row for row in try_library("mxnet", "cpu")}
    for name, file in {
        "cuDNN": "cudnn/lib/libcudnn.so.8",
        "cuBLAS": "cublas/lib/libcublas.so.11",
        "NCCL": "nccl/lib/libnccl.so.2",
    }.items():
        assert rows[name].outcome == OK
        assert str(site / "nvidia" / file) in rows[name].found


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_starts_ranks_that_find_their_libraries(
    launcher: str, driver: dict[str, str], site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {"PATH": "/usr/bin:/bin"})
    job, _ = build_job(load("dgxa100_8", ["system.nodes=2"]).run, launcher, ())
    of_a_rank = dict(job.environment)
    assert of_a_rank["CUDA_MODULE_LOADING"] == "LAZY"
    path = f"{of_a_rank.get('LD_LIBRARY_PATH', '')}:{driver['LD_LIBRARY_PATH']}".strip(
        ":"
    )
    check_own(load_libraries(**{**of_a_rank, **driver, "LD_LIBRARY_PATH": path}), site)


def test_the_wheel_holds_the_machine_code_that_the_program_says(site: Path) -> None:
    machine_code = architectures(site / "mxnet" / "libmxnet.so")
    assert machine_code == WHEEL


@pytest.mark.parametrize(
    "name",
    ["libcudnn_ops*", "libcudnn_cnn*", "libcublas.*", "libcublasLt.*", "libnccl.*"],
)
def test_no_library_is_compiled_for_a_gpu_that_is_offered(
    name: str, site: Path, tmp_path: Path
) -> None:
    """Each has linked machine code. What `__nv_relfatbin` holds has to be linked by the driver: the
    PTX of NCCL for CUDA 11, minutes of each rank's time on 9.0."""
    first, last = PLAN_CAPABILITIES
    capabilities = [
        (5, 0),
        (5, 2),
        (6, 0),
        (6, 1),
        (7, 0),
        (7, 5),
        (8, 0),
        (8, 6),
        (8, 9),
        (9, 0),
    ]
    offered = [capability for capability in capabilities if first <= capability <= last]
    assert offered[0] == first
    assert offered[-1] == last
    libraries = list(site.glob(f"nvidia/*/lib/{name}"))
    assert libraries
    for library in libraries:
        linked = tmp_path / library.name
        command = (
            "objcopy",
            "-O",
            "binary",
            "--only-section=.nv_fatbin",
            library,
            linked,
        )
        subprocess.run(command, check=True)
        native = {"ELF": gpu_code(linked)["ELF"]}
        assert [sm for sm in offered if not runs(native, sm)] == [], library.name
        linked.unlink()


def test_horovod_has_no_kernels_of_its_own(site: Path) -> None:
    """It is built without nvcc (scripts/horovod_kernels.cc)."""
    (library,) = site.glob("horovod/mxnet/mpi_lib*.so")
    assert architectures(library) == {}


def test_horovod_looks_for_the_drivers_library_where_set_up_links_it(
    site: Path,
) -> None:
    """Its dlopen("libcuda.so"): the fake's folder has that name too, so the link is looked at."""
    (library,) = site.glob("horovod/mxnet/mpi_lib*.so")
    printed = output_of(["readelf", "-d", library])
    assert re.search(r"\(RPATH\).*\[\$ORIGIN/\.\./\.\./mxnet\]", printed)
    link = site / "mxnet" / "libcuda.so"
    assert link.is_symlink()
    assert link.readlink().name == "libcuda.so.1"


def test_environment_json_names_gpu_driver_and_libraries(
    fake_environment: Path, tmp_path: Path
) -> None:
    code = (
        "import json; from rn50.config.load import load\n"
        "from rn50.launch.environment_record import describe_environment\n"
        "from rn50.launch.launchers import build_job\n"
        "from rn50.logging.records import to_dict\n"
        "run = load('dgxa100_8', ['system.nodes=1']).run\n"
        "record = describe_environment(build_job(run, 'mpirun', ())[1], 'mpirun', ())\n"
        "print(json.dumps(to_dict(record)))"
    )
    record = output_of(
        [sys.executable, "-c", code],
        env=os.environ | {"FAKECUDA_NAME": "NVIDIA A100-SXM4-80GB"},
        timeout=120,
    )
    for named in (
        "mxnet-cu112",
        "NVIDIA A100-SXM4-80GB",
        "nvidia-cudnn-cu11",
        "nvidia-nccl-cu12",
    ):
        assert named in record
