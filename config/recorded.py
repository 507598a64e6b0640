"""A config that a run or a job recorded in its folder, which may be another user's.

Such a config describes the training. What could run code here or write elsewhere takes effect only
if the command line says it too: paths that lead out of the run's folder and the working folder, and
of `system.job` all but the names below.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..host.errors import UserError, show
from .leaves import Leaf, Leaves, Origin
from .load import Loaded, load, merge
from .names import recorded_in
from .schema import PLACES
from .yaml_file import parse_overrides, read_layers, short

_ENVIRONMENT = "system.job.environment"
DATA = ("data.path",)
RESUME = ("data.path", _ENVIRONMENT)
RESUME_JOB = ("data.path", "system.job.")
RUN = (*RESUME, "system.results")
JOB = (*RESUME_JOB, "system.results")
"""The keys that affect the machine: of commands for an image set, of a run or a job that is resumed
and of a new one. Job scripts alone read more of `system.job` than the environment."""

# Variables and keys whose values are numbers and words: no file, no command, nothing for a shell.
_PLAIN = re.compile(r"[\w.,:=+^-]*", re.ASCII)
_PATH = re.compile(r"[\w.-]*/[\w./-]*", re.ASCII)
_KEYS = (
    "account",
    "queue",
    "resource",
    "walltime",
    "requeue",
    "max_restarts",
    "min_nodes",
    "bind",
)
_SETTINGS = frozenset(
    re.findall(
        r"\w+",
        """
        NCCL_ALGO NCCL_PROTO NCCL_BUFFSIZE NCCL_NTHREADS NCCL_LL_THRESHOLD NCCL_TREE_THRESHOLD
        NCCL_MIN_NRINGS NCCL_MAX_NRINGS NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_NET_GDR_READ
        NCCL_NET_GDR_LEVEL NCCL_P2P_LEVEL NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_IB_DISABLE
        NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_TIMEOUT NCCL_SOCKET_IFNAME NCCL_CROSS_NIC NCCL_DEBUG
        HOROVOD_FUSION_THRESHOLD HOROVOD_CYCLE_TIME HOROVOD_CACHE_CAPACITY HOROVOD_CPU_OPERATIONS
        HOROVOD_HIERARCHICAL_ALLREDUCE HOROVOD_TORUS_ALLREDUCE HOROVOD_NUM_NCCL_STREAMS
        MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD
        MXNET_CUDNN_AUTOTUNE_DEFAULT MXNET_ENFORCE_DETERMINISM MXNET_CPU_WORKER_NTHREADS
        OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES KMP_BLOCKTIME KMP_AFFINITY CUDA_MODULE_LOADING
        CUDA_DEVICE_MAX_CONNECTIONS UCX_TLS UCX_NET_DEVICES OMPI_MCA_mpi_yield_when_idle
        OMPI_MCA_btl_tcp_flags OMPI_MCA_btl_tcp_sndbuf OMPI_MCA_btl_tcp_rcvbuf
        OMPI_MCA_btl_tcp_if_include OMPI_MCA_btl_tcp_if_exclude I_MPI_ADJUST_ALLREDUCE
        OMPI_MCA_coll_tuned_use_dynamic_rules OMPI_MCA_coll_tuned_allreduce_algorithm
        MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM
        """,
    )
)


def load_recorded(
    source: Path, overrides: Sequence[str] = (), keys: tuple[str, ...] = RUN
) -> Loaded:
    """The config `source` in the folder of a run or a job, with overrides, which may set anything.
    Raises UserError: as of `load`; the file is a link or has a file as a base; or it sets some of
    `keys` in a way that only the command line may."""
    layers = read_layers(source, within=source.parent)
    leaves = merge([*layers, *parse_overrides(overrides)])
    problems = [
        f"{problem}; if it is yours, add {shlex.quote(word)}"
        for problem, word in _refused(leaves, source, keys)
    ]
    if problems:
        raise UserError(*problems)
    return load(source, overrides)


def load_named(
    config: str, overrides: Sequence[str], keys: tuple[str, ...] = RUN
) -> Loaded:
    """The config that a command line names, read by `load_recorded` if it is a recorded one. A new
    run of a sweep's trial goes beside the sweep, not into it."""
    if recorded_in(Path(config)) is None:
        return load(config, overrides)
    loaded = load_recorded(Path(config), overrides, keys)
    results = Path(loaded.run.system.results)
    name = loaded.run.name
    is_trial = results.name == "trials" and re.fullmatch(r"trial_\d+", name) is not None
    if not is_trial or any(text.startswith("system.results=") for text in overrides):
        return loaded
    beside = [f"system.results={json.dumps(str(results.parent.parent))}"]
    if not any(text.startswith("name=") for text in overrides):
        beside.append(f"name={results.parent.name}_{name}")
    return load_recorded(Path(config), [*overrides, *beside], keys)


def words_to_repeat(
    folder: Path, keys: tuple[str, ...], loaded: Loaded | None = None
) -> list[str]:
    """The overrides without which `load_recorded` refuses the user's own config in `folder`.
    `loaded`: what it was, as the folder may be elsewhere by now."""
    source = folder / "config.yaml"
    leaves: Leaves = {}
    if loaded is not None:
        origin = Origin(short(source))
        leaves = {key: Leaf(value, origin) for key, value, _ in loaded.leaves()}
    with suppress(UserError):  # such as: there is no config
        leaves = merge(read_layers(source, within=folder))
    return [word for _, word in _refused(leaves, source, keys)]


def _refused(
    leaves: Leaves, source: Path, keys: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """(what is wrong, the override that allows it) for the leaves that `source` itself sets.
    Values of another type than the schema's are left to the schema."""
    name = short(source)
    for key, (value, origin) in leaves.items():
        if origin.source != name or not key.startswith(keys) or not value:
            continue
        wrong = "may run code"
        if key in PLACES:
            if not isinstance(value, str) or not leads_out(value, source.parent):
                continue
            if key == "system.results" and _holds_run(value, source.parent):
                continue
            wrong = f"{_written(value)} lies outside the run's folder and the working folder"
        elif key == _ENVIRONMENT and isinstance(value, list):
            settings = [
                setting for setting in map(str, value) if not _is_plain(setting)
            ]
            if not settings:
                continue
            names = (setting.partition("=")[0] for setting in settings)
            wrong = f"{show(', '.join(names))} may run code ({key}=[] leaves it out)"
        elif key.rpartition(".")[2] in _KEYS and _PLAIN.fullmatch(str(value)):
            continue
        yield f"{origin}: {key}: {wrong}", f"{key}={_written(value)}"


def _is_plain(setting: str) -> bool:
    name, _, value = setting.partition("=")
    return name in _SETTINGS and _PLAIN.fullmatch(value) is not None


def leads_out(path: str, folder: Path) -> bool:
    """Does a path lie outside the folder of its run or job and the working folder, with the links
    in the latter (of a container's image: datasets, results)?"""
    if "\0" in path:
        return False
    there = Path(os.path.realpath(path))
    home = Path.cwd()
    places = [folder, home]
    if home != folder.resolve():
        places += [path for path in home.iterdir() if path.is_symlink()]
    return not any(map(there.is_relative_to, map(os.path.realpath, places)))


def _holds_run(results: str, folder: Path) -> bool:
    """Do these results hold the folder of a run or a job, as results/NAME/TIME, or in that as
    run_N? A scratch disk that holds a run may hold the next."""
    folder = folder.resolve()
    if re.fullmatch(r"run_\d+", folder.name):
        folder = folder.parent
    return os.path.realpath(results) == str(folder.parent.parent)


def _written(value: Any) -> str:
    """A value as an override has it."""
    if isinstance(value, str) and _PATH.fullmatch(value):
        return value
    return json.dumps(value)
