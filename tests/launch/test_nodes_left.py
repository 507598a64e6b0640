"""Which nodes are left after a failure, and the config to go on with; programs are stand-ins that
know which nodes are dead (tests/slurm has the real ones)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.load import Loaded, load
from rn50.config.plan import build_plan
from rn50.launch import nodes_left
from rn50.launch.nodes_left import on_nodes_left
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
for dead in $(cat DEAD); do
  case ",$nodes," in *,$dead,*) exit 1 ;; esac
done""",
}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four nodes that answer: write names to `DEAD` and `ALLOCATED`."""
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        for file in ("ALLOCATED", "DEAD"):
            text = text.replace(file, str(tmp_path / file))
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    (tmp_path / "ALLOCATED").write_text("node1\nnode2\nnode3\nnode4\n")
    (tmp_path / "DEAD").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return tmp_path


def run_of(folder: Path, *overrides: str) -> Loaded:
    of = ("system.nodes=4", "system.ranks_per_node=2", "batch.per_rank=8", "seed=1")
    loaded = load("smoke", [*of, "system.job.min_nodes=2", *overrides])
    (folder / "config.yaml").write_text(loaded.to_yaml())
    return loaded


@pytest.mark.parametrize(("dead", "fewer"), [("", "2"), ("node3", "null")])
def test_where_all_answer_or_no_fewer_are_allowed_the_run_stays_as_it_is(
    slurm: Path, dead: str, fewer: str
) -> None:
    (slurm / "DEAD").write_text(dead)
    loaded = run_of(slurm, f"system.job.min_nodes={fewer}")
    assert on_nodes_left(loaded, "srun", slurm) == (loaded, ())


def test_one_that_starts_nothing_in_time_is_dead(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_left, "PROBE_S", 2.0)
    slow = (slurm / "bin/srun").read_text().replace("exit 1", "sleep 600")
    (slurm / "bin/srun").write_text(slow)
    (slurm / "DEAD").write_text("node4")
    _, hosts = on_nodes_left(run_of(slurm), "srun", slurm)
    assert hosts == ("node1", "node2", "node3")
    leave_nothing(Path("sleep 600"))


@pytest.mark.parametrize(
    ("dead", "allocated", "overrides", "hosts", "batch"),
    [
        ("node3", "", (), "node1 node2 node4", (16, 4)),
        ("node3", "node1 node2 node4", (), "node1 node2 node4", (16, 4)),  # Slurm knows of it
        # A spare node: as many ranks with the same shares.
        ("node1", "", ("system.nodes=3", "system.job.min_nodes=3"), "node2 node3 node4", (8, None)),
    ],
)
def test_nodes_that_answer_take_the_global_batch(
    slurm: Path,
    dead: str,
    allocated: str,
    overrides: tuple[str, ...],
    hosts: str,
    batch: tuple[int, int | None],
) -> None:
    (slurm / "DEAD").write_text(dead)
    if allocated:
        (slurm / "ALLOCATED").write_text(allocated)
    loaded, found = on_nodes_left(run_of(slurm, *overrides), "srun", slurm)
    run = loaded.run
    assert found == tuple(hosts.split()) and run.seed == 1
    assert (run.system.nodes, run.batch.per_rank, run.batch.active_ranks) == (3, *batch)


def test_too_few_are_left(slurm: Path) -> None:
    (slurm / "DEAD").write_text("node1 node3 node4")
    with pytest.raises(UserError, match=r"system\.job\.min_nodes: 2 expected, 1 of 4 nodes answer"):
        on_nodes_left(run_of(slurm), "srun", slurm)


def test_every_batch_of_a_schedule_stays(slurm: Path) -> None:
    changes = "batch.changes=[{after_epoch: 1, per_rank: 6}, {after_epoch: 2, per_rank: 11}]"
    began = run_of(slurm, changes, "batch.active_ranks=7")
    (slurm / "DEAD").write_text("node4")
    loaded, _ = on_nodes_left(began, "srun", slurm)
    before, after = (build_plan(x.run).segments for x in (began, loaded))
    assert [s.global_batch_size for s in after] == [s.global_batch_size for s in before]
    assert [s.first_step for s in after] == [s.first_step for s in before]
    assert [(s.per_rank, s.active_ranks) for s in after] == [(14, 4), (8, 6), (22, 4)]


def test_hosts_of_a_file_are_probed_by_mpirun(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "hosts").write_text("h1 slots=2\nh2 slots=2\nh3 slots=2\nh4 slots=2\n")
    monkeypatch.setenv("RN50_HOSTS", str(slurm / "hosts"))
    (slurm / "bin/mpirun").write_text('#!/bin/sh\ncase "$*" in *h2*) exit 1 ;; esac\n')
    (slurm / "bin/mpirun").chmod(0o755)
    loaded, hosts = on_nodes_left(run_of(slurm), "mpirun", slurm)
    assert hosts == ("h1", "h3", "h4") and loaded.run.system.nodes == 3
