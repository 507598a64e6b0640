"""Which libraries are loaded, with no variable set, and which GPUs their code is for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.config.names import list_presets
from rn50.launch.launchers import LAUNCHERS, build_job
from rn50.train.capabilities import check_accelerator
from rn50.train.gpu.code import WHEEL, gpu_code

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


architectures = cache(gpu_code)


def load_libraries(**environment: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_own(found: dict[str, object], site: Path) -> None:
    libraries = found["libraries"]
    assert isinstance(libraries, list) and len(libraries) >= 7
    assert [name for name in libraries if not name.startswith(str(site / "nvidia"))] == []


@pytest.fixture
def driver(fake: Path) -> dict[str, str]:
    """All that a machine with a driver has, which the loader finds by itself there."""
    return {"LD_PRELOAD": str(fake / "libcuda.so.1"), "LD_LIBRARY_PATH": str(fake)}


def test_an_empty_environment_is_enough(driver: dict[str, str], site: Path) -> None:
    found = load_libraries(**driver)
    check_own(found, site)
    linked_to = Path(sys.prefix) / "nccl" / "libnccl.so"  # set-up's, where it found nvcc
    assert found["gloo"] and found["nccl"] is linked_to.exists()


def test_a_clusters_old_modules_do_not_come_first(
    driver: dict[str, str], site: Path, tmp_path: Path
) -> None:
    for name in ("libcudnn.so.8", "libcudart.so.11.0", "libnccl.so.2", "libcublas.so.11"):
        command = ["g++", "-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{name}", "-o", name]
        subprocess.run(command, cwd=tmp_path, check=True)
    path = f"{tmp_path}:{driver['LD_LIBRARY_PATH']}"
    check_own(load_libraries(**{**driver, "LD_LIBRARY_PATH": path}), site)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_starts_ranks_that_find_their_libraries(
    launcher: str, driver: dict[str, str], site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {"PATH": "/usr/bin:/bin"})
    job, _ = build_job(load("dgxa100_8", ["system.nodes=2"]).run, launcher, ())
    of_a_rank = dict(job.environment)
    assert of_a_rank["CUDA_MODULE_LOADING"] == "LAZY"
    path = f"{of_a_rank.get('LD_LIBRARY_PATH', '')}:{driver['LD_LIBRARY_PATH']}".strip(":")
    check_own(load_libraries(**{**of_a_rank, **driver, "LD_LIBRARY_PATH": path}), site)


def test_the_wheel_holds_the_machine_code_that_the_program_says(site: Path) -> None:
    found = architectures(site / "mxnet" / "libmxnet.so")
    assert found == WHEEL


@pytest.mark.parametrize("name", list_presets())
def test_every_presets_accelerator_runs_it(name: str) -> None:
    check_accelerator(load(name).run)


def test_horovods_kernels_are_for_the_same_gpus(site: Path) -> None:
    libraries = list(site.glob("horovod/mxnet/mpi_lib*.so"))
    found = architectures(libraries[0])
    if not found:
        pytest.skip("Horovod was built without GPU operations")
    assert found["ELF"] >= {*WHEEL["ELF"], 90}


def test_horovod_looks_for_the_drivers_library_where_set_up_links_it(site: Path) -> None:
    """Its dlopen("libcuda.so"): the fake's folder has that name too, so the link is looked at."""
    (library,) = site.glob("horovod/mxnet/mpi_lib*.so")
    done = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    if "libnccl" in done.stdout:
        assert re.search(r"\(RPATH\).*\[\$ORIGIN/\.\./\.\./mxnet\]", done.stdout)
    link = site / "mxnet" / "libcuda.so"
    assert link.is_symlink() and link.readlink().name == "libcuda.so.1"


def test_environment_json_names_gpu_driver_and_libraries(
    fake_environment: Path, tmp_path: Path
) -> None:
    code = (
        "import json; from rn50.config.load import load\n"
        "from rn50.launch.environment_record import describe_environment\n"
        "from rn50.launch.launchers import build_job\n"
        "run = load('dgxa100_8', ['system.nodes=1']).run\n"
        "print(json.dumps(describe_environment(build_job(run, 'mpirun', ())[1], 'mpirun', ())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"FAKECUDA_NAME": "NVIDIA A100-SXM4-80GB"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout
    for named in ("mxnet-cu112", "NVIDIA A100-SXM4-80GB", "nvidia-cudnn-cu11", "nvidia-nccl-cu11"):
        assert named in text
