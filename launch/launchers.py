"""How ranks are started: a class a launcher, each of which turns a job into a command line.

Their names are those of config/choices.py. `rn50 launch` takes the table below on this machine,
within an allocation and in every scheduler's job.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from ..config.engines import PRODUCTS, Controller, Family
from ..config.schema import Run
from ..host.errors import UserError
from ..host.inherited import ENGINE_PREFIXES, inherited, taken_away
from ..host.programs import NoAnswer, ask
from ..train.communication.mpi_library import MPICH_ABI, MpiLibrary, horovods_mpi
from ..train.mxnet_package import package_folder
from ..train.process_info import RANK_VARIABLES, RankVariables
from .engine_environment import EngineSettings, engine_environment
from .environment_record import output_of
from .host_limits import may_read_others
from .hosts import allocated_hosts
from .mpi_program import MpiOnPath, mpi_on_path

HOROVODRUN = (sys.executable, "-m", "rn50.launch.horovodrun")
_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


class Job(NamedTuple):
    """What to start: `command` once for each rank, with `environment` on every node. `hosts`: of
    the allocation, where a launcher has to be told. `pmi`: of `pick_pmi`.
    `inherited`: what the launcher gets beside `environment`."""

    command: Sequence[str]
    ranks: int
    ranks_per_node: int
    environment: Mapping[str, str] = {}
    hosts: Sequence[str] = ()
    as_root: bool = False
    pmi: str = "pmix"
    inherited: Mapping[str, str] = os.environ

    @property
    def launchers_environment(self) -> dict[str, str]:
        """All that the launcher is started with."""
        return {**self.inherited, **self.environment}

    @property
    def slots(self) -> str:
        """Its hosts, each with the ranks that it takes."""
        return ",".join(f"{host}:{self.ranks_per_node}" for host in self.hosts)

    @property
    def nodes(self) -> int:
        """Nodes that the ranks fill."""
        return -(-self.ranks // self.ranks_per_node)


class Launcher:
    """Base of all launchers. `controller`: what coordinates Horovod's processes.
    `may_start_elsewhere`: ranks of one node may run on another machine than the one that starts
    them. `families`: whose MPI it can join the ranks of. `rank_variables`: in which its ranks find
    their places; None: in those of train/process_info.py."""

    name: str
    program = ""
    product: str
    controller: Controller = "mpi"
    may_start_elsewhere = False
    families: tuple[Family, ...] = tuple(PRODUCTS)
    rank_variables: RankVariables | None = None

    def command(self, job: Job) -> list[str]:
        """The command line that starts `job`."""
        raise NotImplementedError

    def hosts(self) -> tuple[str, ...]:
        """The nodes of this allocation by name; none: they are not known."""
        return allocated_hosts()

    def is_installed(self) -> bool:
        """Whether its program is on the PATH."""
        return shutil.which(self.program) is not None


LAUNCHERS: dict[str, Launcher] = {}


def registered(launcher: type[Launcher]) -> type[Launcher]:
    """The class, whose launcher `rn50 launch` knows by its name."""
    LAUNCHERS[launcher.name] = launcher()
    return launcher


@registered
class OpenMpi(Launcher):
    """Takes its hosts from the scheduler's allocation, unless they are given. Open MPI 5 (PRRTE)
    takes these options as Open MPI 4 does, without a warning (4.1.4, 5.0.7)."""

    name = "mpirun"
    program = "mpirun"
    product = "Open MPI"
    families = ("openmpi",)

    def command(self, job: Job) -> list[str]:
        """`mpirun` with the names of the variables that it is to pass on."""
        tokens = [
            "mpirun",
            "-np",
            str(job.ranks),
            "--oversubscribe",
            "--bind-to",  # scripts/bind.sh does
            "none",
        ]
        if job.hosts:
            tokens += ["--host", job.slots]
        if job.nodes > 1:
            tokens += ["--map-by", f"ppr:{job.ranks_per_node}:node"]
        # as in a container: without it mpirun refuses root
        if job.as_root:
            tokens.append("--allow-run-as-root")
        for name in sorted(job.environment):
            tokens += ["-x", name]
        return [*tokens, *job.command]


@registered
class Horovodrun(Launcher):
    """Horovod's own launcher with its Gloo controller; needs no MPI, exports all variables."""

    name = "gloo"
    program = "horovodrun"
    product = "Horovod"
    controller = "gloo"

    def command(self, job: Job) -> list[str]:
        """Our module around Horovod's launcher; hosts and network where there are several."""
        tokens = [*HOROVODRUN, "--gloo", "-np", str(job.ranks)]
        if job.hosts:
            tokens += ["-H", job.slots]
            # between hosts alone
            if interface := job.environment.get("HOROVOD_GLOO_IFACE"):
                tokens += ["--network-interfaces", interface]
        return [*tokens, *job.command]

    def is_installed(self) -> bool:
        """It came with Horovod."""
        return True


@registered
class Srun(Launcher):
    """Slurm's launcher, within an allocation. Without --kill-on-bad-exit the others would wait for
    ever for a rank that failed. With hosts named a node is gone: without --overlap the step would
    wait for the one before, which Slurm does not end as long as it expects that node back."""

    name = "srun"
    program = "srun"
    product = "Slurm"
    may_start_elsewhere = True

    def command(self, job: Job) -> list[str]:
        """`srun`, which passes all variables on and leaves the cores to the ranks."""
        tokens = [
            "srun",
            f"--mpi={job.pmi}",
            "--kill-on-bad-exit=1",
            f"--nodes={job.nodes}",
        ]
        tokens += [f"--ntasks={job.ranks}", f"--ntasks-per-node={job.ranks_per_node}"]
        if job.hosts:
            tokens += [f"--nodelist={','.join(job.hosts)}", "--overlap"]
        return [*tokens, "--cpu-bind=none", "--export=ALL", *job.command]

    def hosts(self) -> tuple[str, ...]:
        """The nodes as Slurm has them now: without a node that it has taken from a job with
        --no-kill."""
        if not (job := os.environ.get("SLURM_JOB_ID")):
            return ()
        nodes = output_of("squeue", "--noheader", f"--jobs={job}", "--format=%N")
        names = output_of("scontrol", "show", "hostnames", nodes) if nodes else None
        return tuple(names.split()) if names else ()


@registered
class Hydra(Launcher):
    """The process manager of MPICH, Intel MPI and their kin; their mpirun is the same program."""

    name = "hydra"
    program = "mpiexec.hydra"
    product = "MPICH"
    families = MPICH_ABI

    def command(self, job: Job) -> list[str]:
        """`mpiexec.hydra` with the names of the variables that it is to pass on."""
        tokens = [self.program, "-n", str(job.ranks), "-ppn", str(job.ranks_per_node)]
        if job.hosts:
            tokens += ["-hosts", ",".join(job.hosts)]
        tokens += ["-bind-to", "none"]
        if job.environment:
            tokens += ["-genvlist", ",".join(sorted(job.environment))]
        return [*tokens, *job.command]


OF_FAMILY: dict[Family, str] = {
    **dict.fromkeys(MPICH_ABI, "hydra"),
    "openmpi": "mpirun",
}
"""The launcher of each MPI, for where no scheduler has its own."""

_PMI: dict[Family, tuple[str, ...]] = {
    **dict.fromkeys(MPICH_ABI, ("pmi2", "pmix")),
    "openmpi": ("pmix", "pmi2"),
    "cray": ("cray_shasta", "pmi2", "pmix"),
}
"""What srun may offer to the ranks of an MPI, the best first."""


def pick_launcher(requested: str | None, *, in_container: bool = False) -> str:
    """The launcher asked for; else srun in a Slurm allocation, else that of the MPI which Horovod
    was linked to if any, else gloo. The Horovod of a container is taken for one with Open MPI.
    Raises UserError: what cannot start the ranks here; ImportError: there is no Horovod for them.
    """
    library = horovods_mpi()
    if in_container:
        library = MpiLibrary("a container's", None)
    elif package_folder("horovod") is None:
        raise ImportError("No module named 'horovod'", name="horovod")
    if requested is None:
        if os.environ.get("SLURM_JOB_ID") and LAUNCHERS["srun"].is_installed():
            return "srun"
        if not library:
            return "gloo"
        name = OF_FAMILY[library.family or "openmpi"]
        return name if LAUNCHERS[name].is_installed() else "gloo"
    if requested not in LAUNCHERS:
        raise UserError(
            f"--launcher: {', '.join(LAUNCHERS)} expected, found {requested}"
        )
    launcher = LAUNCHERS[requested]
    if not launcher.is_installed():
        expected = f"{launcher.product}'s {launcher.program} on the PATH expected"
        raise UserError(f"--launcher {requested}: {expected}, found none")
    if launcher.controller == "mpi" and not library:
        raise UserError(
            f"--launcher {requested}: a Horovod built with MPI expected, found one without; "
            "install an MPI and run scripts/setup.sh again, or use --launcher gloo"
        )
    family = library.family if library else None
    if family and launcher.controller == "mpi" and family not in launcher.families:
        # It would start ranks of which each is alone.
        able = [name for name in LAUNCHERS if family in LAUNCHERS[name].families]
        raise UserError(
            f"--launcher {requested}: one of {', '.join(able)} expected, as Horovod was linked to "
            f"{PRODUCTS[family]}, found {launcher.product}'s"
        )
    return requested


def pick_pmi(family: Family | None) -> str:
    """What srun is to offer ranks of `family`, out of what `srun --mpi=list` prints."""
    kinds = _PMI[family or "openmpi"]
    try:
        answer = ask(["srun", "--mpi=list"])
    except NoAnswer:
        return kinds[0]
    # some versions list them on the standard error, each behind `srun: `
    printed = answer.out + answer.err
    listed = re.findall(r"^(?:srun: )?\s*([a-z]\w*)\s*$", printed, re.M)
    return next(filter(listed.__contains__, kinds), kinds[0])


def mpi_for(launcher: str) -> MpiOnPath | None:
    """Say whose MPI the PATH's programs of `launcher` are of, where it is one of an MPI and Horovod
    was linked to one."""
    row = LAUNCHERS[launcher]
    library = horovods_mpi()
    is_of_mpi = row.controller == "mpi" and not row.may_start_elsewhere
    if not library or not is_of_mpi or not row.program:
        return None
    return mpi_on_path(row.program, library)


def family_here() -> Family | None:
    """The family of the MPI that Horovod was linked to, None where that is not known for sure.
    Where there is no Horovod over MPI a job is for another machine: Open MPI's."""
    library = horovods_mpi()
    return library.family if library else "openmpi"


def _networks() -> list[str]:
    """Interfaces of this host that have an address."""
    internet = (socket.AF_INET, socket.AF_INET6)
    return [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.family in internet for address in addresses)
    ]


def _has_adapter() -> bool:
    """Whether this host has an adapter of InfiniBand or Slingshot."""
    classes = Path("/sys/class")
    return any(any(classes.glob(f"{name}/*")) for name in ("infiniband", "cxi"))


def build_job(
    run: Run, launcher: str, command: Sequence[str], hosts: Sequence[str] = ()
) -> tuple[Job, EngineSettings]:
    """The job that runs `command` on every rank of `run`, and the engines' environment. `hosts`:
    some of the allocation; default: all that `run` wants. Raises UserError: the engines refuse the
    config."""
    nodes = run.system.nodes
    family = family_here()
    networks = _networks()
    present = inherited(os.environ, launcher, nodes)
    mpi = mpi_for(launcher)
    if mpi and mpi.right and mpi.right != mpi.first:
        present["PATH"] = f"{Path(mpi.right.path).parent}:{present['PATH']}"
        present.pop("OPAL_PREFIX", None)  # the other's
    environment = engine_environment(
        run,
        present,
        LAUNCHERS[launcher].controller,
        family,
        networks,
        may_copy=may_read_others(),
        has_adapter=_has_adapter(),
    )
    removed = taken_away(os.environ, launcher, nodes)
    # on all nodes, the user's as well
    variables = environment.settings | environment.user_set
    if nodes > 1:  # and what modules have set, whatever engine reads it
        for name, value in present.items():
            if name.startswith(ENGINE_PREFIXES) or name in _PATHS:
                variables.setdefault(name, value)
        hosts = hosts or allocated_hosts()[:nodes]  # those behind are spare
    # of a launcher that train/process_info.py does not know
    if names := LAUNCHERS[launcher].rank_variables:
        variables[RANK_VARIABLES] = ",".join(filter(None, names))
    job = Job(
        command,
        run.system.world_size,
        run.system.ranks_per_node,
        variables,
        hosts,
        as_root=os.geteuid() == 0,
        inherited=present,
    )
    if launcher == "srun":
        job = job._replace(pmi=pick_pmi(family))
    return job, environment._replace(removed=removed)
