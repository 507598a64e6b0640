"""environment.json: what a run ran on, from an allow-list; nothing else of the environment."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from ..host.inherited import ENGINE_PREFIXES
from ..host.programs import NoAnswer, ask
from ..logging.records import Commit, Driver, Environment
from ..train.communication.mpi_library import horovods_mpi, library_version
from ..train.cuda.driver import dotted, read_gpus
from ..train.mxnet_package import distribution
from .engine_environment import EngineSettings
from .system_description import processor, read_machine

PACKAGES = re.compile(
    r"mxnet(-cu\d+)?|horovod|nvidia-dali-cuda120|mlperf-logging|numpy|pydantic"
    r"|nvidia-(cuda-runtime|cudnn|cublas|nccl)-cu1[12]"
)
"""The libraries of a run; those that MXNet for GPUs calls are of requirements-gpu.txt."""

_SECRET = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|KEY|AUTH", re.IGNORECASE)


def describe_environment(
    settings: EngineSettings, launcher: str, command: Sequence[str]
) -> Environment:
    """Versions, host, processor, git state, and the engines' variables."""
    mpi = ""
    if library := horovods_mpi():
        mpi = library_version(library.path)
    return Environment(
        host=platform.node(),
        processor=processor(),
        machine=read_machine(),
        python=platform.python_version(),
        packages=installed_packages(),
        gpus=_driver(),
        mpi=" ".join(mpi.partition("\n")[0].split()) or None,
        git=_git(),
        launcher=launcher,
        allreduce=str(settings.plan or ""),
        command=tuple(command),
        variables=settings.settings,
        variables_kept_from_user=settings.user_set,
        variables_not_passed_on=dict(settings.removed),
        variables_present={
            name: value[:500]
            for name, value in sorted(os.environ.items())
            if name.startswith(ENGINE_PREFIXES) and not _SECRET.search(name)
        },
    )


def _driver() -> Driver | None:
    gpus = read_gpus()
    if not gpus:
        return None
    devices = tuple(f"{gpu.name} ({dotted(gpu.capability)})" for gpu in gpus.devices)
    return Driver(gpus.driver_release, dotted(gpus.driver_cuda), devices)


def installed_packages() -> dict[str, str]:
    """Distribution -> version of those that are installed, MXNet's first."""
    versions = {}
    for package in metadata.distributions():
        versions[str(package.name)] = package.version
    mxnet, version = distribution()
    packages = {mxnet: version}
    for name in sorted(filter(PACKAGES.fullmatch, versions)):
        packages[name] = versions[name]
    return packages


def output_of(*command: str) -> str | None:
    """What a command prints; None where it fails or does not answer."""
    try:
        answer = ask(command)
    except NoAnswer:
        return None
    if answer.code:
        return None
    return answer.out.strip()


def _git() -> Commit | None:
    """The commit of the program's own repository; a container, which holds none, names it."""
    named = os.environ.get("RN50_COMMIT")
    if named:
        return Commit(named.removesuffix("-dirty"), named.endswith("-dirty"))
    git = ("git", "-C", str(Path(__file__).resolve().parent.parent))
    commit = output_of(*git, "rev-parse", "HEAD")
    changes = output_of(*git, "status", "--porcelain", "--untracked-files=no")
    if commit is None:
        return None
    return Commit(commit, bool(changes))
