"""What each scheduler wants to hear: directives, launch lines, submission and state. Pure.

A class below is one dialect; `job_script.py` writes what they share, `submit.py` calls them. All
values reach a script as words of an allow-list (directives, where no quoting is safe) or quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from ..config.errors import UserError
from ..config.names import SchedulerName
from ..config.schema import Run
from ..train.heartbeat import WATCHDOG_ENV
from .engine_environment import ENGINE_PREFIXES


def word(value: str) -> str:
    """`value`, where it is one word that no scheduler's directive parser can misread.

    Raises:
        UserError: it is not.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.,:=+@/-]*", value):
        expected = "one word of letters, digits and _ . , : = + @ / -"
        raise UserError(f"{expected} expected, found {value!r}")
    return value


def array(name: str, tokens: Sequence[str]) -> str:
    """A Bash array of tokens that are shell text already, in lines of up to 100 columns."""
    lines = [f"{name}=({tokens[0]}"]
    for token in tokens[1:]:
        if len(lines[-1]) + len(token) > 97:
            lines.append(f"  {token}")
        else:
            lines[-1] += f" {token}"
    return "\n".join(lines) + ")"


def is_watched(run: Run) -> bool:
    """Are the ranks of a job script under the watchdog? A container's Python is inside it."""
    return run.watchdog.enabled and not run.system.job.container


def asks_for_gpus(run: Run, resource: str, pattern: str) -> bool:
    """Has a script to ask for the ranks' GPUs, since `resource` and system.job.options do not?

    Args:
        pattern: matches what asks for them, in the words of the submission command.
    """
    words = " ".join([resource, *run.system.job.options])
    return run.system.device == "gpu" and not re.search(pattern, words)


class Scheduler:
    """Base: Open MPI's mpirun over a host file in `$folder/hosts`."""

    name: ClassVar[SchedulerName]
    command: ClassVar[tuple[str, ...]]
    """Submits; the script's name follows, on stdin where `from_stdin`."""
    from_stdin: ClassVar[bool] = False
    id_pattern: ClassVar[str] = r"(\S+)"
    state_command: ClassVar[tuple[str, ...]] = ()
    """Tells of a job whose id follows."""
    gone: ClassVar[str] = ""
    """What the state command says of a job that has ended (it says nothing: ended too)."""
    end_command: ClassVar[tuple[str, ...]] = ()
    """Tells how a job whose id follows has ended."""
    end_pattern: ClassVar[str] = ""
    """The parts of that answer that say it."""
    cancel_command: ClassVar[str] = ""
    job_id: ClassVar[str] = ""
    """Shell word, in the job: its id."""
    submitted_from: ClassVar[str] = "$PWD"
    """Shell word, in the job: the folder in which it was submitted."""
    hosts: ClassVar[str] = ""
    """Shell word: a file whose lines begin with the host names of the allocation."""

    def directives(self, run: Run) -> Iterator[str]:
        """The lines at the top of the script."""
        raise NotImplementedError

    def setup(self, run: Run) -> Iterator[str]:
        """Lines before the first launch."""
        if not self.hosts:
            return
        yield from self.host_file(run)
        yield "if [[ $EUID -eq 0 ]]; then"
        yield "  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        yield "fi"
        names = "|".join(ENGINE_PREFIXES)
        yield "# The other nodes get what the engines read, whoever set it, and what modules set."
        yield "exports=()"
        yield f"pattern='^({names})|^(PATH|LD_LIBRARY_PATH|PYTHONPATH)$'"
        yield "while read -r name; do"
        yield '  if [[ $name =~ $pattern ]]; then exports+=(-x "$name"); fi'
        yield "done < <(compgen -e)"

    def host_file(self, run: Run) -> Iterator[str]:
        """Lines that write the host file."""
        print_host = f'!seen[$1]++ {{ print $1 " slots={run.system.ranks_per_node}" }}'
        yield "# The allocation's hosts, each once, with its slots."
        yield f"awk '{print_host}' {self.hosts} >\"$folder/hosts\""

    def ranks(self, run: Run) -> list[str]:
        """Tokens that start a command on every rank, in shell syntax."""
        tokens = self._mpirun(run.system.nodes, run.system.ranks_per_node)
        return [*tokens, "-x", WATCHDOG_ENV] if is_watched(run) else tokens

    def per_node(self, run: Run) -> list[str]:
        """Tokens that start a command once a node."""
        return self._mpirun(run.system.nodes, 1)

    def _mpirun(self, nodes: int, ranks: int) -> list[str]:
        tokens = ["mpirun", "-np", str(nodes * ranks), "--hostfile", '"$folder/hosts"']
        tokens += ["--map-by", f"ppr:{ranks}:node", "--bind-to", "none"]
        return [*tokens, '"${exports[@]}"']


class Slurm(Scheduler):
    """sbatch and srun; `--wait` asks squeue (`sbatch --wait` polls with ever longer pauses)."""

    name = "slurm"
    command = ("sbatch", "--parsable")
    id_pattern = r"(\d+)"
    job_id = "${SLURM_JOB_ID:-}"
    state_command = ("squeue", "-h", "-o", "%T", "-j")
    gone = r"Invalid job id"
    end_command = ("scontrol", "show", "job", "-o")
    end_pattern = r"\b(?:JobState|Reason|ExitCode)=\S+"
    cancel_command = "scancel"

    def directives(self, run: Run) -> Iterator[str]:
        system, job = run.system, run.system.job
        yield f"#SBATCH --job-name={word(run.name)}"
        yield f"#SBATCH --nodes={system.nodes}"
        yield f"#SBATCH --ntasks-per-node={system.ranks_per_node}"
        yield f"#SBATCH --cpus-per-task={system.cores_per_rank}"
        yield f"#SBATCH --time={word(job.walltime)}"
        yield "#SBATCH --exclusive"
        yield "#SBATCH --no-requeue"
        named = (("account", job.account), ("partition", job.queue), ("gres", job.resource))
        yield from (f"#SBATCH --{key}={word(value)}" for key, value in named if value)
        gres = f"--gres={job.resource}" if job.resource else ""
        if asks_for_gpus(run, gres, r"(--gres[= ](none|\S*\bgpu)|--gpus|(^| )-G)"):
            yield f"#SBATCH --gpus-per-node={system.ranks_per_node}"

    def ranks(self, run: Run) -> list[str]:
        system = run.system
        # A rank that fails ends the step: without --kill-on-bad-exit the others wait for ever.
        return [
            *("srun", "--mpi=pmix", "--kill-on-bad-exit=1", f"--nodes={system.nodes}"),
            f"--ntasks={system.world_size}",
            f"--ntasks-per-node={system.ranks_per_node}",
            *(f"--cpus-per-task={system.cores_per_rank}", "--cpu-bind=none"),
            "--export=ALL",
        ]

    def per_node(self, run: Run) -> list[str]:
        nodes = run.system.nodes
        return ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]


class Sge(Scheduler):
    """Grid Engine as at ABCI: `resource` (rt_F) is a node type; the group is `-g` of qsub."""

    name = "sge"
    command = ("qsub", "-terse")
    id_pattern = r"(\d+)"
    job_id = "${JOB_ID:-}"
    state_command = ("qstat", "-j")
    gone = r"do not exist|does not exist|Unknown"
    cancel_command = "qdel"
    hosts = '"${SGE_JOB_HOSTLIST:-$PE_HOSTFILE}"'

    def directives(self, run: Run) -> Iterator[str]:
        system, job = run.system, run.system.job
        yield f"#$ -N {word(run.name)}" if run.name[:1].isalpha() else f"#$ -N j{word(run.name)}"
        yield "#$ -S /bin/bash"
        yield "#$ -cwd"
        yield "#$ -j y"
        yield f"#$ -l h_rt={word(job.walltime)}"
        if job.resource:
            yield f"#$ -l {word(job.resource)}={system.nodes}"
        else:
            yield f"#$ -pe mpi {system.world_size}"
        if job.account:
            yield f"#$ -P {word(job.account)}"
        if job.queue:
            yield f"#$ -q {word(job.queue)}"


class Pbs(Scheduler):
    """OpenPBS and PBS Professional: one chunk a node."""

    name = "pbs"
    job_id = "${PBS_JOBID:-}"
    submitted_from = "$PBS_O_WORKDIR"
    command = ("qsub",)
    state_command = ("qstat",)
    gone = r"Unknown Job|has finished"
    cancel_command = "qdel"
    hosts = '"$PBS_NODEFILE"'

    def directives(self, run: Run) -> Iterator[str]:
        system, job = run.system, run.system.job
        cores = system.ranks_per_node * system.cores_per_rank
        chunk = f"{system.nodes}:ncpus={cores}:mpiprocs={system.ranks_per_node}"
        chunk += f":ompthreads={system.cores_per_rank}"  # else PBS sets it to all cores
        if asks_for_gpus(run, job.resource or "", r"\bngpus="):
            chunk += f":ngpus={system.ranks_per_node}"
        yield f"#PBS -N {word(run.name)}"
        yield f"#PBS -l select={chunk}{f':{word(job.resource)}' if job.resource else ''}"
        yield "#PBS -l place=scatter:excl"
        yield f"#PBS -l walltime={word(job.walltime)}"
        yield "#PBS -j oe"
        if job.account:
            yield f"#PBS -P {word(job.account)}"
        if job.queue:
            yield f"#PBS -q {word(job.queue)}"


class Lsf(Scheduler):
    """LSF with jsrun as at Summit: one resource set a node, so that a rank sees all its GPUs.

    jsrun, like srun, takes the whole environment along.
    """

    name = "lsf"
    command = ("bsub",)
    from_stdin = True
    id_pattern = r"Job <(\d+)>"
    job_id = "${LSB_JOBID:-}"
    state_command = ("bjobs", "-noheader", "-o", "stat")
    gone = r"DONE|EXIT|is not found"
    cancel_command = "bkill"

    def directives(self, run: Run) -> Iterator[str]:
        job = run.system.job
        yield f"#BSUB -J {word(run.name)}"
        yield f"#BSUB -nnodes {run.system.nodes}"
        yield f"#BSUB -W {word(job.walltime)[:-3]}"
        if job.account:
            yield f"#BSUB -P {word(job.account)}"
        if job.queue:
            yield f"#BSUB -q {word(job.queue)}"

    def ranks(self, run: Run) -> list[str]:
        return self._jsrun(run, run.system.ranks_per_node)

    def per_node(self, run: Run) -> list[str]:
        return self._jsrun(run, 1)

    def _jsrun(self, run: Run, ranks: int) -> list[str]:
        system = run.system
        tokens = ["jsrun", "-n", str(system.nodes), "-r", "1", "-a", str(ranks)]
        tokens += ["-c", str(system.ranks_per_node * system.cores_per_rank)]
        if system.device == "gpu":
            tokens += ["-g", str(system.ranks_per_node)]
        return [*tokens, "-b", "none"]


class Local(Scheduler):
    """No scheduler: this machine, or the hosts in the file that RN50_HOSTS names, by ssh."""

    name = "local"
    command = ("bash",)
    cancel_command = "kill"
    hosts = '"$RN50_HOSTS"'

    def directives(self, run: Run) -> Iterator[str]:
        del run  # nobody reads any
        return iter(())

    def host_file(self, run: Run) -> Iterator[str]:
        if run.system.nodes > 1:
            yield ': "${RN50_HOSTS:?a file with the names of the hosts, one a line, expected}"'
            yield from super().host_file(run)
        else:
            slots = run.system.ranks_per_node
            yield f"printf 'localhost slots=%s\\n' {slots} >\"$folder/hosts\""


SCHEDULERS: dict[str, Scheduler] = {
    scheduler.name: scheduler for scheduler in (Slurm(), Sge(), Pbs(), Lsf(), Local())
}
