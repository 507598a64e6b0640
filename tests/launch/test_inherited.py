"""What the shell around has left does not reach what is started: a launcher's ranks for real."""

import sys
from pathlib import Path
from typing import Any

import pytest

from rn50.config.load import load
from rn50.host.inherited import (
    DEFAULTS,
    LOCAL_JOB,
    SCHEDULERS_COMMAND,
    inherited,
    taken_away,
)
from rn50.launch.launchers import LAUNCHERS, build_job
from rn50.launch.submit import defaults_left_out, submit
from rn50.launch.supervisor import run_watched
from rn50.train.process_info import LAUNCHED_BY
from tests.conftest import read_json

PRINT = (
    "import json, os; from pathlib import Path; "
    "Path(os.environ['SEEN']).write_text(json.dumps(dict(os.environ)))"
)
LEFT = {
    "DMLC_ROLE": "server",
    "HOROVOD_CONTROLLER": "other",
    "OMPI_COMM_WORLD_RANK": "7",
    "PMIX_NAMESPACE": "1",
    "MV2_COMM_WORLD_SIZE": "9",
    "PYTHONOPTIMIZE": "2",
    "PYTHONINSPECT": "1",
    "SLURM_JOB_ID": "99",
    "SLURM_NODELIST": "node07",
    "SLURM_TASKS_PER_NODE": "2",
    "PBS_JOBID": "4.pbs",
    "OMP_NUM_THREADS": "",
}
STAYS = {
    "OMPI_MCA_btl": "tcp,self",
    "HOROVOD_CYCLE_TIME": "2",
    "CUDA_VISIBLE_DEVICES": "",
}


@pytest.mark.parametrize("launcher", ["mpirun", "gloo"])
def test_ranks_start_on_this_machine_whatever_job_is_around(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI would want srun for SLURM_JOB_ID, and have no network without it."""
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    for name, value in (LEFT | STAYS).items():
        monkeypatch.setenv(name, value)
    run = load("smoke", ["system.ranks_per_node=1"]).run
    job, environment = build_job(run, launcher, (sys.executable, "-c", PRINT))
    run_watched(
        LAUNCHERS[launcher].command(job),
        job.launchers_environment,
        tmp_path,
        1,
        None,
        0,
    )
    seen = read_json(tmp_path / "seen")
    assert not seen.items() & LEFT.items()
    assert seen["OMP_NUM_THREADS"] == "1"
    assert environment.user_set == {"HOROVOD_CYCLE_TIME": "2"}
    assert seen.items() >= STAYS.items()
    assert environment.removed["DMLC_ROLE"] == "a parameter server's"


def test_no_rank_of_another_launcher_reaches_a_launcher() -> None:
    variables: dict[str, str] = {}
    for row in LAUNCHED_BY:
        variables |= {row.rank: "3", row.local_rank: "3"}
    for started in (*LAUNCHERS, SCHEDULERS_COMMAND, LOCAL_JOB):
        for nodes in (1, 2):
            removed = taken_away(variables, started, nodes)
            assert removed.keys() == variables.keys()


def test_open_mpi_keeps_the_users_hosts() -> None:
    users = {
        "OMPI_MCA_orte_default_hostfile": "hosts",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
    }
    of_a_rank = {"OMPI_MCA_orte_hnp_uri": "3", "OMPI_MCA_ess": "^singleton"}
    assert inherited(users | of_a_rank, "mpirun") == users


STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_CPU_BIND": "quiet"}
COUNTS = {
    "SLURM_MEM_PER_CPU": "400",
    "SLURM_CPUS_PER_TASK": "2",
    "SRUN_CPUS_PER_TASK": "2",
}
JOB = {"SLURM_JOB_ID": "3", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"}
SETTINGS = {
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_CLUSTERS": "x",
    "SGE_ROOT": "/opt/sge",
    "PBS_DEFAULT": "pbs01",
}
WINS = {"SBATCH_PARTITION": "debug", "PBS_DPREFIX": "#X", "SQUEUE_STATES": "R"}


@pytest.mark.parametrize(
    ("started", "nodes", "expected"),
    [
        (SCHEDULERS_COMMAND, 1, SETTINGS),
        ("mpirun", 1, SETTINGS),
        ("mpirun", 2, SETTINGS | JOB),
        ("srun", 1, SETTINGS | JOB),
        (LOCAL_JOB, 1, SETTINGS | JOB),
    ],
)
def test_of_slurm_remains_what_is_for_the_one_that_is_started(
    started: str, nodes: int, expected: dict[str, str]
) -> None:
    passed_on = inherited(STEP | COUNTS | JOB | SETTINGS, started, nodes)
    assert passed_on == expected | {"SLURM_OVERLAP": "1"}
    assert "SLURM_OVERLAP" not in inherited(JOB, started, nodes)


def test_sbatch_does_not_see_the_interactive_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any
) -> None:
    program("sbatch", f"env >{tmp_path}/seen; echo 42")
    for name, value in (COUNTS | JOB | SETTINGS | WINS).items():
        monkeypatch.setenv(name, value)
    submit(load("smoke", [f"system.results={tmp_path}/results"]), "slurm", 1)
    lines = (tmp_path / "seen").read_text().splitlines()
    seen = {line.partition("=")[0] for line in lines}
    assert seen & {*COUNTS, *JOB, *SETTINGS, *WINS} == {*SETTINGS}
    assert defaults_left_out() == [f"not passed on ({DEFAULTS}): {', '.join(WINS)}"]
