"""The communicator on three ranks that are threads of this process, which meet in a stand-in for
Horovod. Over Horovod itself: tests/ranks/test_collectives.py, by the same body."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock, Mock

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn

from rn50.config.load import load
from rn50.train.checkpoint import checkpointer
from rn50.train.communication import communicator as comm
from rn50.train.communication.communicator import Communicator
from rn50.train.limits import ReplicasDifferError
from rn50.train.operators import Operators
from rn50.train.update.loss_scale import LossScaler
from tests.ranks.sum_body import STEPS, statistics_error, sums_error
from tests.ranks.test_collectives import FLOAT32, HALF

RANKS = 3


class Threads:
    """Horovod's operations between threads that name their rank to `gathered`."""

    Sum = "sum"

    def __init__(self) -> None:
        self.rank = threading.local()
        self.asked: list[tuple[int, str, int]] = []
        """(rank, name, priority) of each `allreduce_`."""
        self._given: dict[int, list[np.ndarray]] = {}
        self._rows: list[list[np.ndarray]] = []
        self._meeting = threading.Barrier(
            RANKS,
            action=self._meet,
            timeout=60,
        )

    def _meet(self) -> None:
        self._rows = [self._given.pop(rank) for rank in range(RANKS)]

    def _of_all(self, arrays: Sequence[nd.NDArray]) -> list[list[np.ndarray]]:
        """For each array those of all ranks."""
        self._given[self.rank.number] = [array.asnumpy() for array in arrays]
        self._meeting.wait()
        return [list(column) for column in zip(*self._rows, strict=True)]

    def grouped_allreduce_(
        self, arrays: Sequence[nd.NDArray], op: str, name: str
    ) -> None:
        assert op == self.Sum
        assert name
        for array, values in zip(arrays, self._of_all(arrays), strict=True):
            array[:] = sum(values)

    def allreduce_(
        self, array: nd.NDArray, op: str, name: str, priority: int = 0
    ) -> nd.NDArray:
        self.asked.append((self.rank.number, name, priority))
        self.grouped_allreduce_([array], op, name)
        return array

    def allgather(self, array: nd.NDArray, name: str) -> nd.NDArray:
        assert name
        (rows,) = self._of_all([array])
        return nd.array(np.concatenate(rows), dtype=array.dtype)


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch) -> Threads:
    stand_in = Threads()
    monkeypatch.setattr(comm, "hvd", stand_in)
    return stand_in


def on_ranks(horovod: Threads, action: Callable[[Communicator], Any]) -> list[Any]:
    """What `action` returns on each rank."""

    def on_rank(number: int) -> Any:
        horovod.rank.number = number
        one = Communicator(Operators(mx.cpu()), Mock(rows=()))
        one.rank = number
        one.world_size = RANKS
        return action(one)

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(on_rank, range(RANKS)))


@pytest.mark.parametrize("kind", FLOAT32 + HALF)
def test_the_sum_is_the_plain_sum_and_the_last_layers_go_first(
    horovod: Threads, kind: str
) -> None:
    run = load("smoke", kind.split()).run
    worst = max(on_ranks(horovod, lambda one: sums_error(one, run)))
    assert (1e-5 < worst < 2e-2) if "float16" in kind else (worst < 1e-5)
    for rank in range(RANKS):
        asked = [
            (name, priority)
            for number, name, priority in horovod.asked
            if number == rank
        ]
        first = asked[: len(asked) // STEPS]
        assert asked == first * STEPS  # names are fixed
        names, priorities = zip(*first, strict=True)
        assert len(names) > 1
        assert len(set(names)) == len(names)
        assert list(priorities) == sorted(set(priorities), reverse=True)


@pytest.mark.parametrize("mode", ["average", "batch"])
def test_statistics_of_batch_norm_are_those_of_all_active_ranks_images(
    horovod: Threads, mode: str
) -> None:
    assert max(on_ranks(horovod, lambda one: statistics_error(one, mode))) < 1e-4


@pytest.mark.parametrize(("kinds", "rows"), [(1, [0]), (2, [0, 1, 0]), (3, [0, 1, 2])])
def test_a_checkpoint_has_the_statistics_of_each_rank_where_any_differ(
    horovod: Threads, kinds: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "weight_arrays", lambda _: {})
    monkeypatch.setattr(checkpointer, "Meta", Mock())

    def collect(one: Communicator) -> checkpointer.Snapshot | None:
        trainer = MagicMock(comm=one)
        trainer.model.net = nn.BatchNorm(in_channels=2, prefix="")
        trainer.model.net.initialize()
        trainer.model.net.running_var.set_data(nd.array([one.rank % kinds, 7]))
        trainer.model.updater.arrays.return_value = {}
        trainer.model.updater.scaler = LossScaler(1.0)
        return checkpointer.collect(trainer)

    snapshot, *others = on_ranks(horovod, collect)
    assert snapshot is not None
    assert others == [None, None]
    held = snapshot.arrays
    assert held["statistics/running_var"].tolist() == [[row, 7] for row in rows]
    assert held["statistics/running_mean"].tolist() == [[0, 0]] * len(rows)


def test_ranks_that_differ_are_named_to_all_with_where_they_agreed(
    horovod: Threads,
) -> None:
    def compare(one: Communicator) -> ReplicasDifferError:
        one.check_replicas({"weights": bytes(16)}, "at first", 7)
        parts = {"code": bytes(16), "weights": bytes(15) + bytes([one.rank == 1])}
        with pytest.raises(ReplicasDifferError) as caught:
            one.check_replicas(parts, "then", 9)
        return caught.value

    for error in on_ranks(horovod, compare):
        assert error.agreed_step == 7
        assert "1 of 3 ranks, rank 1 on " in str(error)
        assert str(error).endswith(" in weights")


def test_a_barrier_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    horovod = Mock()
    monkeypatch.setattr(comm, "hvd", horovod)
    Communicator(Operators(mx.cpu()), Mock(rows=())).barrier()
    horovod.allreduce_.return_value.wait_to_read.assert_called_once_with()
