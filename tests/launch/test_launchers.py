import sys
from pathlib import Path
from typing import Any

import pytest

from rn50.config.engines import Family
from rn50.config.load import load
from rn50.launch.doctor import mpi_rows
from rn50.launch.engine_environment import EngineSettings
from rn50.launch.environment_record import describe_environment
from rn50.launch.hosts import allocated_hosts, missing_hosts
from rn50.launch.launch_plan import Options, plan_launch
from rn50.launch.launchers import LAUNCHERS, Job, build_job, pick_launcher, pick_pmi
from rn50.launch.preflight import obstacles
from rn50.launch.run import load_for_launch
from rn50.launch.run_files import new_run_folder
from rn50.train.communication.mpi_library import MpiLibrary
from tests.conftest import refused, write_script

COMMAND = ("python", "-m", "rn50.train", "c.yaml")


ONE_NODE = Job(COMMAND, 2, 2, {"B": "2", "A": "1"})
MANY = Job(COMMAND, 2048, 4, {"A": "1"})
PYTHON = Path(sys.executable).name
HOSTS = Job(COMMAND, 4, 2, {}, hosts=("h1", "h2"))


@pytest.mark.parametrize(
    ("launcher", "job", "tokens"),
    [
        ("mpirun", ONE_NODE, "mpirun -np 2 --oversubscribe --bind-to none -x A -x B"),
        (
            "mpirun",
            MANY,
            "mpirun -np 2048 --oversubscribe --bind-to none --map-by ppr:4:node -x A",
        ),
        (
            "mpirun",
            HOSTS,
            "mpirun -np 4 --oversubscribe --bind-to none --host h1:2,h2:2 --map-by ppr:2:node",
        ),
        ("hydra", ONE_NODE, "mpiexec.hydra -n 2 -ppn 2 -bind-to none -genvlist A,B"),
        ("hydra", HOSTS, "mpiexec.hydra -n 4 -ppn 2 -hosts h1,h2 -bind-to none"),
        ("gloo", ONE_NODE, f"{PYTHON} -m rn50.launch.horovodrun --gloo -np 2"),
        (
            "gloo",
            HOSTS,
            f"{PYTHON} -m rn50.launch.horovodrun --gloo -np 4 -H h1:2,h2:2",
        ),
        (
            "srun",
            MANY,
            "srun --mpi=pmix --kill-on-bad-exit=1 --nodes=512 --ntasks=2048 --ntasks-per-node=4 "
            "--cpu-bind=none --export=ALL",
        ),
        (
            "srun",
            MANY._replace(ranks=MANY.nodes, ranks_per_node=1, pmi="pmi2"),
            "srun --mpi=pmi2 --kill-on-bad-exit=1 --nodes=512 --ntasks=512 --ntasks-per-node=1 "
            "--cpu-bind=none --export=ALL",
        ),
    ],
)
def test_a_job_as_each_launcher_takes_it(launcher: str, job: Job, tokens: str) -> None:
    program, *arguments = LAUNCHERS[launcher].command(job)
    assert [Path(program).name, *arguments] == [*tokens.split(), *COMMAND]


def test_what_root_adds() -> None:
    assert "--allow-run-as-root" in LAUNCHERS["mpirun"].command(
        ONE_NODE._replace(as_root=True)
    )


OWN = {"RN50_HOSTS": "FILE"}


@pytest.mark.parametrize(
    ("variables", "content"),
    [
        ({"SGE_JOB_HOSTLIST": "FILE", "PE_HOSTFILE": "/nowhere"}, b"n1\nn2.lab\n"),
        ({"PE_HOSTFILE": "FILE"}, b"n1 4 all.q 0,0:0,1\nn1\n\nn2.lab\n"),
        ({"PBS_NODEFILE": "FILE", "RN50_HOSTS": ""}, b"n1\nn1\nn2.lab\n"),
        ({"LSB_DJOB_HOSTFILE": "FILE"}, b"n1\nn2.lab\n"),
        ({"LSB_MCPU_HOSTS": "n1 4 n2.lab 4 n1 1"}, b""),
        # as users write it
        (OWN, b"# of our lab\nn1\nn2.lab # the new one\n"),
        (OWN, b"n1:2\nn2.lab:2\n"),
        (OWN, b"\xef\xbb\xbfn1\r\nn2.lab\r\n"),
        (OWN, b"n1 , n2.lab,\n"),
        (OWN, b"n1 slots=2\n  n2.lab slots=2\n"),
    ],
)
def test_the_hosts_of_an_allocation(
    variables: dict[str, str], content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(content)
    environment = {
        name: value.replace("FILE", str(file)) for name, value in variables.items()
    }
    assert allocated_hosts(environment) == ("n1", "n2.lab")


def test_without_an_allocation_there_are_no_hosts() -> None:
    assert allocated_hosts({}) == ()
    with refused("RN50_HOSTS: /nowhere: No such file"):
        allocated_hosts({"RN50_HOSTS": "/nowhere"})


@pytest.mark.parametrize(
    ("line", "quoted"), [("node[1-2]", r"node\[1-2\]"), ("n2,,n3", "$")]
)
def test_what_is_no_host_is_refused_by_its_line(
    line: str, quoted: str, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text(f"n1\n\n{line}\n")
    with refused(f"RN50_HOSTS: .*hosts:3: .*found {quoted}"):
        allocated_hosts({"RN50_HOSTS": str(tmp_path / "hosts")})


@pytest.mark.parametrize(
    ("variables", "launcher", "count"),
    [
        ({"RN50_HOSTS": "HOSTS"}, "mpirun", 1),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, "srun", None),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, "srun", 1),
        ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 4 n2 4"}, "mpirun", None),
        ({}, "srun", None),  # which asks for nodes itself
        ({}, "gloo", 0),
    ],
)
def test_fewer_hosts_than_nodes_are_named(
    variables: dict[str, str],
    launcher: str,
    count: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`count`: of the hosts that are found."""
    hosts = tmp_path / "hosts"
    hosts.write_text("n1\nn1\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("HOSTS", str(hosts)))
    problems = missing_hosts(load("smoke", ["system.nodes=2"]).run, launcher)
    if count is None:
        assert problems == []
    else:
        (problem,) = problems
        assert "2 hosts expected" in problem
        assert f"found {count}" in problem


@pytest.mark.parametrize(
    ("arguments", "is_bound"),
    [
        (("dgxa100_8",), True),
        (("dgxa100_8", "system.job.bind=none"), False),
        (("quick",), False),
    ],
)
def test_a_rank_with_a_gpu_is_bound_as_in_a_job(
    arguments: tuple[str, ...], is_bound: bool
) -> None:
    config, *overrides = arguments
    plan = plan_launch(load(config, overrides), Options("gloo"))
    command = plan.job_in("out").command
    assert command[0].endswith("scripts/bind.sh") == is_bound
    rank = command[is_bound : is_bound + 3]
    assert rank == [sys.executable, "-m", "rn50.train"]


def test_several_nodes_get_what_the_engines_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("n1\nn2\nn3\n")
    monkeypatch.setenv("RN50_HOSTS", str(tmp_path / "hosts"))
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("MY_PASSWORD", "hunter2")
    job, _ = build_job(load("smoke", ["system.nodes=2"]).run, "mpirun", COMMAND)
    assert job.hosts == ("n1", "n2")
    assert job.environment["NCCL_DEBUG"] == "WARN"
    assert "PATH" in job.environment
    assert "MY_PASSWORD" not in job.environment
    assert build_job(load("smoke").run, "mpirun", COMMAND)[0].hosts == ()


OPEN_MPI = MpiLibrary("libmpi.so.40", "openmpi")
MPICH = MpiLibrary("libmpi.so.12", "mpich")
CRAY = MpiLibrary("libmpi_gnu_91.so.12", "cray")


def link_horovod(monkeypatch: pytest.MonkeyPatch, library: MpiLibrary | None) -> None:
    monkeypatch.setattr("rn50.launch.launchers.horovods_mpi", lambda: library)


@pytest.mark.parametrize(
    ("library", "launcher"),
    [(OPEN_MPI, "mpirun"), (MPICH, "hydra"), (CRAY, "hydra"), (None, "gloo")],
)
def test_the_mpi_of_horovod_decides_on_the_launcher(
    monkeypatch: pytest.MonkeyPatch, library: MpiLibrary | None, launcher: str
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/nowhere/{name}")
    link_horovod(monkeypatch, library)
    assert pick_launcher(None) == launcher


@pytest.mark.parametrize(
    ("library", "launcher", "message"),
    [
        (
            OPEN_MPI,
            "hydra",
            "one of mpirun, .*srun.* expected, as .* linked to Open MPI",
        ),
        (MPICH, "mpirun", "one of gloo, .*hydra.* expected, as .* linked to MPICH"),
        (None, "srun", "a Horovod built with MPI expected, found one without"),
    ],
)
def test_a_launcher_of_another_mpi_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    library: MpiLibrary | None,
    launcher: str,
    message: str,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/nowhere/{name}")
    link_horovod(monkeypatch, library)
    with refused(f"--launcher {launcher}: .*{message}"):
        pick_launcher(launcher)
    assert pick_launcher(launcher, in_container=True) == launcher, (
        "the image has its own Horovod"
    )


NEW_SLURM = """MPI plugin types are...
\tnone
\tcray_shasta
\tpmi2
\tpmix
specific pmix plugin versions available: pmix_v4
"""
OLD_SLURM = "srun: MPI types are...\nsrun: pmi2\nsrun: openmpi\nsrun: none\n"


@pytest.mark.parametrize(
    ("listing", "family", "chosen"),
    [
        (NEW_SLURM, "openmpi", "pmix"),
        (NEW_SLURM, "mpich", "pmi2"),
        (NEW_SLURM, "cray", "cray_shasta"),
        (NEW_SLURM, None, "pmix"),
        (OLD_SLURM, "openmpi", "pmi2"),
        ("", "mpich", "pmi2"),
    ],
)
def test_srun_offers_what_the_mpi_speaks(
    listing: str, family: Family | None, chosen: str, program: Any
) -> None:
    """`listing`: of `srun --mpi=list`, of Slurm 22.05 and of 18.08."""
    program("srun", f"cat >&2 <<END\n{listing}END")
    assert pick_pmi(family) == chosen


def test_in_an_allocation_of_slurm_srun_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/nowhere/{name}")
    link_horovod(monkeypatch, OPEN_MPI)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert pick_launcher(None) == "srun"
    assert pick_launcher("gloo") == "gloo"
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert pick_launcher(None) == "gloo"
    with refused("srun on the PATH expected"):
        pick_launcher("srun")


def test_a_seed_is_drawn_anew_unless_given() -> None:
    first = load_for_launch("smoke", [], None)
    second = load_for_launch("smoke", [], None)
    assert first.run.seed != second.run.seed
    loaded = load_for_launch("smoke", ["seed=4"], 3)
    assert loaded.run.seed == 4
    assert loaded.run.system.nodes == 1
    assert loaded.run.system.ranks_per_node == 3


def test_run_folders_do_not_collide(tmp_path: Path) -> None:
    run = load("smoke", [f"system.results={tmp_path}"]).run
    assert len({new_run_folder(run) for _ in range(3)}) == 3
    with refused(r"/proc/nowhere.*cannot create"):
        new_run_folder(load("smoke", ["system.results=/proc/nowhere"]).run)


def test_environment_record_holds_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("HOROVOD_SECRET_KEY", "hunter2")
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "hunter2")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    record = describe_environment(EngineSettings({"A": "1"}, {}), "gloo", COMMAND)
    assert record.variables == {"A": "1"}
    assert record.variables_present["NCCL_DEBUG"] == "WARN"
    assert record.packages["mxnet"] == "1.9.1"
    assert "hunter2" not in str(record)


HYDRA = "HYDRA build details:\n    Version:           4.0.2"


@pytest.mark.parametrize(
    ("printed", "linked", "product"),
    [
        ("mpirun (Open MPI) 5.0.7", OPEN_MPI, "Open MPI 5.0.7"),
        (HYDRA, OPEN_MPI, "MPICH 4.0.2"),
        (
            "Intel(R) MPI Library for Linux, Version 2021.10",
            OPEN_MPI,
            "Intel MPI 2021.10",
        ),
        ("mpirun (Open MPI) 4.0.9", MPICH, "Open MPI 4.0.9"),
        ("mpirun (Open MPI) 4.0.9", OPEN_MPI, ""),
        (HYDRA, CRAY, ""),
        ("mpirun of our site", OPEN_MPI, ""),
    ],
)
def test_the_mpi_on_the_path_is_compared_with_horovods(
    printed: str,
    linked: MpiLibrary,
    product: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`product`: of the one that does not fit; the next one on the PATH that does is taken."""
    link_horovod(monkeypatch, linked)
    monkeypatch.setattr("rn50.launch.mpi_program._linked_version", lambda _: "4.1")
    right = {OPEN_MPI: "mpirun (Open MPI) 4.1.4"}.get(linked, HYDRA)
    for folder, version in (("first", printed), ("second", right)):
        write_script(tmp_path / folder / "mpirun", f"echo '{version}'")
    monkeypatch.setenv("PATH", f"{tmp_path}/first")
    fits = not product
    run = load("smoke").run
    problems = obstacles(run, "mpirun", in_container=False)
    assert len(problems) == (not fits)
    for line in problems:
        assert f"{tmp_path}/first/mpirun of {product}, but Horovod was linked" in line
    monkeypatch.setenv("PATH", f"{tmp_path}/first:{tmp_path}/second")
    assert obstacles(run, "mpirun", in_container=False) == []
    path = build_job(run, "mpirun", COMMAND)[0].launchers_environment["PATH"]
    assert path.startswith(f"{tmp_path}/{'first' if fits else 'second'}:")
    monkeypatch.setattr("rn50.launch.doctor.horovods_mpi", lambda: OPEN_MPI)
    (row,) = mpi_rows()
    assert f"{tmp_path}/first/mpirun of " in row.found
