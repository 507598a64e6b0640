"""The communicator on three ranks that are threads of this process, which meet in a stand-in for
Horovod. Over Horovod itself: tests/ranks/test_collectives.py, by the same body."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock, Mock, call

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn

from rn50.config.load import load
from rn50.train import checkpointer
from rn50.train.communication import communicator
from rn50.train.communication.communicator import Communicator
from rn50.train.stopping import AllRanksError
from tests.ranks.sum_body import STEPS, sums_error
from tests.ranks.test_collectives import FLOAT32, HALF, check_error
from tests.train.emulated import CPU

RANKS = 3


class Threads:
    """Horovod's operations between threads that name their rank to `gathered`."""

    Sum = "sum"

    def __init__(self) -> None:
        self.rank = threading.local()
        self.asked: list[tuple[str, int]] = []
        """(name, priority) of each `allreduce_` of rank 0."""
        self._given: dict[int, np.ndarray] = {}
        self._rows: list[np.ndarray] = []
        self._meeting = threading.Barrier(RANKS, self._meet, timeout=60)

    def _meet(self) -> None:
        self._rows = [self._given.pop(rank) for rank in range(RANKS)]

    def _of_all(self, array: nd.NDArray) -> list[np.ndarray]:
        self._given[self.rank.number] = array.asnumpy()
        self._meeting.wait()
        return self._rows

    def grouped_allreduce_(
        self, arrays: Sequence[nd.NDArray], op: str, name: str
    ) -> None:
        for array in arrays:
            self.allreduce_(array, op, name)

    def allreduce_(
        self, array: nd.NDArray, op: str, name: str, priority: int = 0
    ) -> nd.NDArray:
        assert op == self.Sum
        if self.rank.number == 0:
            self.asked.append((name, priority))
        array[:] = sum(self._of_all(array))
        return array

    def allgather(self, array: nd.NDArray, name: str) -> nd.NDArray:
        assert name
        return nd.array(np.concatenate(self._of_all(array)), dtype=array.dtype)


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch) -> Threads:
    stand_in = Threads()
    monkeypatch.setattr(communicator, "hvd", stand_in)
    return stand_in


def on_ranks(horovod: Threads, action: Callable[[Communicator], Any]) -> list[Any]:
    """What `action` returns on each rank."""

    def on_rank(number: int) -> Any:
        horovod.rank.number = number
        comm = Communicator(CPU, Mock(rows=()))
        comm.rank = number
        comm.world_size = RANKS
        return action(comm)

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(on_rank, range(RANKS)))


@pytest.mark.parametrize("overrides", FLOAT32 + HALF)
def test_the_sum_is_the_plain_sum_and_the_last_layers_go_first(
    horovod: Threads, overrides: str
) -> None:
    run = load("smoke", overrides.split()).run
    errors = on_ranks(horovod, lambda comm: sums_error(comm, run))
    check_error(overrides, max(errors))
    of_a_step = len(horovod.asked) // STEPS
    first = horovod.asked[:of_a_step]
    assert horovod.asked == first * STEPS  # names are fixed
    names, priorities = zip(*first, strict=True)
    assert len(names) > 1
    assert len(set(names)) == len(names)
    falling = sorted(set(priorities), reverse=True)
    assert list(priorities) == falling


@pytest.mark.parametrize(("values", "rows"), [(1, [0]), (2, [0, 1, 0]), (3, [0, 1, 2])])
def test_a_checkpoint_has_the_statistics_of_each_rank_where_any_differ(
    horovod: Threads, values: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "weight_arrays", lambda _: {})
    monkeypatch.setattr(checkpointer, "Meta", Mock())

    def collect(comm: Communicator) -> checkpointer.Snapshot | None:
        trainer = MagicMock(comm=comm)
        trainer.model.net = nn.BatchNorm(in_channels=2, prefix="")
        trainer.model.net.initialize()
        variances = nd.array([comm.rank % values, 7])
        trainer.model.net.running_var.set_data(variances)
        trainer.model.updater.arrays.return_value = {}
        return checkpointer.collect(trainer)

    snapshot, *rest = on_ranks(horovod, collect)
    assert rest == [None, None]
    arrays = snapshot.arrays
    expected = [[row, 7] for row in rows]
    assert arrays["statistics/running_var"].tolist() == expected
    assert len(arrays["statistics/running_mean"]) == len(rows)


def test_ranks_that_differ_are_named_to_all_with_where_they_agreed(
    horovod: Threads,
) -> None:
    def compare(comm: Communicator) -> AllRanksError:
        comm.check_replicas({"weights": bytes(16)}, "at first", 7)
        parts = {"code": bytes(16), "weights": bytes(15) + bytes([comm.rank == 1])}
        with pytest.raises(AllRanksError) as caught:
            comm.check_replicas(parts, "then", 9)
        return caught.value

    for error in on_ranks(horovod, compare):
        assert error.agreed_step == 7
        assert "1 of 3 ranks, rank 1 on " in str(error)
        assert " in weights; " in str(error)
        assert "agreed after step 7" in str(error)


def test_ranks_wait_for_each_other_in_host_memory_before_they_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    horovod = Mock()
    monkeypatch.setattr(communicator, "hvd", horovod)
    on_gpu = Mock(
        ctx=mx.gpu(), **{"zeros.side_effect": AssertionError("device memory")}
    )
    Communicator(on_gpu, Mock(rows=())).stop()
    ((array,), _) = horovod.allreduce_.call_args
    assert array.context == mx.cpu()
    _, wait, leave = horovod.mock_calls
    assert wait == call.allreduce_().wait_to_read()
    assert leave == call.shutdown()
