"""`rn50 submit` on a real Slurm: munge, slurmctld and three slurmd on this machine. At night what
takes minutes: a requeued job, nodes or ranks that fail, an allocation of one's own."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from rn50.logging.parse import read_events
from rn50.train.checkpoint.folder import checkpoints_in
from rn50.train.communication.mpi_library import MPICH_ABI
from tests import mpi
from tests.conftest import Rn50, logged_keys, metrics, read_json, stop_of
from tests.ranks.test_launch import shape
from tests.waiting import finished, leave_nothing, wait_until

pytestmark = pytest.mark.slow
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
LONG = (
    "schedule.length=400 epochs",
    "eval.period=200",
    "eval.offset=199",
    "eval.target=0.999",
    "log.every=5 steps",
)
TWO_NODES = ("system.nodes=2", "system.ranks_per_node=1")


def missing() -> str | None:
    """Why there can be no Slurm here."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for program in PROGRAMS:
        if shutil.which(program, path=path) is None:
            return f"no {program} on this machine (apt: slurmctld slurmd slurm-client munge)"
    if mpi.WHY_NOT or mpi.FAMILY in MPICH_ABI:  # by PMI2, which Slurm brings along
        return mpi.WHY_NOT or None
    if not any(Path("/usr/lib").rglob("libpmix.so")):
        return "no libpmix.so for Slurm's PMIx plugin (apt: libpmix-dev)"
    return None


@pytest.fixture(scope="module")
def lab(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of a Slurm with three idle nodes."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm") / "lab"
    script = root / "tests/lab/slurmlab.sh"
    done = finished([script, "up", folder, "3"])
    assert done.returncode == 0, done.stderr
    yield folder / "slurm.conf"
    subprocess.run([script, "down", folder], check=True)
    leave_nothing(folder)


@pytest.fixture(autouse=True)
def _conf(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(lab))


def scontrol(*arguments: str) -> str:
    """What Slurm's scontrol prints."""
    return finished(["scontrol", *arguments], check=True).stdout


def state_of(job: str) -> str:
    printed = scontrol("show", "job", job)
    match = re.search(r"JobState=(\w+)", printed)
    assert match, printed
    return match[1]


def settled_state(job: str) -> str:
    """The state once Slurm is done with the job."""
    unsettled = ("PENDING", "RUNNING", "COMPLETING")
    wait_until(lambda: state_of(job) not in unsettled)
    return state_of(job)


class Job(NamedTuple):
    """A submitted run that `process` waits for."""

    process: subprocess.Popen[str]
    number: str
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run_0"

    def log(self, name: str = "job.log") -> str:
        return (self.folder / name).read_text()

    def wait_for_training(self) -> None:
        log = self.folder / "job.log"
        wait_until(lambda: log.is_file() and "images/s" in log.read_text())

    def wait_for_checkpoint(self) -> None:
        wait_until(lambda: checkpoints_in(self.run / "checkpoint"))

    def end(self, code: int, state: str) -> str:
        """What the command prints up to its end, which has to be this one."""
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == code, out + err + self.log()
        assert settled_state(self.number) == state
        return out


def submit(rn50: Rn50, smoke_data: Path, *arguments: str) -> Job:
    process = rn50.start(
        "submit",
        "smoke",
        "--scheduler",
        "slurm",
        "--wait",
        *TWO_NODES,
        f"data.path={smoke_data}",
        f"system.results={rn50.results}",
        *arguments,
    )
    line = process.stdout.readline()
    match = re.match(r"slurm job (\d+) in (\S+) \(to stop it: scancel \1\)", line)
    assert match, line + process.stderr.read()
    return Job(process, match[1], Path(match[2]))


def test_two_nodes_give_the_log_of_a_local_run(
    rn50: Rn50, smoke_data: Path, smoke_run: Callable[[str], Path]
) -> None:
    job = submit(rn50, smoke_data, "seed=1")
    out = job.end(0, "COMPLETED")
    assert re.search(r"^RESULT success .*official_checker=PASS\(4\.0\.0\)", out, re.M)
    assert read_json(job.run / "environment.json")["launcher"] == "srun"
    stderr = (job.run / "stderr.log").read_text()
    assert stderr.count("bind: local rank 0 of 1") == 2
    page = read_json(job.folder / "systems/local_n2.json")
    assert page["number_of_nodes"] == "2"

    local = smoke_run(mpi.LAUNCHER)
    # The same two ranks, the same images in the same order: every value of the log is the same.
    assert shape(job.run / "result_0.txt") == shape(local / "result_0.txt")
    assert digest(job.run) == digest(local)


def ranks_of(run: Path) -> dict[str, psutil.Process]:
    """The processes of a run's ranks by number."""
    ranks = {}
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or [""]
        is_python = Path(command[0]).name.startswith("python")
        if is_python and "rn50.train" in command and str(run) in command:
            ranks[process.environ()["SLURM_PROCID"]] = process
    return ranks


def test_scancel_closes_the_log_and_leaves_nothing(
    rn50: Rn50, smoke_data: Path
) -> None:
    job = submit(rn50, smoke_data, *LONG)
    job.wait_for_training()
    subprocess.run(["scancel", job.number], check=True)
    out = job.end(1, "CANCELLED")
    assert re.search(r"stopped by SIGTERM at step \d+", out)
    assert stop_of(job.run) == "aborted"
    leave_nothing(job.run)


SHORT = (
    "system.nodes=1",
    "system.ranks_per_node=1",
    "division=open",
    "eval.target=0.3",
    "seed=1",
    "log.every=5 steps",
    "checkpoint.every=20 steps",
    "eval.period=4",
    "eval.offset=3",
)
"""One rank, which reaches its target after 200 steps, with checkpoints meanwhile."""


def digest(run: Path) -> str:
    return read_json(run / "result.json")["weights_digest"]


@pytest.fixture(scope="module")
def uninterrupted(smoke_data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the weights with which SHORT ends where nothing interrupts it."""
    rn50 = Rn50(tmp_path_factory.mktemp("uninterrupted"))
    rn50.output(
        "launch",
        "smoke",
        "--launcher",
        mpi.LAUNCHER,
        *SHORT,
        f"data.path={smoke_data}",
        f"system.results={rn50.results}",
    )
    return digest(rn50.run_folder())


def begin_at_once(job: str) -> None:
    """A requeued job, which Slurm leaves in its queue for two minutes; all its time is left."""
    wait_until(lambda: state_of(job) == "PENDING")
    scontrol("update", f"jobid={job}", "starttime=now", "timelimit=60")


@pytest.mark.nightly
def test_a_job_near_its_time_limit_goes_on_from_the_queue_and_then_in_a_new_job(
    rn50: Rn50, lab: Path, smoke_data: Path, uninterrupted: str
) -> None:
    job = submit(
        rn50, smoke_data, *SHORT, "system.job.requeue=true", "watchdog.silence_s=120"
    )
    job.wait_for_checkpoint()
    rank = ranks_of(job.run)["0"]
    rank.suspend()  # Slurm looks at its time limits every 30 s: they cost no processor time
    scontrol("update", f"jobid={job.number}", "timelimit=1")
    number = int(signal.SIGUSR1)
    signalled = re.compile(
        rf"sent signal {number} to pid \d+ StepId={job.number}\.batch"
    )
    logs = list(lab.parent.glob("log/slurmd-*"))

    def is_told() -> bool:
        return any(signalled.search(log.read_text()) for log in logs)

    wait_until(is_told)
    rank.resume()
    wait_until(lambda: state_of(job.number) == "PENDING")
    refused = rn50.error("submit", "--resume", str(job.folder))
    assert f"found slurm job {job.number} in its queue or running" in refused
    begin_at_once(job.number)
    wait_until((job.folder / "job.1.log").is_file)
    job.wait_for_training()
    stopped = r"stopped by SIGUSR1 at step \d+ \(checkpoint of step \d+\)"
    assert re.search(rf"the start before: {stopped}", job.log())
    first_log = job.log("job.1.log")
    assert re.search(stopped, first_log)
    assert f"\nback into the queue: scontrol requeue {job.number}\n" in first_log
    assert job.log("exit_code.1") == "143\n"

    subprocess.run(["scancel", job.number], check=True)
    job.end(1, "CANCELLED")
    paths = (f"system.results={rn50.results}", f"data.path={smoke_data}")
    out = rn50.output("submit", "--resume", "latest", "--wait", *paths)
    assert re.match(rf"slurm job (?!{job.number} )\d+ in {job.folder} ", out)
    assert logged_keys(job.run).count("run_start") == 1
    assert digest(job.run) == uninterrupted


def power_off(lab: Path, node: str) -> None:
    """Everything that runs on a node is gone at once: slurmd, its steps and what they started."""
    pid_file = lab.parent / f"slurmd-{node}.pid"
    daemon = int(pid_file.read_text())
    victims = [psutil.Process(daemon)]
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "slurmstepd":
            with contextlib.suppress(psutil.Error):
                names = [Path(file.path).name for file in process.open_files()]
                if f"slurmd-{node}.log" in names:
                    victims += [process, *process.children(recursive=True)]
    assert len(victims) > 2, "a step ran there"
    for process in victims:
        process.suspend()  # none of them sees another one end
    for process in victims:
        process.kill()
    wait_until(lambda: not psutil.pid_exists(daemon))
    pid_file.unlink(missing_ok=True)


@pytest.fixture
def turned_on_again(lab: Path) -> Iterator[str]:
    """A node that a test may take down."""
    node = "node3"
    yield node
    subprocess.run(["/usr/sbin/slurmd", "-f", lab, "-N", node], check=True)
    finished(["scontrol", "update", f"nodename={node}", "state=resume"])
    pid = lab.parent / f"slurmd-{node}.pid"
    idle = ["sinfo", "-h", "-n", node, "-o", "%T"]
    wait_until(lambda: pid.is_file() and finished(idle).stdout == "idle\n")


@pytest.mark.nightly
def test_a_job_goes_on_with_the_nodes_that_are_left(
    rn50: Rn50, lab: Path, smoke_data: Path, turned_on_again: str
) -> None:
    """Slurm still expects it back: that its processes do not start is all there is to know."""
    job = submit(
        rn50,
        smoke_data,
        *SHORT,
        "system.nodes=3",
        "batch.per_rank=20",
        "system.job.max_restarts=1",
        "system.job.min_nodes=2",
    )
    job.wait_for_checkpoint()
    power_off(lab, turned_on_again)
    job.end(0, "COMPLETED")
    log = job.log()
    assert re.search(r"^rn50: rank 2 on \S+ failed in ", log, re.M)
    assert "2 of 3 nodes answer: going on with node1, node2\n" in log
    assert re.search(r"^RESULT success .* ranks=2 ", log, re.M)
    events = read_events(job.run / "result_0.txt")
    (resumed,) = (event for event in events if event.key == "run_resumed")
    assert resumed.metadata["ranks"] == 2
    assert resumed.metadata["ranks_before"] == 3
    steps = [record["step"] for record in metrics(job.run, "train")]
    assert steps == list(range(5, steps[-1] + 1, 5))
    leave_nothing(job.run)


@pytest.mark.nightly
def test_launch_within_an_allocation_takes_srun(rn50: Rn50, smoke_data: Path) -> None:
    done = finished(
        [
            "salloc",
            "--nodes=2",
            "--ntasks-per-node=2",
            "--quiet",
            sys.executable,
            "-m",
            "rn50.cli.entry",
            "launch",
            "smoke",
            "system.nodes=2",
            "system.ranks_per_node=2",
            "batch.per_rank=5",
            "seed=1",
            "division=open",
            "eval.target=0.3",
            "eval.period=1",
            "eval.offset=0",
            f"data.path={smoke_data}",
            f"system.results={rn50.results}",
        ],
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "smoke: 4 ranks by srun" in done.stdout
    assert re.search(r"^RESULT success ", done.stdout, re.M)
