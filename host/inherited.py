"""What other programs inherit from this process: one table of what is taken away.

A shell may stand within a job or a step of a scheduler, be a rank of another launcher, or carry the
settings of another framework. Launchers, engines, schedulers and Python obey such variables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

SCHEDULERS_COMMAND = "scheduler"
"""Beside the launchers' names: what submits a job, whose environment becomes the job's."""
QUESTION = "question"
"""What is asked for an answer that is read here, in English: squeue, git, ldd."""
LOCAL_JOB = "local"
"""A process of ours on this machine, such as a job's script."""

ENGINE_PREFIXES = (
    "NCCL_",
    "HOROVOD_",
    "MXNET_",
    "DALI_",
    "CUDA_",
    "UCX_",
    "FI_",
    "OMP_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "OMPI_MCA_",
    "PRTE_MCA_",
    "MPICH_",
    "MPIR_CVAR_",
    "I_MPI_",
    "MV2_",
)
"""How the variables of the engines begin."""


class Foreign(NamedTuple):
    """Variables of one owner. `reaches`: what gets them all the same. `one_node`: nothing within an
    allocation of several nodes loses them, whose launchers read the hosts there. `only`: what alone
    loses them; empty: all."""

    whose: str
    names: str
    reaches: Collection[str] = ()
    one_node: bool = False
    only: Collection[str] = ()


STEP = "Slurm's step"
DEFAULTS = "defaults that would win over the config"
TABLE = (
    # Of Open MPI not what users say of hosts: without their file all ranks of a benchmark were on
    # one host (508 MB/s over a link of 25).
    Foreign(
        "another launcher's",
        r"RN50_RANK_VARIABLES|OMPI_(COMM_WORLD|UNIVERSE|APP|FIRST|FILE|NUM)_\w+"
        r"|OMPI_(COMMAND|ARGV)|OMPI_MCA_ess(_\w+)?|OMPI_MCA_(pmix|initial_wdir)"
        r"|OMPI_MCA_orte_(?!default_hostfile|keep_fqdn_hostnames)\w+"
        r"|PMIX_(?!MCA_)\w+|PMI2?_\w+|MV2_COMM_WORLD_\w+|MPI_LOCALN?RANK(ID|S)"
        r"|PALS_(LOCAL_)?RANKID|HOROVOD_((LOCAL_)?(RANK|SIZE)|CROSS_\w+|HOSTNAME)"
        r"|HOROVOD_(CONTROLLER|ELASTIC|GLOO_RENDEZVOUS_\w+)",
    ),
    # `import mxnet` would become a server, and never return.
    Foreign("a parameter server's", r"DMLC_\w+"),
    # MXNet does not import without docstrings, nor where a warning is an error; the others change
    # what a child of Python prints, or when it ends.
    Foreign(
        "for other programs",
        "PYTHON(OPTIMIZE|WARNINGS|INSPECT|STARTUP|VERBOSE|PROFILEIMPORTTIME|DEBUG|DEVMODE)"
        r"|PYTHON(DUMPREFS\w*|MALLOCSTATS|IOENCODING|TRACEMALLOC|ASYNCIODEBUG)|MPLBACKEND"
        "|GIT_(DIR|WORK_TREE|INDEX_FILE|COMMON_DIR|OBJECT_DIRECTORY)",
    ),
    # A step gets all that its job has on a node, unless it asks for less.
    Foreign(
        STEP,
        r"SLURM_(STEP|SRUN|CPU_BIND|MEM)_?\w*|SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID)"
        "|S(LURM|RUN)_CPUS_PER_TASK|SLURM_(LAUNCH_NODE_IPADDR|DISTRIBUTION)",
    ),
    Foreign(
        "the job's around",
        r"SLURM_(?!CONF|CLUSTERS|JWT|TIME_FORMAT|OVERLAP)\w+"
        r"|PBS_(JOB\w+|ENVIRONMENT|NODE\w+|O_\w+|ARRAY_\w+|QUEUE|TASKNUM|MOMPORT)"
        "|LSB_(JOBID|MCPU_HOSTS|DJOB_HOSTFILE)|PE_HOSTFILE",
        ("srun", LOCAL_JOB),
        one_node=True,
    ),
    # Such as SBATCH_TIMELIMIT, which beats the script's `#SBATCH --time`, and SQUEUE_STATES, which
    # hides jobs. Where a scheduler is found is no such thing.
    Foreign(
        DEFAULTS,
        r"(SBATCH|SALLOC|SRUN|SQUEUE|SCANCEL|SCONTROL|QSUB|QSTAT|QDEL|BSUB|MSUB)_\w+"
        r"|PBS_(?!CONF_FILE|DEFAULT|EXEC|HOME|PRIMARY|SECONDARY|SERVER|\w*PORT)\w+"
        r"|(SGE|GE)_(?!ROOT|CELL|CLUSTER_NAME|ARCH|\w*PORT)\w+"
        r"|LSB_(?!CONF|\w*DIR)\w+"
        r"|SLURM_(ACCOUNT|PARTITION|QOS|TIMELIMIT|RESERVATION|CONSTRAINT|EXCLUSIVE|HINT|GRES)"
        r"|SLURM_(LABELIO|OVERCOMMIT|STD(IN|OUT|ERR)MODE|UNBUFFEREDIO|WAIT|TASK_(PRO|EPI)LOG)",
        only=(SCHEDULERS_COMMAND, QUESTION, "srun"),
    ),
    # A shell would print or run what the user's own shells do.
    Foreign("a shell's", "BASH_ENV|ENV", only=(QUESTION,)),
)


def taken_away(
    environment: Mapping[str, str], started: str, nodes: int
) -> dict[str, str]:
    """The variables that do not reach what is `started` on `nodes`, and whose each is."""
    owners = {}
    for name, value in environment.items():
        is_setting = name.startswith(ENGINE_PREFIXES)
        # an empty CUDA_VISIBLE_DEVICES says something: no GPU
        if is_setting and not value and name != "CUDA_VISIBLE_DEVICES":
            owners[name] = "empty"
        for row in TABLE:
            passes = started in row.reaches or (row.one_node and nodes > 1)
            passes |= bool(row.only) and started not in row.only
            if not passes and re.fullmatch(row.names, name):
                owners.setdefault(name, row.whose)
    return owners


def inherited(
    environment: Mapping[str, str], started: str, nodes: int = 1
) -> dict[str, str]:
    """The variables that a started process gets. Within a step of Slurm a second step would never
    begin, so it is allowed to share the cores of the first.

    Args:
        environment: of this process.
        started: a launcher's name, SCHEDULERS_COMMAND, QUESTION or LOCAL_JOB.
        nodes: that the run has.
    """
    gone = taken_away(environment, started, nodes)
    passed_on = {name: value for name, value in environment.items() if name not in gone}
    # srun's --overlap: it would wait for cores that this very step has
    if environment.get("SLURM_STEP_ID"):
        passed_on["SLURM_OVERLAP"] = "1"
    if started == QUESTION:
        passed_on["LC_ALL"] = "C"
    return passed_on


def not_passed_on(removed: Mapping[str, str]) -> Iterator[str]:
    """A line an owner of what `taken_away` gives. A step's are left out: every job of Slurm has
    them."""
    for whose in dict.fromkeys(removed.values()):
        names = [name for name, owner in removed.items() if owner == whose]
        line = f"not passed on ({whose}): {', '.join(names[:8])}"
        if names[8:]:
            line += f" and {len(names) - 8} more"
        if whose != STEP:
            yield line
