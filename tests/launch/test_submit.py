"""`rn50 submit`: the local scheduler for real, the others' commands at the process boundary."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

from rn50.config.load import load
from rn50.host.lock import hold
from rn50.launch.job_folder import open_job
from rn50.launch.job_script import ROOT
from rn50.launch.resume import latest_interrupted
from rn50.launch.run_files import save_config
from rn50.launch.schedulers import SCHEDULERS
from rn50.launch.submit import (
    Last,
    State,
    ask,
    find_interrupted,
    last_result,
    look_at,
    plan_submission,
    submit,
    wait,
)
from rn50.launch.system_description import describe_system, read_machine
from rn50.logging.parse import read_events
from rn50.logging.records import Driver, Environment, Result, Submission, write
from rn50.logging.run_folder import RunFolder
from rn50.report.runs import read_runs
from tests.conftest import (
    Rn50,
    in_this_process,
    read_json,
    refused,
    write_file,
    write_json,
)
from tests.train.saved import CONFIG, leave_checkpoint
from tests.waiting import wait_until

FILE = Path(__file__).parents[1] / "golden/schedulers.yaml"
PRINTED = YAML(typ="safe").load(FILE)


@pytest.mark.nightly
@pytest.mark.slow
def test_five_runs_make_a_submission(rn50: Rn50, smoke_data: Path) -> None:
    done = rn50(
        "submit",
        "smoke",
        "--scheduler",
        "local",
        "--runs",
        "5",
        "--wait",
        # Open: a closed submission has to converge like the reference, on ImageNet.
        "division=open",
        "log.org=Example",
        "batch.per_rank=20",
        "eval.period=1",
        "eval.offset=0",
        "eval.target=0.4",
        f"data.path={smoke_data}",
        f"system.results={rn50.results}",
    )
    folder = rn50.run_folder()
    log = (folder / "job.log").read_text()
    assert done.returncode == 0, done.stderr + log
    assert done.stdout.count("\nRESULT success ") == 5
    seeds = set()
    for number in range(5):
        path = folder / f"results/local_n1/resnet/result_{number}.txt"
        seeds |= {event.value for event in read_events(path) if event.key == "seed"}
    assert len(seeds) == 5
    out = rn50.output("log", "check", str(folder))
    assert "5 of 5 runs pass" in out
    assert "five-runs" not in out
    assert "system-description" not in out
    assert re.search(r"^score [0-9.]+ min", log, re.M)


def test_dry_run_prints_script_and_command_and_makes_nothing(tmp_path: Path) -> None:
    results = tmp_path / "results"
    options = ["log.org=X", "system.job.options=[-g, my group]"]
    command = ["submit", "abci_2048_open", "--runs=5", "--dry-run", *options]
    done = in_this_process((*command, f"system.results={results}"))
    first, *_, last = done.stdout.splitlines()
    assert first == "#!/usr/bin/env bash"
    assert last.endswith(": qsub -terse -g 'my group' job.sh")
    assert not results.exists()


# --- the schedulers' own commands, replaced by programs that say what the real ones say ---


SAYS = {
    "slurm": ("sbatch", "42;cluster", "squeue", "Invalid job id specified"),
    "sge": ("qsub", "42", "qstat", "Following jobs do not exist: 42"),
    "pbs": ("qsub", "42.server", "qstat", "qstat: 42 Job has finished"),
}
CANCEL = {"slurm": "scancel -M cluster 42", "sge": "qdel 42", "pbs": "qdel 42.server"}
ABOUT = {"slurm": "-M cluster -h -o %T %r -j 42", "sge": "-j 42", "pbs": "-f 42.server"}
BANNER = "   Welcome to the Cluster6 Supercomputer\nINFO: your project has 1200 hours left\n\n"


def interrupted(folder: Path) -> Any:
    """What goes on of a folder, without a CONFIG beside it."""
    return find_interrupted(str(folder), None, [])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait without pauses."""
    monkeypatch.setattr("rn50.launch.submit.POLL_S", 0.01)
    monkeypatch.setattr("rn50.launch.submit.SETTLE_S", 0.05)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", SAYS)
def test_submission_and_waiting(name: str, tmp_path: Path, program: Any) -> None:
    command, job, state, gone = SAYS[name]
    program(command, f"printf '%s' '{BANNER}{job}\n\n'")
    loaded = load("smoke", [f"system.results={tmp_path}/results"])
    plan, found_job = submit(loaded, name, 1)
    assert found_job == job
    assert (plan.folder / "job.sh").read_text() == plan.script
    (row,) = read_runs([tmp_path])
    assert row.folder == plan.folder
    assert row.scheduler == name
    assert row.job == job
    assert plan.scheduler.cancel(job) == CANCEL[name]
    program(state, f'echo "$*" >{tmp_path}/asked; echo RUNNING None')
    assert look_at(plan.folder, name, job) == ("queued", f"{name} job {job}")
    assert (tmp_path / "asked").read_text() == f"{ABOUT[name]}\n"
    assert ask(plan.scheduler, job, plan.folder) == State()
    program(state, "echo cannot reach the server >&2; exit 1")
    assert look_at(plan.folder, name, job)[0] == "unknown"
    with refused(f"cannot ask {state}: cannot reach"):
        interrupted(plan.folder)
    program(state, f"echo '{gone}' >&2; exit 1")
    assert ask(plan.scheduler, job, plan.folder) is None
    assert look_at(plan.folder, name, job)[0] == "cancelled"
    with refused("ended without an exit code"):
        wait(plan, job)
    (plan.folder / "exit_code").write_text("3\n")
    program(state, "exit 1")  # it cannot be asked
    assert wait(plan, job) == 3
    (plan.folder / "job.log").write_text(
        "data: ...\nrn50: error: data.path: a\x1bb\n\n"
    )
    failed = ("failed", "rn50: error: data.path: a\\x1bb")
    assert look_at(plan.folder, name, job) == failed


@pytest.mark.parametrize("case", PRINTED["ids"])
def test_the_id_is_found_wherever_it_stands(case: dict[str, Any]) -> None:
    assert SCHEDULERS[case["scheduler"]].job_id(case["printed"]) == case["job"]


@pytest.mark.parametrize("case", PRINTED["reasons"])
def test_why_a_job_waits_and_when_it_never_begins(
    case: dict[str, Any], tmp_path: Path, program: Any
) -> None:
    name = case["scheduler"]
    program(SAYS[name][2], f"cat <<'END'\n{case['printed']}\nEND")
    state = ask(SCHEDULERS[name], "42", tmp_path)
    why = case["why"]
    if why is None:
        assert state is None
    elif why.startswith(("can never", "is held")):
        end = f"; end it: {SCHEDULERS[name].cancel('42')}"
        assert state == State(why + end, can_begin=False)
    else:
        assert state == State(why)


def test_a_job_that_goes_back_into_its_queue_has_not_ended(
    tmp_path: Path, program: Any
) -> None:
    program("squeue", "echo COMPLETING None")
    for requeue in (True, False):
        loaded = load("smoke", [f"system.job.requeue={requeue}"])
        plan = plan_submission(loaded, "slurm", 1, tmp_path)
        (tmp_path / "job.sh").write_text(plan.script)
        assert (ask(plan.scheduler, "42", tmp_path) is not None) == requeue


@pytest.mark.usefixtures("impatient")
def test_waiting_tells_why_once_and_ends_where_a_job_can_never_begin(
    tmp_path: Path, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    states = (
        "PENDING Priority",
        "PENDING Priority",
        "PENDING Resources",
        "PENDING BadConstraints",
    )
    lines = "\n".join(states)
    program(
        "squeue",
        f"cd {tmp_path}; [[ -e left ]] || printf '%s\\n' '{lines}' >left\n"
        "head -1 left; sed -i 1d left",
    )
    plan = plan_submission(load("smoke"), "slurm", 1, tmp_path)
    with refused("can never begin"):
        wait(plan, "42")
    assert capsys.readouterr().out.splitlines() == [
        "slurm job 42 waits: Priority",
        "slurm job 42 waits: Resources",
    ]


def test_a_job_in_which_no_run_has_begun(tmp_path: Path) -> None:
    assert look_at(tmp_path, None, None) == ("failed", "not known to any scheduler")
    # no id, and never an option
    assert look_at(tmp_path, "slurm", "-w x")[0] == "failed"
    with open_job(tmp_path, log=False):
        assert look_at(tmp_path, None, None) == (
            "running",
            "none of its runs is at work",
        )
    (tmp_path / "exit_code").write_text("running\n")
    # its lock is not open
    assert look_at(tmp_path, "local", str(os.getpid()))[0] == "killed"
    (tmp_path / "exit_code").write_text("143\n")
    assert look_at(tmp_path, None, None) == ("stopped", "exit code 143")


def test_a_local_job_lasts_as_long_as_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as long as its process number, which another process may have later; and whatever a bash
    prints of its own."""
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    (tmp_path / "greeting").write_text("echo hello")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "greeting"))
    job = tmp_path / "job"
    job.mkdir()
    (job / "config.yaml").write_text(load("smoke").to_yaml())
    (job / "job.sh").write_text("read -r")
    with subprocess.Popen(["bash", "job.sh"], cwd=job, stdin=subprocess.PIPE) as script:
        number = str(script.pid)
        write(job / "submission.json", Submission("local", number))
        assert look_at(job, "local", number)[0] == "queued"
        with refused(f"found local job {number} in its queue .*: kill {number}"):
            interrupted(job)
        script.kill()
        wait_until(lambda: look_at(job, "local", number)[0] == "cancelled")
    with hold(job / ".job.lock"), refused(f"in use by process {os.getpid()}"):
        interrupted(job)  # as from another machine


@pytest.mark.parametrize(
    ("script", "reason", "stays"),
    [
        (
            "echo 'sbatch: error: no' >&2; exit 1",
            "code 1: sbatch: error: no; --dr",
            False,
        ),
        ("printf 'no\nid'", "id expected, found: no id; the job may be in", True),
        ("echo Socket timed out; exit 1", "code 1: .* found: Socket timed out", True),
        ("kill -9 $$", "killed by SIGKILL: .* the job may be in", True),
        ("echo hello\nsleep 9", "sbatch: no answer in 1 s; the job may", True),
    ],
)
def test_a_job_that_may_be_queued_keeps_its_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Any,
    script: str,
    reason: str,
    stays: bool,
) -> None:
    monkeypatch.setattr("rn50.launch.submit.SUBMIT_S", 1.0)
    program("sbatch", script)
    loaded = load("smoke", [f"system.results={tmp_path}/results"])
    with refused(reason) as caught:
        submit(loaded, "slurm", 1)
    assert "\n" not in str(caught.value)
    rows = read_runs([tmp_path])
    assert [*(tmp_path / "results/smoke").iterdir()] == [row.folder for row in rows]
    assert len(rows) == stays
    for row in rows:
        why = "slurm was given the job, and named no id"
        assert look_at(row.folder, row.scheduler, row.job) == ("unknown", why)


def test_the_origins_of_a_job_are_those_of_the_command_line_and_the_preset(
    tmp_path: Path, program: Any
) -> None:
    program("sbatch", "echo Submitted batch job 42 >&2")
    results = f"system.results={tmp_path}/results"
    plan, _ = submit(load("smoke", [results, "log.every=7 steps"]), "slurm", 1)
    run = plan.folder / "run_0"
    run.mkdir()
    save_config(load(plan.folder / "config.yaml", ["seed=3"]), RunFolder(run))
    origins = read_json(RunFolder(run).origins)
    assert origins["log.every"] == "command line"
    assert "smoke.yaml:" in origins["optimizer.base_lr"]
    assert origins["seed"] == "command line"


def test_an_id_counts_whatever_the_exit_code(
    tmp_path: Path, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program("sbatch", r"printf 'Guthaben f\374r\n' >&2; echo 42; echo Danke; exit 1")
    loaded = load("smoke", [f"system.results={tmp_path}/results"])
    plan, job = submit(loaded, "slurm", 1)
    assert job == "42"
    line = (
        "job 42 is in its queue, but sbatch ended with exit code 1: Guthaben f\ufffdr"
    )
    assert capsys.readouterr().err.startswith(line)
    said = (plan.folder / "sbatch.txt").read_text()
    assert said == "42\nDanke\nGuthaben f\ufffdr\n"


def test_a_scheduler_that_does_not_answer_is_asked_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any
) -> None:
    monkeypatch.setattr("rn50.host.programs.ask.__defaults__", (1.0, None, None))
    program("squeue", "sleep 60")
    begun_s = time.monotonic()
    for _ in range(3):
        why = "cannot ask squeue: no answer in 20 s"
        assert look_at(tmp_path, "slurm", "42") == ("unknown", why)
    assert time.monotonic() - begun_s < 3
    monkeypatch.setattr("rn50.launch.submit._silent_until_s", {})
    program("squeue", "echo PENDING Resources")
    assert look_at(tmp_path, "slurm", "42")[0] == "queued"


def test_where_things_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for settings, home, python in (
        ([], str(ROOT), sys.executable),
        (["home='/opt/rn 50'"], "/opt/rn 50", "/opt/rn 50/.venv/bin/python"),
        (["home=/opt/rn50", "container=x"], str(ROOT), sys.executable),
        (["python=/opt/python"], str(ROOT), "/opt/python"),
    ):
        overrides = [f"system.job.{setting}" for setting in settings]
        loaded = load("smoke", ["data.path=/elsewhere", *overrides])
        script = plan_submission(loaded, "slurm", 1, Path("f")).script
        assert f"start={tmp_path}\n" in script
        assert f"home={shlex.quote(home)}\n" in script
        assert f"python={shlex.quote(python)}\n" in script
        assert """ 'data.path="/elsewhere"')\n""" in script


# --- the machine's page ---


def test_system_page_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sockets of two cores of two threads."""
    for cpu in range(8):
        path = tmp_path / f"cpu{cpu}/topology/physical_package_id"
        write_file(path, f"{cpu % 4 // 2}\n")
    memory = SimpleNamespace(total=395997152 << 10)
    release = {"NAME": "CentOS Linux", "PRETTY_NAME": "CentOS Linux 7 (Core)"}
    monkeypatch.setattr("rn50.launch.system_description.CPUS", tmp_path)
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 8 if logical else 4)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
    run = load("abci_2048_open").run
    environment = Environment(
        packages={"mxnet-cu112": "1.9.1", "horovod": "0.28.1"},
        gpus=Driver("535.129.03", devices=("Tesla V100-SXM2-16GB (7.0)",) * 4),
        machine=read_machine(),
    )
    page = describe_system(run, environment)
    assert all(isinstance(value, str) for value in page.values())
    assert page["other_software_stack"].startswith("horovod 0.28.1, NVIDIA driver")
    expected = {
        "host_processors_per_node": "2",
        "host_processor_core_count": "2",
        "host_processor_vcpu_count": "4",
        "host_memory_capacity": "378 GB",
        "operating_system": "CentOS Linux 7 (Core)",
        "framework": "MXNet (mxnet-cu112 1.9.1)",
        "accelerator_model_name": "Tesla V100-SXM2-16GB",
        "accelerators_per_node": "4",
        "accelerator_memory_capacity": "16 GB",
    }
    assert {key: page[key] for key in expected} == expected
    inside = load("abci_2048_open", ["system.job.container=x"]).run
    page = describe_system(inside, Environment(packages={"horovod": "0.28.1"}))
    assert page["framework"] == "MXNet"


# --- submit --resume: which job goes on, and which is refused ---


@pytest.fixture
def job(tmp_path: Path, program: Any) -> Path:
    """An interrupted job of five runs, whose id Slurm does not know any more."""
    job = tmp_path / "job"
    run = job / "run_0"
    checkpoints = run / "checkpoint"
    checkpoints.mkdir(parents=True)
    leave_checkpoint(checkpoints)
    (run / "environment.json").write_text("{}")
    preset, _ = CONFIG
    for folder, loaded in ((run, load(*CONFIG)), (job, load(preset))):
        (folder / "config.yaml").write_text(loaded.to_yaml())
    write(job / "submission.json", Submission("slurm", "42", 5))
    program("squeue", "echo slurm_load_jobs error: Invalid job id specified")
    return job


def test_a_job_is_found_by_its_folder_and_by_that_of_its_run(job: Path) -> None:
    run = job / "run_0"
    for folder in (job, run):
        overrides = ["system.job.walltime='02:00:00'"]
        loaded, last = find_interrupted(str(folder), None, overrides)
        assert last == Last(job, "slurm", 5)
        assert loaded.run.system.job.walltime == "02:00:00"
    # what a stranger wrote of the submission is no more than unknown
    write_json(job / "submission.json", {"scheduler": ["x"], "job": 1})
    assert interrupted(job)[1] == Last(job, None, 1)
    # the result that was written last counts
    write_json(job / "result.json", {"status": "new"})
    earlier = run / "result.json"
    write_json(earlier, {"status": "old"})
    os.utime(earlier, (0, 0))
    assert last_result(job) == Result("new")
    (job / "config.yaml").unlink()  # no job is around the run
    assert interrupted(run)[1] == Last(run, None, 1)


def test_the_latest_job_needs_no_checkpoint(job: Path) -> None:
    (job.parent / "smoke").mkdir()
    top = job.rename(job.parent / "smoke/2026")
    results = [f"system.results={job.parent}"]
    assert find_interrupted("latest", "smoke", results)[1].folder == top
    shutil.rmtree(top / "run_0/checkpoint")
    assert find_interrupted("latest", None, results)[1].folder == top
    with refused("an interrupted run with a checkpoint"):
        latest_interrupted(None, results)


def test_a_run_that_a_limit_ended_is_resumed_by_the_command_that_it_prints(
    job: Path,
) -> None:
    """Its job has ended with exit code 1, as one that missed its target."""
    stopped = {"limit": "limits.time_s", "step": 7}
    write_json(job / "run_0/result.json", {"status": "aborted", "stopped": stopped})
    (job / "exit_code").write_text("1\n")
    _, last = find_interrupted(str(job), None, ["limits.time_s=null"])
    assert last == Last(job, "slurm", 5)


def test_what_cannot_go_on_is_refused(job: Path, tmp_path: Path, program: Any) -> None:
    with refused("no CONFIG beside a folder expected, found smoke"):
        find_interrupted(str(job), "smoke", [])
    with refused(r"optimizer\.base_lr"):
        find_interrupted(str(job), None, ["optimizer.base_lr=7"])
    with refused(r"the folder of a job or of a run expected, found no .*/x"):
        interrupted(tmp_path / "x")
    program("squeue", "echo PENDING")
    with refused(r"found slurm job 42 in its queue .*: scancel 42"):
        interrupted(job)
    program("squeue", "true")
    (job / "exit_code").write_text("1\n")
    write_json(job / "run_0/result.json", {"status": "aborted"})
    with refused(r"job or run expected, .* has ended"):
        interrupted(job)


def test_too_few_hosts_make_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RN50_HOSTS", "hosts")
    (tmp_path / "hosts").write_text("localhost\n")
    with refused(r"system\.nodes: 2 hosts expected .* found 1 \(localhost\)"):
        submit(load("smoke", ["system.nodes=2"]), "local", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]
