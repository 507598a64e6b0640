"""What the processes that rn50 starts inherit from its own: one table of what is taken away.

A shell may stand within a job or a step of a scheduler, be a rank of another launcher, or carry the
settings of another framework. Launchers, engines and schedulers obey such variables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ..train.process_info import LAUNCHED_BY, RANK_VARIABLES
from .engine_environment import ENGINE_PREFIXES

SCHEDULERS_COMMAND = "scheduler"
"""Beside the launchers' names: a command of a scheduler, such as sbatch."""
LOCAL_JOB = "local"
"""A process of ours on this machine, such as a job's script."""


class Foreign(NamedTuple):
    """Variables of one owner. `reaches`: what gets them all the same. `one_node`: nothing within an
    allocation of several nodes loses them, whose launchers read the hosts there."""

    whose: str
    names: str
    reaches: Collection[str] = ()
    one_node: bool = False


_RANK = {
    name
    for row in LAUNCHED_BY
    for name in row
    if name and not name.startswith("SLURM_")
}
STEP = "Slurm's step"
TABLE = (
    # Of Open MPI not what users say of hosts: without their file all ranks of a benchmark were on
    # one host (508 MB/s over a link of 25).
    Foreign(
        "another launcher's",
        rf"{RANK_VARIABLES}|{'|'.join(sorted(_RANK))}|OMPI_(COMM_WORLD|UNIVERSE|APP|FIRST|FILE|NUM)_\w+"
        r"|OMPI_(COMMAND|ARGV)|OMPI_MCA_ess(_\w+)?|OMPI_MCA_(pmix|initial_wdir)"
        r"|OMPI_MCA_orte_(?!default_hostfile|keep_fqdn_hostnames)\w+"
        r"|PMIX_(?!MCA_)\w+|PMI2?_\w+|MV2_COMM_WORLD_\w+|HOROVOD_(CROSS_\w+|HOSTNAME)"
        r"|HOROVOD_(CONTROLLER|ELASTIC|GLOO_RENDEZVOUS_\w+)",
    ),
    # `import mxnet` would become a server, and never return.
    Foreign("a parameter server's", r"DMLC_\w+"),
    # MXNet does not import without docstrings, nor where a warning is an error.
    Foreign("for other programs", "PYTHONOPTIMIZE|PYTHONWARNINGS"),
    # A step gets all that its job has on a node, unless it asks for less.
    Foreign(
        STEP,
        r"SLURM_(STEP|SRUN|CPU_BIND|MEM)_?\w*|SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID)"
        "|S(LURM|RUN)_CPUS_PER_TASK|SLURM_(LAUNCH_NODE_IPADDR|DISTRIBUTION)",
    ),
    Foreign(
        "the job's around",
        r"SLURM_(?!CONF|CLUSTERS|JWT|TIME_FORMAT|OVERLAP)\w+"
        "|PBS_(JOBID|ENVIRONMENT|NODEFILE)|LSB_(JOBID|MCPU_HOSTS|DJOB_HOSTFILE)|PE_HOSTFILE",
        ("srun", "pals", LOCAL_JOB),
        one_node=True,
    ),
)


def taken_away(
    environment: Mapping[str, str],
    started: str,
    nodes: int,
) -> dict[str, str]:
    """Whose the variables are that do not reach what is `started` on `nodes`, by name."""
    owners = {}
    for name, value in environment.items():
        is_setting = name.startswith(ENGINE_PREFIXES)
        if is_setting and not value and name != "CUDA_VISIBLE_DEVICES":
            owners[name] = "empty"
        for row in TABLE:
            kept = started in row.reaches or (row.one_node and nodes > 1)
            if not kept and re.fullmatch(row.names, name):
                owners.setdefault(name, row.whose)
    return owners


def inherited(
    environment: Mapping[str, str],
    started: str,
    nodes: int = 1,
) -> dict[str, str]:
    """The variables that a started process gets. Within a step of Slurm a second step would never
    begin, so it is allowed to share the cores of the first.

    Args:
        environment: of this process.
        started: a launcher's name, SCHEDULERS_COMMAND or LOCAL_JOB.
        nodes: that the run has.
    """
    gone = taken_away(environment, started, nodes)
    kept = {name: value for name, value in environment.items() if name not in gone}
    if environment.get("SLURM_STEP_ID"):
        kept["SLURM_OVERLAP"] = "1"
    return kept
