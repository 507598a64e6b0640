"""What stands in the way of a run, told before anything is started: one list for all commands.

`refusals` hold on any machine: `config check`, `submit` and `launch` refuse alike. `obstacles` hold
where ranks are started from here: `launch` refuses.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from ..compliance.config_rules import ConfigCheck
from ..config import benchmark
from ..config.engines import Controller
from ..config.plan import build_plan
from ..config.schema import Run
from ..host.errors import UserError
from ..host.finding import ERROR, Finding
from ..predict.gpu import beyond_memory
from ..train.capabilities import check_supported
from ..train.cuda.code import gpu_code, require_gpu
from ..train.mxnet_package import distribution, library
from .engine_environment import engine_environment
from .host_limits import check_open_files, read_limits
from .hosts import missing_hosts
from .launchers import LAUNCHERS, family_here, mpi_for

CANNOT_RUN = ("MLP061", "cannot-run")
"""Id of what `config check` finds of any machine."""


def refuse(problems: Sequence[str]) -> None:
    """Raise UserError with all of them, if there are any."""
    if problems:
        raise UserError(*problems)


def refuse_runs(run: Run, runs: int) -> None:
    """Raises UserError where several runs would have one seed, or a submission's no submitter."""
    if runs > 1 and run.seed is not None:
        raise UserError(
            f"seed: none for {runs} runs (each draws its own) expected, found {run.seed}"
        )
    if runs == benchmark.RUNS and "org" not in run.log.model_fields_set:
        raise UserError(
            f"log.org: the name of the submitter of {runs} runs expected, found none: a log cannot "
            "be changed afterwards. Use log.org=rn50 if they will not be submitted"
        )


def obstacles(run: Run, launcher: str, *, in_container: bool) -> list[str]:
    """Why `launcher` cannot start the ranks of `run` from here, one line each. `in_container`: with
    other libraries than those here."""
    lines: list[str] = []
    if not in_container:
        if LAUNCHERS[launcher].controller == "gloo":
            lines += _own_name_unknown()
        mpi = mpi_for(launcher)
        if mpi and mpi.first and mpi.right is None:
            lines.append(f"--launcher {launcher}: {mpi}")
        if run.system.nodes == 1 and not LAUNCHERS[launcher].may_start_elsewhere:
            lines += obstacles_here(run)
    lines += missing_hosts(run, launcher)
    watched = run.system.world_size if run.watchdog.enabled else 0
    return lines + _refused(check_open_files, read_limits(), watched)


def _own_name_unknown() -> list[str]:
    """Gloo looks up its host's name, and its ranks crash where there is no such name."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return [
            f"host name {name}: an address expected for the launcher gloo, found none "
            f"({error.strerror}): add the name to /etc/hosts, or use MPI"
        ]
    return []


def refusals(
    run: Run, controllers: Sequence[Controller] = ("mpi", "gloo")
) -> list[str]:
    """Why `run` cannot run on any machine of its kind, one line each; empty: it can. `controllers`:
    of the launchers that may start it; one that can is enough."""
    lines = [*_refused(build_plan, run), *_refused(check_supported, run)]
    mpi = family_here()
    engines = [
        _refused(engine_environment, run, {}, controller, mpi)
        for controller in controllers
    ]
    if all(engines):
        lines += engines[0]
    return lines + _beyond_the_device(run)


def obstacles_here(run: Run) -> list[str]:
    """Why the ranks of one node of `run` cannot run on this machine, one line each."""
    if run.system.device == "cpu":
        return []
    path = library()
    lines = _refused(require_gpu, run.model, run.system.ranks_per_node - 1)
    if lines or (path and gpu_code(path)):
        return lines
    name, version = distribution()
    return [
        "system.device: MXNet for GPUs (scripts/setup.sh --gpu) for gpu expected, found "
        f"{name} {version}, which has no code for GPUs"
    ]


def with_refusals(check: ConfigCheck, lines: Sequence[str]) -> ConfigCheck:
    """A config's check with its `refusals` as errors."""
    if not lines:
        return check
    code, name = CANNOT_RUN
    findings = [Finding(code, ERROR, None, "", "", line, name=name) for line in lines]
    return check._replace(
        findings=(*findings, *check.findings), verdict="FAIL", cause=lines[0]
    )


def _beyond_the_device(run: Run) -> list[str]:
    """A batch of ResNet-50 larger than the memory of a described machine's GPU."""
    model = run.model
    real = (model.network, model.depth, run.data.crop_px) == (
        "resnet",
        50,
        benchmark.CROP_PX,
    )
    if run.system.device == "cpu" or not real:
        return []
    batch = max(
        [run.batch.per_rank, *(change.per_rank for change in run.batch.changes)]
    )
    precision = "fp32" if model.dtype == "float32" else "fp16"
    refusal = beyond_memory("batch.per_rank", batch, run.system, precision)
    return [refusal] if refusal else []


def _refused(check: Callable[..., object], *arguments: Any) -> list[str]:
    """Why `check` refuses its arguments, one line each; empty: it does not."""
    try:
        check(*arguments)
    except UserError as error:
        return str(error).splitlines()
    return []
