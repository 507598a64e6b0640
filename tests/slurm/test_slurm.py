"""`rn50 submit` on a real Slurm: munge, slurmctld and three slurmd on this machine. At night what
takes minutes: a time limit, nodes that fail."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rn50.logging.parse import read_events
from rn50.train.checkpoint.folder import checkpoints_in
from rn50.train.communication.mpi_library import MPICH_ABI
from tests import mpi
from tests.conftest import Rn50, metrics, read_json
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
    listed = finished(
        ["find", "/usr/lib", "-name", "libpmix.so", "-print", "-quit"],
    )
    return (
        None
        if listed.stdout
        else "no libpmix.so for Slurm's PMIx plugin (apt: libpmix-dev)"
    )


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


def state_of(job: str) -> str:
    done = finished(["scontrol", "show", "job", job], check=True)
    match = re.search(r"JobState=(\w+)", done.stdout)
    assert match, done.stdout
    return match[1]


def settled_state(job: str) -> str:
    """The state once Slurm is done with the job."""
    wait_until(lambda: state_of(job) not in ("PENDING", "RUNNING", "COMPLETING"))
    return state_of(job)


def submit(
    rn50: Rn50, smoke_data: Path, *arguments: str
) -> tuple[subprocess.Popen[str], str, Path]:
    """A submitted run that `--wait`s: (process, job, folder)."""
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
    return process, match[1], Path(match[2])


def wait_for_training(folder: Path) -> None:
    log = folder / "job.log"
    wait_until(lambda: log.is_file() and "images/s" in log.read_text())


def test_two_nodes_give_the_log_of_a_local_run(
    rn50: Rn50,
    smoke_data: Path,
    smoke_run: Callable[[str], Path],
) -> None:
    process, job, folder = submit(rn50, smoke_data, "seed=1")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err + (folder / "job.log").read_text()
    assert re.search(r"^RESULT success .*official_checker=PASS\(4\.0\.0\)", out, re.M)
    assert settled_state(job) == "COMPLETED"
    run = folder / "run_0"
    assert read_json(run / "environment.json")["launcher"] == "srun"
    assert (run / "stderr.log").read_text().count("bind: local rank 0 of 1") == 2
    page = read_json(folder / "systems/local_n2.json")
    assert page["number_of_nodes"] == "2"

    local = smoke_run(mpi.LAUNCHER)
    # The same two ranks, the same images in the same order: every value of the log is the same.
    found, expected = (shape(read_events(x / "result_0.txt")) for x in (run, local))
    assert found == expected
    assert digest(run) == digest(local)


def ranks_of(folder: Path) -> list[psutil.Process]:
    return [
        p
        for p in psutil.process_iter(["cmdline"])
        if "rn50.train" in (p.info["cmdline"] or [])
        and str(folder / "run_0") in p.info["cmdline"]
        and Path(p.info["cmdline"][0]).name.startswith("python")
    ]


def test_a_killed_rank_fails_the_job_at_once(rn50: Rn50, smoke_data: Path) -> None:
    process, job, folder = submit(rn50, smoke_data, *LONG)
    wait_for_training(folder)
    (victim,) = [p for p in ranks_of(folder) if p.environ().get("SLURM_PROCID") == "1"]
    victim.kill()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1, out + err
    failure = r"rank 1 on \S+ failed in .*killed by SIGKILL"
    told = re.search(rf"^rn50: error: ({failure}); details: ", out, re.M)
    assert told, out
    assert settled_state(job) == "FAILED"
    assert (folder / "job.log").read_text().count(told[1]) == 1
    result = read_json(folder / "run_0/result.json")
    assert (result["status"], result["reason"]) == ("failed", told[1])
    last = read_events(folder / "run_0/result_0.txt")[-1]
    assert (last.key, last.metadata["status"]) == ("run_stop", "aborted")
    leave_nothing(folder)


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


def one_node(
    rn50: Rn50, smoke_data: Path, *more: str
) -> tuple[subprocess.Popen[str], str, Path]:
    return submit(rn50, smoke_data, *SHORT, *more)


def wait_for_checkpoint(folder: Path) -> None:
    wait_until(lambda: checkpoints_in(folder / "run_0/checkpoint"))


def digest(run: Path) -> str:
    return read_json(run / "result.json")["weights_digest"]


@pytest.fixture(scope="module")
def uninterrupted(smoke_data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the weights with which SHORT ends where nothing interrupts it."""
    rn50 = Rn50(tmp_path_factory.mktemp("uninterrupted"))
    results = (f"data.path={smoke_data}", f"system.results={rn50.results}")
    rn50.output(
        "launch",
        "smoke",
        "--launcher",
        mpi.LAUNCHER,
        *SHORT,
        *results,
    )
    return digest(rn50.run_folder())


def begin_at_once(job: str) -> None:
    """A requeued job, which Slurm leaves in its queue for two minutes; all its time is left."""
    wait_until(lambda: state_of(job) == "PENDING")
    now = [f"jobid={job}", "starttime=now", "timelimit=60"]
    subprocess.run(["scontrol", "update", *now], check=True)


def test_a_requeued_job_goes_on(
    rn50: Rn50, smoke_data: Path, uninterrupted: str
) -> None:
    process, job, folder = one_node(rn50, smoke_data, "system.job.requeue=true")
    wait_for_checkpoint(folder)
    subprocess.run(["scontrol", "requeue", job], check=True)
    begin_at_once(job)
    out, err = process.communicate(timeout=300)
    log = (folder / "job.log").read_text()
    assert process.returncode == 0, out + err + log
    assert settled_state(job) == "COMPLETED"
    stopped = r"stopped by SIGTERM at step \d+"
    assert re.search(stopped, (folder / "job.1.log").read_text())
    assert re.search(rf"the start before: {stopped} ", log)
    assert (folder / "exit_code.1").read_text() == "143\n"
    keys = [event.key for event in read_events(folder / "run_0/result_0.txt")]
    assert (keys.count("run_start"), keys.count("run_resumed")) == (1, 1)
    assert digest(folder / "run_0") == uninterrupted


@pytest.mark.nightly
def test_a_job_near_its_time_limit_goes_on_from_the_queue(
    rn50: Rn50,
    lab: Path,
    smoke_data: Path,
    uninterrupted: str,
) -> None:
    process, job, folder = one_node(
        rn50, smoke_data, "system.job.requeue=true", "watchdog.silence_s=120"
    )
    wait_for_checkpoint(folder)
    (rank,) = ranks_of(folder)
    rank.suspend()  # Slurm looks at its time limits every 30 s: they cost no processor time
    subprocess.run(["scontrol", "update", f"jobid={job}", "timelimit=1"], check=True)
    told = re.compile(
        rf"sent signal {int(signal.SIGUSR1)} to pid \d+ StepId={job}\.batch"
    )
    logs = list(lab.parent.glob("log/slurmd-*"))
    wait_until(lambda: any(told.search(log.read_text()) for log in logs))
    rank.resume()
    wait_until(lambda: state_of(job) == "PENDING")
    refused = rn50.error("submit", "--resume", str(folder))
    assert f"found slurm job {job} in its queue or running" in refused
    begin_at_once(job)
    wait_until((folder / "job.1.log").is_file)
    wait_for_training(folder)
    log = (folder / "job.log").read_text()
    stopped = r"stopped by SIGUSR1 at step \d+ \(checkpoint of step \d+\)"
    assert re.search(rf"the start before: {stopped}", log)
    log = (folder / "job.1.log").read_text()
    assert re.search(stopped, log)
    assert f"\nback into the queue: scontrol requeue {job}\n" in log
    assert (folder / "exit_code.1").read_text() == "143\n"
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert digest(folder / "run_0") == uninterrupted


def power_off(lab: Path, node: str) -> None:
    """Everything that runs on a node is gone at once: slurmd, its steps and what they started."""
    victims = [psutil.Process(int((lab.parent / f"slurmd-{node}.pid").read_text()))]
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error, OSError):
            if process.info["name"] == "slurmstepd":
                files = [
                    str(fd.readlink())
                    for fd in Path(f"/proc/{process.pid}/fd").iterdir()
                ]
                if any(f"/slurmd-{node}.log" in file for file in files):
                    victims += [process, *process.children(recursive=True)]
    assert len(victims) > 2, "a step ran there"
    for process in victims:
        process.suspend()  # none of them sees another one end
    for process in victims:
        process.kill()
    wait_until(lambda: not any(psutil.pid_exists(p.pid) for p in victims[:1]))
    (lab.parent / f"slurmd-{node}.pid").unlink(missing_ok=True)


@pytest.fixture
def turned_on_again(lab: Path) -> Iterator[str]:
    """A node that a test may take down."""
    node = "node3"
    yield node
    subprocess.run(["/usr/sbin/slurmd", "-f", lab, "-N", node], check=True)
    subprocess.run(
        ["scontrol", "update", f"nodename={node}", "state=resume"], check=False
    )
    pid = lab.parent / f"slurmd-{node}.pid"
    idle = ["sinfo", "-h", "-n", node, "-o", "%T"]
    wait_until(lambda: pid.is_file() and finished(idle).stdout == "idle\n")


@pytest.mark.nightly
def test_a_job_goes_on_with_the_nodes_that_are_left(
    rn50: Rn50,
    lab: Path,
    smoke_data: Path,
    turned_on_again: str,
) -> None:
    """Slurm still expects it back: that its processes do not start is all there is to know."""
    process, job, folder = submit(
        rn50,
        smoke_data,
        "system.nodes=3",
        "batch.per_rank=20",
        "seed=1",
        "division=open",
        "eval.target=0.3",
        "log.every=5 steps",
        "checkpoint.every=20 steps",
        "eval.period=4",
        "eval.offset=3",
        "system.job.max_restarts=1",
        "system.job.min_nodes=2",
    )
    wait_for_checkpoint(folder)
    power_off(lab, turned_on_again)
    out, err = process.communicate(timeout=300)
    log = (folder / "job.log").read_text()
    assert process.returncode == 0, out + err + log
    assert settled_state(job) == "COMPLETED"
    assert re.search(r"^rn50: rank 2 on \S+ failed in ", log, re.M)
    assert "2 of 3 nodes answer: going on with node1, node2\n" in log
    assert re.search(r"^RESULT success .* ranks=2 ", log, re.M)
    (resumed,) = [
        event
        for event in read_events(folder / "run_0/result_0.txt")
        if event.key == "run_resumed"
    ]
    assert (resumed.metadata["ranks"], resumed.metadata["ranks_before"]) == (2, 3)
    steps = [record["step"] for record in metrics(folder / "run_0", "train")]
    assert steps == list(range(5, steps[-1] + 1, 5))
    leave_nothing(folder / "run_0")


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
