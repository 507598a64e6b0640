"""environment.json: what a run ran on, from an allow-list; nothing else of the environment."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ..config.reading import read_text
from ..train.gpu import Gpus, dotted, read_gpus
from ..train.mpi_library import horovods_mpi, library_version
from .engine_environment import ENGINE_PREFIXES, Environment

PACKAGES = (
    "horovod",
    "nvidia-dali-cuda120",
    "mlperf-logging",
    "numpy",
    "pydantic",
)
CUDA_PACKAGES = (
    "nvidia-cuda-runtime-cu11",
    "nvidia-cudnn-cu11",
    "nvidia-cublas-cu11",
    "nvidia-nccl-cu11",
)
"""The libraries that MXNet for GPUs calls, of requirements-gpu.txt."""

_SECRET = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|KEY|AUTH", re.IGNORECASE)
_LONGEST = 500
"""Characters of a recorded value."""


def read_engine_variables(present: Mapping[str, str]) -> dict[str, str]:
    """The variables of `present` that the engines read, without any that may hold a secret."""
    return {
        name: value[:_LONGEST]
        for name, value in sorted(present.items())
        if name.startswith(ENGINE_PREFIXES) and not _SECRET.search(name)
    }


def describe_environment(
    environment: Environment, launcher: str, command: Sequence[str]
) -> dict[str, Any]:
    """Versions, host, processor, git state, and the engines' variables."""
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": installed_packages(),
        "gpus": describe_gpus(read_gpus()),
        "mpi": _mpi(),
        "git": _git(),
        "launcher": launcher,
        "command": list(command),
        "variables": environment.settings,
        "variables_kept_from_user": environment.kept,
        "variables_present": read_engine_variables(os.environ),
    }


def installed_packages() -> dict[str, str | None]:
    """Distribution -> version: MXNet's first, whichever is installed, and CUDA's where it is."""
    name = mxnet_distribution()
    cuda = {name: version for name in CUDA_PACKAGES if (version := _version(name))}
    return {name: _version(name), **{name: _version(name) for name in PACKAGES}, **cuda}


def mxnet_distribution() -> str:
    """The name under which pip knows the MXNet that is installed; mxnet where there is none."""
    names = (str(distribution.name) for distribution in metadata.distributions())
    return next((name for name in names if re.fullmatch(r"mxnet(-cu\d+)?", name)), "mxnet")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_gpus(gpus: Gpus | None) -> dict[str, Any] | None:
    """This node's driver and its devices, as text."""
    if gpus is None:
        return None
    return {
        "driver": gpus.driver_release,
        "driver_cuda": dotted(gpus.driver_cuda),
        "devices": [f"{gpu.name} ({dotted(gpu.capability)})" for gpu in gpus.devices],
    }


def processor() -> str:
    """The model's name as the kernel has it."""
    named = re.search(r"^model name\s*: *(.*)", read_text(Path("/proc/cpuinfo")), re.M)
    return named[1].strip() if named else platform.processor()


def _mpi() -> str | None:
    """Name and version of the MPI that Horovod was linked to, from its own library."""
    library = horovods_mpi()
    said = library_version(library.path) if library else ""
    return " ".join(said.partition("\n")[0].split()) or None


def output_of(*command: str) -> str | None:
    """What a command prints; None where there is none of that name, or it fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()


def _git() -> dict[str, Any] | None:
    """Commit of the program's own repository, and whether tracked files differ from it."""
    told = os.environ.get("RN50_COMMIT")  # by a container, which holds no repository
    if told:
        return {"commit": told.removesuffix("-dirty"), "modified": told.endswith("-dirty")}
    git = ("git", "-C", str(Path(__file__).resolve().parent.parent))
    commit = output_of(*git, "rev-parse", "HEAD")
    changes = output_of(*git, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else {"commit": commit, "modified": bool(changes)}
