"""Which nodes are left after a failure, and the config to go on with; programs are stand-ins that
know which nodes are dead (tests/slurm has the real ones)."""

from pathlib import Path

import pytest

from rn50.config.load import Loaded, load
from rn50.config.plan import build_plan
from rn50.launch import nodes_left
from rn50.launch.launch_plan import LaunchPlan, Options, plan_launch
from rn50.launch.nodes_left import on_nodes_left
from tests.conftest import refused, write_script
from tests.waiting import leave_nothing

PROGRAMS = {
    "squeue": 'echo "node[1-4]"',
    "scontrol": "cat ALLOCATED",
    # --nodelist=A,B: fails where one of them is dead, as Slurm's does.
    "srun": """
for word in "$@"; do
  case $word in
    --mpi=list) echo pmix; exit ;;
    --nodelist=*) nodes=${word#*=} ;;
  esac
done
echo "$*" >>CALLS
for dead in $(cat DEAD); do
  case ",$nodes," in *,$dead,*) exit 1 ;; esac
done""",
}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four nodes that answer: write names to `DEAD` and `ALLOCATED`."""
    for name, script in PROGRAMS.items():
        for file in ("ALLOCATED", "DEAD", "CALLS"):
            script = script.replace(file, str(tmp_path / file))
        write_script(tmp_path / "bin" / name, script)
    (tmp_path / "ALLOCATED").write_text("node1\nnode2\nnode3\nnode4\n")
    (tmp_path / "DEAD").write_text("")
    (tmp_path / "CALLS").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return tmp_path


def run_of(folder: Path, *overrides: str) -> Loaded:
    shape = ("system.nodes=4", "system.ranks_per_node=2", "batch.per_rank=8", "seed=1")
    loaded = load("smoke", [*shape, "system.job.min_nodes=2", *overrides])
    (folder / "config.yaml").write_text(loaded.to_yaml())
    return loaded


def plan_of(loaded: Loaded) -> LaunchPlan:
    return plan_launch(loaded, Options(), "srun")


def test_where_all_answer_or_no_fewer_are_allowed_the_run_stays_as_it_is(
    slurm: Path,
) -> None:
    loaded = run_of(slurm)
    assert on_nodes_left(plan_of(loaded), slurm) == (loaded, ())


def test_where_no_fewer_are_allowed_it_waits_for_nodes_that_do_not_answer(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nodes_left, "POLL_S", 0.01)
    loaded = run_of(slurm, "system.job.min_nodes=null")
    (slurm / "DEAD").write_text("node3")
    srun = slurm / "bin/srun"
    script = srun.read_text()
    srun.write_text(script.replace("exit 1", f"rm {slurm}/DEAD; exit 1"))
    assert on_nodes_left(plan_of(loaded), slurm) == (loaded, ())
    assert not (slurm / "DEAD").exists()
    assert capfd.readouterr().out == "node3: no answer, waiting up to 300 s\n"
    assert (slurm / "CALLS").read_text().count("--nodelist=node3") == 2
    srun.write_text("#!/bin/sh\nexit 1\n")
    loaded = run_of(slurm, "system.job.min_nodes=null", "watchdog.start_s=0.1")
    # the start says what is wrong
    assert on_nodes_left(plan_of(loaded), slurm) == (loaded, ())


def test_one_that_starts_nothing_in_time_is_dead(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_left, "PROBE_S", 2.0)
    srun = slurm / "bin/srun"
    script = srun.read_text()
    srun.write_text(script.replace("exit 1", "sleep 600"))
    (slurm / "DEAD").write_text("node4")
    _, hosts = on_nodes_left(plan_of(run_of(slurm)), slurm)
    assert hosts == ("node1", "node2", "node3")
    leave_nothing(Path("sleep 600"))


@pytest.mark.parametrize("slurm_knows", [True, False])
def test_a_dead_node_goes_whether_slurm_knows_of_it_or_not(
    slurm: Path, capfd: pytest.CaptureFixture[str], slurm_knows: bool
) -> None:
    (slurm / "DEAD").write_text("node3")
    if slurm_knows:
        (slurm / "ALLOCATED").write_text("node1\nnode2\nnode4\n")
    loaded, hosts = on_nodes_left(plan_of(run_of(slurm)), slurm)
    assert hosts == ("node1", "node2", "node4")
    run = loaded.run
    assert run.system.nodes == 3
    assert run.batch.per_rank == 16
    assert run.batch.active_ranks == 4
    assert run.system.job.min_nodes == 2
    assert run.seed == 1
    out = capfd.readouterr().out
    assert "3 of 4 nodes answer: going on with node1, node2, node4" in out


def test_a_spare_node_takes_the_place_of_a_dead_one(slurm: Path) -> None:
    (slurm / "DEAD").write_text("node1")
    began = run_of(slurm, "system.nodes=3", "system.job.min_nodes=3")
    loaded, hosts = on_nodes_left(plan_of(began), slurm)
    assert hosts == ("node2", "node3", "node4")
    assert loaded.run == began.run, "as many ranks with the same shares"


def test_too_few_are_left(slurm: Path) -> None:
    (slurm / "DEAD").write_text("node1 node3 node4")
    with refused(r"system\.job\.min_nodes: 2 expected, 1 of 4 nodes answer"):
        on_nodes_left(plan_of(run_of(slurm)), slurm)


def test_every_batch_of_a_schedule_stays(slurm: Path) -> None:
    changes = (
        "batch.changes=[{after_epoch: 1, per_rank: 6}, {after_epoch: 2, per_rank: 11}]"
    )
    began = run_of(slurm, changes, "batch.active_ranks=7")
    (slurm / "DEAD").write_text("node4")
    loaded, _ = on_nodes_left(plan_of(began), slurm)
    segments_before = build_plan(began.run).segments
    after = build_plan(loaded.run).segments
    for segment, expected in zip(after, segments_before, strict=True):
        assert segment.global_batch_size == expected.global_batch_size
        assert segment.first_step == expected.first_step
    assert [segment.per_rank for segment in after] == [14, 8, 22]
    assert [segment.active_ranks for segment in after] == [4, 6, 4]


def test_hosts_of_a_file_are_probed_by_mpirun(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slurm / "hosts").write_text("h1 slots=2\nh2 slots=2\nh3 slots=2\nh4 slots=2\n")
    monkeypatch.setenv("RN50_HOSTS", str(slurm / "hosts"))
    write_script(slurm / "bin/mpirun", 'case "$*" in *h2*) exit 1 ;; esac')
    plan = plan_launch(run_of(slurm), Options(), "mpirun")
    loaded, hosts = on_nodes_left(plan, slurm)
    assert hosts == ("h1", "h3", "h4")
    assert loaded.run.system.nodes == 3
