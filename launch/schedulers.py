"""What differs between schedulers: directives, launcher, submission and state. Pure.

A class below is one dialect; `job_script.py` writes what they share, `submit.py` calls them. Values
in directives, where no quoting is safe, are single words by the config's schema.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence

from ..config.schema import Run
from ..host.errors import UserError

LIMIT_SIGNAL = "SIGUSR1"
"""What a job with system.job.requeue gets before its time ends."""
EXIT_REQUEUE = 99
"""Grid Engine puts a job that ends with it back into its queue."""
_AFTER_GRACE_S = 60
"""For result, report and staged data, between `limits.grace_s` and the end of the time."""
_LONGEST_NAME = 15
"""The longest name of a job that older PBS accepts; it takes no first digit either."""
NEVER = "(?!)"  # matches no text
_EARLY_S = 60
"""Slurm sends the signal up to a minute early; a job is to have as much before it at least."""


def asks_for_gpus(run: Run, resource: str, pattern: str) -> bool:
    """Has a script to ask for the ranks' GPUs, since `resource` and system.job.options do not?
    `pattern`: matches what asks for them, in the words of the submission command."""
    options = " ".join([resource, *run.system.job.options])
    return run.system.device == "gpu" and not re.search(pattern, options)


def _limit_s(run: Run) -> tuple[int, int]:
    """Seconds of system.job.walltime, and how many before its end the signal comes. Raises
    UserError: too little would be left to train."""
    walltime = run.system.job.walltime
    hours, minutes, seconds = map(int, walltime.split(":"))
    total_s = 3600 * hours + 60 * minutes + seconds
    before_s = math.ceil(run.limits.grace_s) + _AFTER_GRACE_S
    if total_s < before_s + 2 * _EARLY_S:
        raise UserError(
            f"system.job.walltime: at least {before_s + 2 * _EARLY_S} s expected with "
            f"system.job.requeue, which stops the job {before_s} s before, found {walltime}"
        )
    return total_s, before_s


def _begun_by_a_letter(name: str) -> str:
    if name[:1].isalpha():
        return name
    return f"j{name}"


class Scheduler:
    """Base of all schedulers. Directives stand before system.job.account and system.job.queue."""

    name: str
    launcher: str | None = None
    """A row of launchers.py. None: the scheduler has none, and the launcher of Horovod's MPI is
    taken."""
    command: tuple[str, ...]
    """Submits a job; the script's name follows."""
    id_pattern = r"(?P<id>\S+)"
    """The id as a whole line that `command` prints."""
    id_words = NEVER
    """What stands before the id wherever in a line that is."""
    state_command: tuple[str, ...]
    """Prints the state of a job, whose id follows."""
    ended_pattern = NEVER
    """Its answer for a job that has ended; no answer means the same."""
    leaving_pattern = NEVER
    """Its answer for a job that ends, or that goes back into its queue."""
    reason_pattern = NEVER
    """Its answer for a job that has not begun; the group is the reason."""
    never_pattern = NEVER
    """Reasons that do not pass by themselves."""
    held_pattern = NEVER
    """Reasons that pass with `release_command`."""
    cancel_command = ""
    release_command: tuple[str, ...] = ()
    requeue_command = ""
    """Shell text with which a job puts itself back into its queue."""
    account_directive = ""
    queue_directive = ""

    def directives(self, run: Run) -> Iterator[str]:
        """The lines at the top of the script."""
        raise NotImplementedError

    def job_id(self, printed: str) -> str | None:
        """The id in what the submission printed, whatever a site puts around it: NUMBER;CLUSTER
        where the scheduler has several clusters. None: there is none."""
        named = list(re.finditer(self.id_words + self.id_pattern, printed))
        alone = re.finditer(rf"^\s*{self.id_pattern}\s*$", printed, re.M)
        matches = [*alone, *named]
        if not matches:
            return None
        last = matches[-1]
        cluster = last.groupdict().get("cluster")
        return f"{last['id']};{cluster}" if cluster else last["id"]

    def about(self, job: str, command: Sequence[str]) -> list[str]:
        """A command of the scheduler for a job, by its id."""
        number, _, cluster = job.partition(";")
        on_cluster = ["-M", cluster] if cluster else []
        return [command[0], *on_cluster, *command[1:], number]

    def cancel(self, job: str) -> str:
        """The command line that ends a job."""
        return shlex.join(self.about(job, [self.cancel_command]))

    def who_pays(self, run: Run) -> Iterator[str]:
        """Account and queue, where the config names them."""
        job = run.system.job
        if job.account:
            yield f"{self.account_directive}{job.account}"
        if job.queue:
            yield f"{self.queue_directive}{job.queue}"


class Slurm(Scheduler):
    """sbatch and srun; `--wait` asks squeue (`sbatch --wait` polls with ever longer pauses)."""

    name = "slurm"
    account_directive = "#SBATCH --account="
    queue_directive = "#SBATCH --partition="
    launcher = "srun"
    command = ("sbatch", "--parsable")
    id_pattern = r"(?P<id>\d+)((;| on cluster )(?P<cluster>\w[\w.-]*))?"
    id_words = "Submitted batch job "
    state_command = ("squeue", "-h", "-o", "%T %r", "-j")
    ended_pattern = (
        "Invalid job id|^(COMPLETED|CANCELLED|FAILED|TIMEOUT|NODE_FAIL|PREEMPTED|BOOT_FAIL"
        "|DEADLINE|OUT_OF_MEMORY)"
    )
    leaving_pattern = "^COMPLETING"
    reason_pattern = r"^PENDING \(?(.+?)\)?$"
    never_pattern = (
        "DependencyNeverSatisfied|Partition(TimeLimit|NodeLimit|Config)|BadConstraints"
        "|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed"
        r"|\w+PerJob(Limit)?\b|MaxMemPerLimit|ReservationDeleted"  # not: nodes that are down
    )
    held_pattern = r"JobHeld|JobHoldMaxRequeue|\bheld\b|_held\b"
    cancel_command = "scancel"
    release_command = ("scontrol", "release")
    requeue_command = "scontrol requeue ${SLURM_JOB_ID:-}"

    def directives(self, run: Run) -> Iterator[str]:
        """#SBATCH lines: whole nodes, a task a rank, the signal before the end."""
        system = run.system
        job = run.system.job
        yield f"#SBATCH --job-name={run.name}"
        yield f"#SBATCH --nodes={system.nodes}"
        yield f"#SBATCH --ntasks-per-node={system.ranks_per_node}"
        yield f"#SBATCH --cpus-per-task={system.cores_per_rank}"
        yield f"#SBATCH --time={job.walltime}"
        yield "#SBATCH --exclusive"
        if job.requeue:
            yield "#SBATCH --requeue"
            yield "#SBATCH --open-mode=append"  # of slurm-ID.out, what comes before job.log
            # B: for the batch script alone, which has become `rn50 launch`
            yield f"#SBATCH --signal=B:{LIMIT_SIGNAL[3:]}@{_limit_s(run)[1]}"
        else:
            yield "#SBATCH --no-requeue"
        if job.max_restarts and job.min_nodes is not None:
            yield "#SBATCH --no-kill"  # when a node fails
        yield from self.who_pays(run)
        gres = ""
        if job.resource:
            gres = f"--gres={job.resource}"
            yield f"#SBATCH {gres}"
        if asks_for_gpus(run, gres, r"(--gres[= ](none|\S*\bgpu)|--gpus|(^| )-G)"):
            yield f"#SBATCH --gpus-per-node={system.ranks_per_node}"


class Sge(Scheduler):
    """Grid Engine as at ABCI: `resource` (rt_F) is a node type; the group is `-g` of qsub."""

    name = "sge"
    account_directive = "#$ -P "
    queue_directive = "#$ -q "
    command = ("qsub", "-terse")
    id_pattern = r"(?P<id>\d+)"
    id_words = "Your job "
    state_command = ("qstat", "-j")
    ended_pattern = r"do not exist|does not exist|Unknown"
    reason_pattern = r"^(?:error reason\s+\d+|scheduling info):\s+(.+)$"
    never_pattern = "error reason"
    held_pattern = "hold state"
    cancel_command = "qdel"
    release_command = ("qrls",)
    requeue_command = f"exit {EXIT_REQUEUE}"

    def directives(self, run: Run) -> Iterator[str]:
        """#$ lines: node types or slots, and the soft limit that sends the signal."""
        system = run.system
        job = run.system.job
        yield f"#$ -N {_begun_by_a_letter(run.name)}"
        yield "#$ -S /bin/bash"
        yield "#$ -cwd"
        yield "#$ -j y"
        yield f"#$ -l h_rt={job.walltime}"
        if job.requeue:
            total_s, before_s = _limit_s(run)
            yield "#$ -r y"
            yield f"#$ -l s_rt={total_s - before_s}"  # where SIGUSR1 comes
        if job.resource:
            yield f"#$ -l {job.resource}={system.nodes}"
        else:
            slots = system.world_size * system.cores_per_rank
            yield f"#$ -pe {job.parallel_environment} {slots}"
        yield from self.who_pays(run)


class Pbs(Scheduler):
    """OpenPBS and PBS Professional: one chunk a node."""

    name = "pbs"
    account_directive = "#PBS -P "
    queue_directive = "#PBS -q "
    command = ("qsub",)
    id_pattern = r"(?P<id>\d+(\[\])?(\.[\w.-]+)?)"
    id_words = r"\b(?=\d+(\[\])?\.[A-Za-z])"
    state_command = ("qstat", "-f")
    ended_pattern = r"Unknown Job|has finished"
    reason_pattern = r"^\s*comment = (?!Job run )(.+)$"
    never_pattern = "Can Never Run"
    held_pattern = "[Jj]ob held"
    cancel_command = "qdel"
    release_command = ("qrls",)

    def directives(self, run: Run) -> Iterator[str]:
        """#PBS lines: chunks of whole nodes, one on each."""
        system = run.system
        job = run.system.job
        if job.resource and not re.fullmatch(r"\w+=[^:=]+(:\w+=[^:=]+)*", job.resource):
            raise UserError(
                "system.job.resource: NAME=VALUE, which a chunk of PBS has, expected, found "
                f"{job.resource}"
            )
        cores = system.ranks_per_node * system.cores_per_rank
        chunk = f"{system.nodes}:ncpus={cores}:mpiprocs={system.ranks_per_node}"
        chunk += f":ompthreads={system.cores_per_rank}"  # else PBS sets it to all cores
        if asks_for_gpus(run, job.resource or "", r"\bngpus="):
            chunk += f":ngpus={system.ranks_per_node}"
        yield f"#PBS -N {_begun_by_a_letter(run.name)[:_LONGEST_NAME]}"
        if job.resource:
            chunk += f":{job.resource}"
        yield f"#PBS -l select={chunk}"
        yield "#PBS -l place=scatter:excl"
        yield f"#PBS -l walltime={job.walltime}"
        yield f"#PBS -r {'y' if job.requeue else 'n'}"
        yield "#PBS -j oe"
        yield from self.who_pays(run)


class Local(Scheduler):
    """No scheduler: this machine, or the hosts in the file that RN50_HOSTS names, by ssh."""

    name = "local"
    command = ("bash",)
    # The process is `bash job.sh`, which becomes `rn50 launch --job=...`.
    state_command = ("bash", "-c", "grep -soaF -e job.sh -e --job= /proc/$0/cmdline")
    ended_pattern = r"\A\Z"  # gone, a zombie, or another process with its number
    cancel_command = "kill"

    def directives(self, run: Run) -> Iterator[str]:
        """No lines, as no scheduler reads them. Raises UserError: the job is to be requeued."""
        if run.system.job.requeue:
            raise UserError(
                "system.job.requeue: slurm, sge or pbs expected, found local"
            )
        return iter(())


SCHEDULERS: dict[str, Scheduler] = {
    scheduler.name: scheduler for scheduler in (Slurm(), Sge(), Pbs(), Local())
}
