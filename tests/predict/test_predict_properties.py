"""Every system x GPUs x batch: the answer is sane, more work never takes less time, and no jump
without its cause."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.predict.fit import build
from rn50.predict.gpu import beyond_memory, largest_batch
from rn50.predict.hardware import Machine, known_precisions
from rn50.predict.predictor import Prediction, job_of_system, predict
from rn50.predict.step import step_time
from tests.predict.systems import SYSTEMS, about

EVERY = pytest.mark.parametrize("name", SYSTEMS)


def ask(name: str, gpus: int, batch: int) -> Prediction:
    job = job_of_system(
        name, SYSTEMS[name], gpus, batch, precision=known_precisions(about(name))[0]
    )
    return predict(job)


def models(name: str) -> list[Machine]:
    """The models of a machine, one for each precision that it has figures for."""
    precisions = known_precisions(about(name))
    return [build(name, SYSTEMS[name], precision) for precision in precisions]


@settings(max_examples=50)
@given(st.sampled_from(list(SYSTEMS)), st.integers(1, 8192), st.integers(1, 512))
def test_every_answer_is_finite_and_inside_its_interval(
    name: str, gpus: int, batch: int
) -> None:
    per_node = SYSTEMS[name].ranks_per_node
    if about(name).square_torus:
        gpus = 1 << gpus.bit_length()
    elif gpus > per_node:  # whole nodes
        gpus += -gpus % per_node
    memory_limit = largest_batch(about(name).memory_bytes or 1e12, "tf32")
    assert not beyond_memory("", memory_limit, SYSTEMS[name], "fp32")
    of_an_epoch = 1_281_167 // gpus
    answer = ask(name, gpus, min(batch, of_an_epoch, memory_limit))
    step_low, step_high = answer.step_interval_s
    low, high = answer.time_interval_s
    assert 0 < step_low < answer.step.total_s < step_high < math.inf
    assert 0 < low < answer.run.total_s < high < math.inf
    assert 0 < answer.efficiency <= 1 + 1e-9
    for seconds in (*answer.step.parts.values(), *answer.run.parts.values()):
        assert seconds >= 0
    assert 1 <= answer.epochs < 2000


# --- what if the network were slower? ----------------------------------------------------------

SLOWER: tuple[dict[str, float], ...] = (
    {"nic_bytes_per_s": 1e9},
    {"nics": 1},
    {"jitter": 0.05},
    {"intra_bytes_per_s": 5e9},
    {"intra_latency_s": 5e-5},
    {"inter_latency_s": 5e-5},
    {"tree_latency_s": 9e-5},
    {"rack_nodes": 2, "oversubscription": 9.0},
)


@EVERY
def test_a_slower_network_never_makes_a_step_shorter(name: str) -> None:
    """The computation stays the same, and no step of any size is shorter."""
    per_node = SYSTEMS[name].ranks_per_node
    counts = [1, 64, 1024]
    if per_node <= 64:
        counts = [1, per_node, 2 * per_node, 16 * per_node]
    for slower in SLOWER:
        for original in models(name):
            performance = original.performance.model_copy(update=slower)
            after = replace(original, performance=performance)
            shortest_s = 0.0
            for gpus in counts:
                fast_s = step_time(original, gpus, 32).total_s
                slow_s = step_time(after, gpus, 32).total_s
                least_s = max(fast_s, shortest_s) * (1 - 1e-9)
                assert slow_s >= least_s, slower
                shortest_s = slow_s


# --- more work ----------------------------------------------------------------------------------

BATCHES = (*range(1, 18), 24, 31, 32, 33, 48, 63, 64, 65, 96, 128, 192, 256, 400)
NODES = (*range(1, 9), 12, 16, 24, 32, 64, 96, 128, 512)

OTHER_TORUS = "abci_nnl"
"""Sony's torus is as square as the ranks allow: 4 x 5 of 20 ranks, 4 x 6 of 24. A wider row adds up
more inside the nodes, so that the columns have less to send: 0.45 ms of 19 at most."""


@EVERY
def test_more_work_never_takes_less_time(name: str) -> None:
    local = SYSTEMS[name].ranks_per_node
    doublings = (local - 1).bit_length()
    counts = [1 << doubling for doubling in range(doublings)]
    counts += [nodes * local for nodes in NODES]
    slack = 0.97 if name == OTHER_TORUS else 1 - 1e-9
    for machine in models(name):
        fewer_gpus = dict.fromkeys(BATCHES, 0.0)
        for gpus in counts:
            smaller_batch_s = 0.0
            for batch in BATCHES:
                step_s = step_time(machine, gpus, batch).total_s
                assert step_s > smaller_batch_s, (gpus, batch)
                least_s = slack * fewer_gpus[batch]
                assert step_s >= least_s, (gpus, batch)
                assert step_s >= machine.compute_s(batch) * (1 - 1e-9)
                smaller_batch_s = step_s
                fewer_gpus[batch] = step_s


@EVERY
def test_one_node_more_is_no_jump(name: str) -> None:
    """From the second node on; the first brings the network. The largest growth is that of a ring
    over 30 us hops (Horovod PR 542): its third node takes half as long again for its hops."""
    local = SYSTEMS[name].ranks_per_node
    if local > 1024:
        pytest.skip("one torus is one node")
    machine = models(name)[0]
    for nodes in (2, 3, 4, 7, 8, 15, 16, 63, 64, 255):
        for batch in (1, 8, 32, 128):
            gpus = nodes * local
            few = step_time(machine, gpus, batch).total_s
            many = step_time(machine, gpus + local, batch).total_s
            assert many < 1.36 * few, (nodes, batch, few, many)
