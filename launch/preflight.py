"""What stands in the way of a run, told before anything is started: one list for all commands.

`refusals` hold on any machine: `config check`, `submit` and `launch` refuse alike. `obstacles_here`
hold on this one, where ranks are to run here: `launch` refuses, `config check` notes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import NamedTuple

from ..compliance.config_rules import ConfigCheck
from ..config.errors import UserError
from ..config.finding import ERROR, NOTE, SEVERITIES, Finding
from ..config.memory import device_bytes, largest_batch, rank_bytes
from ..config.plan import build_plan
from ..config.schema import Run
from ..scaling.grouping import choose_groups
from ..train.capabilities import check_supported, decodes_on_gpu
from ..train.gpu import Gpus, check_capability, check_machine, dotted, read_gpus
from .ending import CANNOT_RUN_HERE
from .engine_environment import Controller, backend_of, engine_environment
from .environment_record import mxnet_distribution
from .free_memory import free_memory_bytes
from .launchers import LAUNCHERS, family_here
from .verdict import target_note

CANNOT_RUN = ("MLP061", "cannot-run")
"""Id of what `config check` finds of any machine."""


class Here(NamedTuple):
    """What of this machine a run needs; None: unknown."""

    free_bytes: int | None
    mxnet: str
    """The distribution that is installed: mxnet, or mxnet-cu112 for GPUs."""

    @classmethod
    def read(cls) -> Here:
        """This machine as it is now."""
        return cls(free_memory_bytes(), mxnet_distribution())


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


def launcher_note(run: Run) -> str:
    """Which launchers cannot start `run`, where others can; else empty."""
    why = {}
    for name, one in LAUNCHERS.items():
        if refused := refusals(run, (one.controller,)):
            why[name] = refused[0]
    if not why or len(why) == len(LAUNCHERS) or refusals(run):
        return ""
    *others, last = (name for name in LAUNCHERS if name not in why)
    others_or_last = f"{', '.join(others)} or {last}" if others else last
    return f"only with --launcher {others_or_last}: {next(iter(why.values()))}"


def obstacles_here(run: Run, here: Here) -> list[str]:
    """Why the ranks of one node of `run` cannot run on this machine, one line each."""
    ranks = run.system.ranks_per_node
    if run.system.device == "gpu":
        found = _refused(partial(check_machine, ranks - 1, decodes=decodes_on_gpu(run)))
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


def idle_gpus_note(run: Run, gpus: Gpus | None) -> str:
    """That this machine's GPUs are not used by a run on CPU ranks; empty where there are none."""
    if run.system.device == "gpu" or gpus is None or not gpus.devices:
        return ""
    first, count = gpus.devices[0], len(gpus.devices)
    what = f"{count} GPUs here ({first.name}) stay idle"
    if count == 1:
        what = f"1 GPU here ({first.name}) stays idle"
    if _refused(partial(check_capability, first.name, first.capability)):
        return (
            f"this run is on the CPU, {what}: compute capability "
            f"{dotted(first.capability)} is none that MXNet 1.9.1 runs on"
        )
    return (
        f"this run is on the CPU, {what}; system.device=gpu, or the recipe of a GPU "
        "machine (`rn50 config list`), would use it"
    )


def notes_on(run: Run) -> list[str]:
    """What is to be known before a run, one line each."""
    notes = (target_note(run), idle_gpus_note(run, read_gpus()), choose_groups(run).note)
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
    if note := launcher_note(run):
        found.append(_finding(CANNOT_RUN, NOTE, note))
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
