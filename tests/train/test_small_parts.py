"""Seeds, placement, support, start-up stages, replica votes, the bound of the queue."""

import re
import threading
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.config.leaves import flatten, nest
from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.host.errors import UserError, show
from rn50.train import run
from rn50.train.__main__ import one_line
from rn50.train.communication import identity
from rn50.train.communication.identity import (
    differences,
    divide,
    identity_of,
    part_digests,
)
from rn50.train.host_reads import RunAheadLimiter
from rn50.train.loop import train_steps, zero_gradient_steps
from rn50.train.process_info import read_process_info
from rn50.train.seeding import stream_seed
from rn50.train.trainer import overlapped
from tests.conftest import refused, write_file


def test_seeds_are_pinned() -> None:
    """A changed hash would change every published run."""
    assert stream_seed(1, "weights") == 4670159024937498513
    assert stream_seed(1, "shuffle", 3) == 4504304164709979859


GLOO = "HOROVOD_CONTROLLER=gloo"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("", (0, 1, 0, False)),
        (
            "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1",
            (5, 8, 1, True),
        ),
        (
            f"HOROVOD_RANK=3 HOROVOD_SIZE=4 HOROVOD_LOCAL_RANK=3 {GLOO}",
            (3, 4, 3, False),
        ),
        # srun with PMIx, --mpi=pmi2 and --mpi=cray_shasta
        ("PMIX_RANK=2 SLURM_NTASKS=4 SLURM_LOCALID=0", (2, 4, 0, True)),
        ("PMI_RANK=2 PMI_SIZE=4 SLURM_LOCALID=0", (2, 4, 0, True)),
        ("PALS_RANKID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1", (3, 4, 1, True)),
        # Hydra within an allocation of Slurm, whose LOCALID is that of Hydra's own daemon.
        (
            "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 SLURM_LOCALID=0 SLURM_NTASKS=1",
            (1, 2, 1, True),
        ),
        (
            f"X_RANK=1 X_SIZE=2 X_LOCAL=1 RN50_RANK_VARIABLES=X_RANK,X_SIZE,X_LOCAL {GLOO}",
            (1, 2, 1, False),
        ),
        # Slurm's batch script is no rank.
        ("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0", (0, 1, 0, False)),
    ],
)
def test_placement(variables: str, expected: tuple[object, ...]) -> None:
    environment = dict(pair.split("=") for pair in variables.split())
    process = read_process_info(environment)
    assert (*process[:3], process.over_mpi) == expected


def test_start_up_overlaps_unless_serial() -> None:
    """Functions that wait for each other can only end if they run at the same time: with a core for
    each, or where one of them needs none."""

    def meet(
        connect: bool, seconds: float = 20, *, serial: bool = False, cores: int = 1
    ) -> None:
        meeting = threading.Barrier(2, timeout=seconds)
        actions = [meeting.wait, meeting.wait]
        if not connect:
            actions.insert(0, Mock())
        results = overlapped(*actions, serial=serial, cores=cores)
        assert len(results) == len(actions) - 1

    meet(connect=True)
    meet(connect=False, cores=2)
    for connect, serial in ((True, True), (False, False)):
        with pytest.raises(threading.BrokenBarrierError):
            meet(connect, 0.2, serial=serial)


def test_the_first_error_of_start_up_is_raised_at_once() -> None:
    def fail() -> None:
        raise UserError("no such device")

    other_ranks = threading.Event()  # for other ranks, which never come
    for connect, computes in ((other_ranks.wait, fail), (fail, other_ranks.wait)):
        with refused("no such device"):
            overlapped(connect, computes, Mock(), serial=False, cores=1)
    other_ranks.set()


@pytest.mark.parametrize(
    ("digests", "accused_ranks"),
    [
        ("baaa", "0"),
        ("ab", ""),
        ("ba", ""),
        ("aabb", ""),
        ("abba", ""),
        ("abc", ""),
        ("aabc", ""),
        ("aaabc", "34"),
    ],
)
def test_ranks_are_accused_by_more_than_half_of_all_or_none_is(
    digests: str, accused_ranks: str
) -> None:
    division = divide(digests)
    assert division.differ
    assert "".join(map(str, division.odd)) == accused_ranks
    sentence = division.named(
        [f"rank {rank}" for rank in range(len(digests))], "weights"
    )
    accused = set(re.findall(r"rank (\d)", sentence))
    firsts = {str(group[0]) for group in division.groups}
    assert accused == set(accused_ranks or firsts)
    assert ("cannot be told" in sentence) == (not accused_ranks)


def test_all_of_the_config_but_places_and_machine_is_the_same_on_all_ranks() -> None:
    loaded = load("quick")
    own_identity = identity_of(loaded)
    for key, value in flatten(loaded.to_dict()):
        tree = loaded.to_dict()
        nest(tree, key, "another")
        changed = identity_of(Mock(run=loaded.run, to_dict=Mock(return_value=tree)))
        expected = [f"config: {key} {show(value)} expected, found 'another'"]
        if key.startswith(("system.", "data.synthetic.")) or key == "data.path":
            expected = []
        assert list(differences(own_identity, changed)) == expected
        assert (part_digests(changed) == part_digests(own_identity)) == (
            not expected
        ), key


@given(st.integers(1, 30), st.integers(0, 30), st.integers(1, 12))
def test_a_rank_without_a_share_comes_to_log_points_at_the_same_steps(
    first: int, more: int, log_every: int
) -> None:
    """They are collective. What a step computes is left out."""
    last = first + more
    points, idle_points = (
        [point[:2] for point in steps(Mock(), first, last, log_every)]
        for steps in (train_steps, zero_gradient_steps)
    )
    assert points == idle_points
    for step, steps in points:
        assert step % log_every == 0
        assert steps == min(log_every, step - first + 1)
    points_before = (first - 1) // log_every
    assert len(points) == last // log_every - points_before


def test_dropout_differs_between_ranks_epochs_and_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: set[int] = set()
    monkeypatch.setattr("mxnet.random.seed", seeds.add)
    smoke = load("smoke", ["seed=1"]).run
    trainer = Mock(run=smoke, plan=build_plan(smoke))
    for rank, epoch, step in product(range(3), (1, 2), (0, 5)):
        trainer.context.process.rank = rank
        first_step = trainer.plan.epoch_end_step(epoch - 1)
        trainer.context.state.step = first_step + step
        run.seed_dropout(trainer, epoch)
    assert len(seeds) == 12


def test_errors_become_one_line() -> None:
    traceback = "Traceback (most recent call last):\n  File 'x.cc'\nValueError: no\n such image\n"
    assert one_line(ValueError(traceback)) == "ValueError: no such image"
    assert one_line(UserError("train.rec: truncated")) == "train.rec: truncated"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt: no message"


def test_the_host_waits_for_the_loss_of_two_steps_ago() -> None:
    losses = [Mock() for _ in range(8)]
    limiter = RunAheadLimiter()
    for loss in losses[:7]:
        limiter(loss, "batch")
    waits = [loss.wait_to_read.call_count for loss in losses]
    assert waits == [0, 1, 1, 1, 1, 0, 0, 0]
    limiter.clear()
    limiter(losses[7], "batch")
    assert waits == [loss.wait_to_read.call_count for loss in losses]


@pytest.mark.parametrize("suffix", ["py", "c", "cc", "cu"])
def test_another_source_is_another_code(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_path = tmp_path / "train/communication/identity.py"
    monkeypatch.setattr(identity, "__file__", str(module_path))
    source = write_file(module_path.with_suffix(f".{suffix}"), "a")
    digest = identity.code_digest.__wrapped__()
    source.write_text("b")
    assert identity.code_digest.__wrapped__() != digest
