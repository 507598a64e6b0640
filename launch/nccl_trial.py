"""A sum over GPUs by NCCL: `python -m rn50.launch.nccl_trial start NODES GPUS` prints rows of
doctor.

It starts processes as a run's ranks are started, in the environment of a run; without Horovod in
between a failure is told in NCCL's words. They are `... nccl_trial join IDENTITY NAME`."""

from __future__ import annotations

import ctypes
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from ..config.machine import System
from ..config.schema import Run
from ..host.programs import Answer, NoAnswer, ask
from ..host.progress import say
from ..train.cuda.driver import check_machine
from ..train.mxnet_import import load_cuda
from ..train.mxnet_package import library
from ..train.process_info import read_process_info
from .launchers import LAUNCHERS, build_job, pick_launcher

MODULE = "rn50.launch.nccl_trial"
PATIENCE_S = 90
ELEMENTS = 25_557_032
"""The gradients of ResNet-50, in float16."""
SUMS = 10
_HALF = 6  # ncclDataType_t
_SUM = 0  # ncclRedOp_t
_TO_DEVICE = 1  # cudaMemcpyKind
_TO_HOST = 2
_REASON = re.compile(r"NCCL WARN (.*)|^[\w.]*Error: (.*)", re.M)


class _Identity(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", ctypes.c_byte * 128),)


def _call(name: str, *arguments: Any) -> None:
    """A function of CUDA or NCCL."""
    if status := ctypes.CDLL(None)[name](*arguments):
        raise OSError(f"{name}: success expected, found status {status}")


def start(nodes: int, gpus: int) -> None:
    """Start a process a GPU; print the rows of the first, or why there are none. NCCL has them meet
    here, so this process lives as long as they do."""
    name = f"NCCL over {gpus} GPUs"
    if nodes > 1:
        name += f" of each of {nodes} nodes"
    run = Run(system=System(device="gpu", nodes=nodes, ranks_per_node=gpus))
    launcher = pick_launcher(None)
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    job, _ = build_job(run, launcher, ())
    os.environ.update(job.environment)
    identity = _Identity()
    _call("ncclGetUniqueId", ctypes.byref(identity))
    rank_command = (sys.executable, "-m", MODULE, "join", bytes(identity).hex(), name)
    command = LAUNCHERS[launcher].command(job._replace(command=rank_command))
    for row in _rows(name, command, job.launchers_environment):
        say(row)


def _rows(
    name: str, command: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """What the processes print, or why they fail."""
    try:
        done = ask(command, PATIENCE_S, environment)
        failure = done.ended if done.code else ""
    except NoAnswer as error:
        done = Answer(command[0], 1, error.printed, "")
        failure = str(error)
    if not failure:
        return re.findall(r'\["[^\n]*"\]', done.out)
    reason = _REASON.search(f"{done.out}\n{done.err}")
    said = done.said((reason[1] or reason[2]) if reason else "")
    problem = f"{failure}: {said}; NCCL_DEBUG=INFO rn50 doctor has more"
    return [json.dumps((name, "failed", problem))]


def join(identity: str, name: str) -> None:
    """One of the processes: each checks the sum, the first prints."""
    process = read_process_info()
    ranks = process.world_size
    number, _ = check_machine(process.local_rank)
    _call("cudaSetDevice", number)
    pattern = np.arange(ELEMENTS)
    # 1 on every second rank: float16 holds the sums exactly for 2,048 of them
    values = ((pattern + process.rank) % 2).astype(np.float16)
    host = ctypes.c_void_p(values.ctypes.data)
    size = ctypes.c_size_t(values.nbytes)
    send, total, comm = (ctypes.c_void_p() for _ in range(3))
    for pointer in (send, total):
        _call("cudaMalloc", ctypes.byref(pointer), size)
    _call("cudaMemcpy", send, host, size, _TO_DEVICE)
    shared = _Identity.from_buffer_copy(bytes.fromhex(identity))
    _call("ncclCommInitRank", ctypes.byref(comm), ranks, shared, process.rank)
    count = ctypes.c_size_t(ELEMENTS)
    times_s = []
    for _ in range(SUMS):
        begun_s = time.perf_counter()
        _call("ncclAllReduce", send, total, count, _HALF, _SUM, comm, None)
        _call("cudaStreamSynchronize", None)
        times_s.append(time.perf_counter() - begun_s)
    _call("cudaMemcpy", host, total, size, _TO_HOST)
    if not np.array_equal(values, (ranks + pattern % 2) // 2):
        raise ValueError(f"rank {process.rank} on {process.host}: wrong sums")
    if process.rank == 0:
        time_s = statistics.median(times_s)
        on_the_bus = 2 * (ranks - 1) / ranks * values.nbytes / time_s
        rate = f"{1e3 * time_s:.2f} ms, {on_the_bus / 1e9:.1f} GB/s on the bus"
        say(json.dumps((name, "ok", f"51 MB in {rate}, sums right")))
        say(json.dumps(("peer access", "ok", peer_access())))


def peer_access() -> str:
    """Say how many pairs can read each other's memory, of the GPUs that this process sees."""
    count = ctypes.c_int()
    able = ctypes.c_int()
    _call("cudaGetDeviceCount", ctypes.byref(count))
    pairs = list(permutations(range(count.value), 2))
    direct = 0
    for pair in pairs:
        _call("cudaDeviceCanAccessPeer", ctypes.byref(able), *pair)
        direct += able.value
    rest = "" if direct == len(pairs) else "; the others by the host's memory"
    return f"{direct} of {len(pairs)} pairs of GPUs{rest}"


if __name__ == "__main__":
    if mxnet := library():
        load_cuda(mxnet.parent)
        ctypes.CDLL(str(mxnet), ctypes.RTLD_GLOBAL)
    match sys.argv[1:]:
        case ["start", nodes, gpus]:
            start(int(nodes), int(gpus))
        case ["join", identity, name]:
            join(identity, name)
