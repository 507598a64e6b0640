"""What stands in the way of a run, told before anything is started: one list for all commands.

`refusals` hold on any machine: `config check`, `submit` and `launch` refuse alike. `obstacles_here`
hold on this one, where ranks are to run here: `launch` refuses, `config check` notes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from ..compliance.config_rules import ConfigCheck
from ..config.errors import UserError
from ..config.finding import ERROR, NOTE, SEVERITIES, Finding
from ..config.memory import device_bytes, largest_batch, rank_bytes
from ..config.plan import build_plan
from ..config.reading import read_text
from ..config.schema import Run
from ..train.capabilities import check_supported, decodes_on_gpu
from ..train.gpu import Gpus, check_machine, read_gpus
from ..train.gpu_code import choose_kernels
from .ending import CANNOT_RUN_HERE
from .engine_environment import Controller, backend_of, engine_environment
from .environment_record import mxnet_distribution
from .launchers import LAUNCHERS, family_here
from .verdict import target_note

CANNOT_RUN = ("MLP061", "cannot-run")
"""Id of what `config check` finds of any machine."""


class Here(NamedTuple):
    """What of this machine a run needs."""

    free_bytes: int | None
    """Memory for new processes, of `free_memory_bytes`; None: unknown."""
    mxnet: str
    """The distribution that is installed: mxnet, or mxnet-cu112 for GPUs."""

    @classmethod
    def read(cls) -> Here:
        """This machine as it is now."""
        return cls(free_memory_bytes(), mxnet_distribution())


def free_memory_bytes(root: Path = Path("/")) -> int | None:
    """What the kernel has for new processes without its page cache, or less where the limit of this
    process's memory cgroup (version 2) or of one above leaves less; None: not known. `root`: where
    `proc` and `sys` lie."""
    available = re.search(r"^MemAvailable:\s*(\d+) kB", read_text(root / "proc/meminfo"), re.M)
    if available is None:
        return None
    found = [int(available[1]) * 1024]
    path = re.search(r"^0::/*(.*)$", read_text(root / "proc/self/cgroup"), re.M)
    folder = root / "sys/fs/cgroup" / (path[1] if path else "")
    for group in (folder, *folder.parents):  # in a container it may be the host's path: not there
        limit, used = (read_text(group / f"memory.{name}") for name in ("max", "current"))
        if limit.isdigit() and used.isdigit():
            cache = re.search(r"^inactive_file (\d+)$", read_text(group / "memory.stat"), re.M)
            found.append(max(0, int(limit) - int(used) + (int(cache[1]) if cache else 0)))
    return min(found)


def refuse(problems: Sequence[str]) -> None:
    """Raise UserError with all of them, if there are any."""
    if problems:
        raise UserError(*problems)


def refuse_common_seed(run: Run, runs: int) -> None:
    """Raises UserError where several runs would have one seed."""
    if runs > 1 and run.seed is not None:
        expected = f"none for {runs} runs (each draws its own)"
        raise UserError(f"seed: {expected} expected, found {run.seed}")


def runs_here(run: Run, launcher: str) -> bool:
    """Whether it is certain that ranks start on this machine: on one node, and not by srun."""
    return run.system.nodes == 1 and not LAUNCHERS[launcher].may_start_elsewhere


def problems_with(run: Run, launcher: str, here: Here | None = None) -> list[str]:
    """Why `launcher` cannot run `run`, on any machine or on this one; empty: it can. `here`: this
    machine; default: as it is now."""
    found = refusals(run, (LAUNCHERS[launcher].controller,))
    return found + (obstacles_here(run, here or Here.read()) if runs_here(run, launcher) else [])


def refusals(run: Run, controllers: Sequence[Controller] = ("mpi", "gloo")) -> list[str]:
    """Why `run` cannot run on any machine of its kind, one line each; empty: it can. `controllers`:
    of the launchers that may start it; one that can is enough."""
    found = _refused(partial(build_plan, run)) + _refused(partial(check_supported, run))
    engines = [_refused(partial(_check_engines, run, one)) for one in controllers]
    if all(engines):
        found += engines[0]
    return found + _beyond_the_device(run)


def _check_engines(run: Run, controller: Controller) -> None:
    engine_environment(run, backend_of(run, controller), {}, controller, family_here())


def obstacles_here(run: Run, here: Here) -> list[str]:
    """Why the ranks of one node of `run` cannot run on this machine, one line each."""
    ranks = run.system.ranks_per_node
    if run.system.device == "gpu":
        found = _refused(partial(_check_gpu, run, ranks - 1))
        if not found and here.mxnet == "mxnet":
            found = [
                "system.device: MXNet for GPUs (scripts/setup.sh --gpu) for gpu expected, found "
                f"mxnet {metadata.version('mxnet')}, which has none"
            ]
        return found
    of_a_rank = rank_bytes(run)
    if here.free_bytes is None or of_a_rank is None or ranks * of_a_rank <= here.free_bytes:
        return []
    return [
        f"batch.per_rank: at most what {_gb(here.free_bytes)} of free memory hold expected, found "
        f"{largest_batch(run)}: {ranks} ranks of it need {_gb(ranks * of_a_rank)} or more; take "
        "fewer ranks or a smaller batch"
    ]


def _check_gpu(run: Run, local_rank: int) -> None:
    gpu = check_machine(local_rank, decodes=decodes_on_gpu(run))
    choose_kernels(run.model, gpu.name, gpu.capability)


def idle_gpus_note(run: Run, gpus: Gpus | None) -> str:
    """That this machine's GPUs are not used by a run on CPU ranks; empty where there are none."""
    if run.system.device == "gpu" or gpus is None or not gpus.devices:
        return ""
    first = gpus.devices[0]
    why = _refused(partial(choose_kernels, run.model, first.name, first.capability))
    return f"this run is on the CPU, GPUs here stay idle ({len(gpus.devices)} x {first.name}): " + (
        why[0] if why else "system.device=gpu, or a GPU machine's recipe, would use them"
    )


def notes_on(run: Run) -> list[str]:
    """What is to be known before a run, one line each."""
    notes = (target_note(run), idle_gpus_note(run, read_gpus()))
    return [note for note in notes if note]


def _finding(rule: tuple[str, str], severity: str, message: str) -> Finding:
    code, name = rule
    return Finding(code, severity, None, "", "", message, name=name)


def check_whether_it_runs(
    check: ConfigCheck, run: Run, here: Here | None = None, missing: Sequence[str] = ()
) -> ConfigCheck:
    """A config's check with what stands in its way: errors; notes, where it is this machine alone.
    `here`: this machine; default: as it is now. `missing`: what is wrong with the image set here,
    one line each."""
    never = refusals(run)
    found = [_finding(CANNOT_RUN, ERROR, text) for text in never]
    for line in missing:
        found.append(_finding(CANNOT_RUN_HERE, NOTE, f"not on this machine: {line}"))
    if run.system.nodes == 1:
        obstacles = obstacles_here(run, here or Here.read())
        for one in obstacles:  # what to do instead is for who launches it here
            text = f"not on this machine: {one.partition('; ')[0]}"
            found.append(_finding(CANNOT_RUN_HERE, NOTE, text))
    findings = sorted((*found, *check.findings), key=lambda one: SEVERITIES.index(one.severity))
    check = check._replace(findings=tuple(findings))
    return check._replace(verdict="FAIL", cause=never[0]) if never else check


def _beyond_the_device(run: Run) -> list[str]:
    """A batch larger than the memory that the accelerator's name gives."""
    limit, needed = device_bytes(run.system), rank_bytes(run)
    if run.system.device != "gpu" or limit is None or needed is None or needed <= limit:
        return []
    return [
        f"batch.per_rank: at most what {_gb(limit)} hold expected (system.accelerator: "
        f"{run.system.accelerator}), found {largest_batch(run)}: {_gb(needed)} or more"
    ]


def _refused(check: Callable[[], object]) -> list[str]:
    try:
        check()
    except UserError as error:
        return str(error).splitlines()
    return []


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"
