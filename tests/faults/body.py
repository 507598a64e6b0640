"""A rank to which something happens: `body.py FAULT PHASE VICTIM MARK CONFIG --out OUT ...`.

The rank is the real one; at the chosen moment of the victim the fault is done for real: a signal,
an exception, memory that runs out. MARK gets the time at which it was done, and a line for each
path in memory that nothing of the job may leave.
"""

import ctypes
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from rn50.host.atomic import sync
from rn50.train import __main__ as entry
from rn50.train import checkpointer, run, trainer
from rn50.train.checkpoint import file as checkpoint_file
from rn50.train.heartbeat import SCRATCH_ENV
from rn50.train.process_info import read_process_info

fault, phase, victim, mark, *rest = sys.argv[1:]
MIDDLE = 31
SLOW_STEPS = 4
SLOW_STEP_S = 3.0


def run_folder() -> Path:
    return Path(rest[rest.index("--out") + 1])


def out_of_memory() -> None:
    """The address space ends 64 MB from here; something asks for 256."""
    limit_bytes = psutil.Process().memory_info().vms + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.RLIM_INFINITY))
    bytearray(256 << 20)


def fill_disk(left_bytes: int = 0) -> None:
    """No more than `left_bytes` are left on the file system of the run folder."""
    filler = run_folder().parents[2] / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
        file.truncate(file.tell() - left_bytes)


def remove_folder() -> None:
    """Somebody clears the results away."""
    shutil.rmtree(run_folder())


def raise_error() -> None:
    raise ZeroDivisionError("the disk is on fire")


def load_slowly() -> None:
    """A library whose constructor takes longer than ranks may be silent: Python keeps its lock."""
    library = Path(f"{mark}.so")
    source = "__attribute__((constructor)) void begin(void) { sleep(7); }"
    subprocess.run(
        ["gcc", "-xc", "-", "-w", "-shared", "-fPIC", "-o", library],
        input=source,
        text=True,
        check=True,
    )
    ctypes.CDLL(str(library))


def cut_network() -> None:
    """The link of this emulated host goes down (tests/lab/netlab.sh)."""
    lines = subprocess.check_output(["ip", "-o", "-4", "addr"], text=True)
    (device,) = re.findall(r"^\d+: (\S+) .* 10\.77\.", lines, re.M)
    subprocess.run(["ip", "link", "set", device, "down"], check=True)


FAULTS: dict[str, Callable[[], Any]] = {
    "SIGKILL": partial(os.kill, os.getpid(), signal.SIGKILL),
    "SIGSEGV": partial(ctypes.string_at, 0),
    "SIGSTOP": partial(os.kill, os.getpid(), signal.SIGSTOP),
    "exception": raise_error,
    "no memory": out_of_memory,
    "silent exit": partial(os._exit, 0),
    "data never comes": partial(time.sleep, 3600),
    "data comes late": partial(time.sleep, 12),
    "slow library": load_slowly,
    "slow steps": lambda: None,
    "disk full": fill_disk,
    "disk nearly full": partial(fill_disk, 1 << 20),
    "folder removed": remove_folder,
    "network cut": cut_network,
    "SIGTERM": partial(os.kill, os.getpid(), signal.SIGTERM),
}


DAMAGE: dict[str, tuple[str, Callable[[float], float]]] = {
    "bit flip": ("fc_weight", lambda weight: weight * (1 + 2**-23)),
    "NaN": ("fc_weight", lambda _: math.nan),
    "NaN again": ("fc_weight", lambda _: math.nan),
    "far statistics": ("running_mean", lambda mean: mean + 100),
}


def in_memory() -> Iterator[str]:
    """The engines' folder on one machine, and what this rank and the processes of the job above it
    have mapped from /dev/shm."""
    # emulated hosts, which share no memory
    if fault != "network cut":
        yield os.environ[SCRATCH_ENV]
    rank = psutil.Process()
    for process in (rank, *rank.parents()):
        if mark in " ".join(process.cmdline()):
            for mapped in process.memory_maps():
                if mapped.path.startswith("/dev/shm/"):
                    yield mapped.path


def strike(model: Any = None) -> None:
    """Do it, once, on the victim, or in each attempt; what DAMAGE has is done to one number."""
    repeats = fault == "NaN again"
    if read_process_info().rank != int(victim) or (Path(mark).exists() and not repeats):
        return
    lines = [repr(time.time()), *{*in_memory()}]
    Path(mark).write_text("\n".join(lines))
    if fault in DAMAGE:
        suffix, damage = DAMAGE[fault]
        parameters = model.net.collect_params().items()
        array = next(p.data() for name, p in parameters if name.endswith(suffix))
        numbers = array.reshape(-1)  # a view
        numbers[0] = damage(numbers[0].asscalar())
    else:
        FAULTS[fault]()


def before_building(*arguments: Any) -> Any:
    """Strike in start-up, before the network is there."""
    strike()
    return build_model(*arguments)


def during_checkpoints() -> None:
    """Half of a checkpoint is on the disk, or it is about to be collected."""
    collect = checkpointer.collect

    def syncing(path: Path) -> None:
        strike()
        sync(path)

    def collecting(*arguments: Any, **options: Any) -> Any:
        strike()
        return collect(*arguments, **options)

    if victim == "0" and not fault.startswith("disk"):
        vars(checkpoint_file)["sync"] = syncing
    else:
        checkpointer.collect = collecting


def before_batch(trainer_: Any, name: str, batch_number: int) -> Any:
    """The trainer with a fault before one batch, counted from 1."""
    following = getattr(trainer_, name)
    numbers = count(1)

    def next_batch() -> Any:
        number = next(numbers)
        if number == batch_number:
            strike(trainer_.model)
        if fault == "slow steps" and batch_number <= number < batch_number + SLOW_STEPS:
            time.sleep(SLOW_STEP_S)
        return following()

    return replace(trainer_, **{name: next_batch})


def fated_start_up(*arguments: Any) -> Any:
    """Start-up of a rank to which something happens later."""
    started = start_up(*arguments)
    if phase == "checkpoint":
        during_checkpoints()
    if phase in MOMENTS:
        started = before_batch(started, *MOMENTS[phase])
    return started


MOMENTS = {
    "first step": ("next_batch", 1),
    "mid-epoch": ("next_batch", MIDDLE),
    "evaluation": ("next_eval_batch", 1),
}
build_model = trainer.build_model
start_up = trainer.start_up

if __name__ == "__main__":
    # `vars`, because the modules do not export what they import and mypy accepts no other function.
    if phase == "start-up":
        vars(trainer)["build_model"] = before_building
    vars(run)["start_up"] = fated_start_up
    entry.main(rest)
