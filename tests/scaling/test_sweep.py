"""Every system x GPUs x batch: more work never takes less time, and no jump without its cause."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load_system
from rn50.config.names import list_systems
from rn50.scaling.epochs import read_table
from rn50.scaling.gpu import memory_bytes
from rn50.scaling.machine import known_precisions
from rn50.scaling.predict import job_of_system
from rn50.scaling.step import build, step_time

MODELLED = [name for name in list_systems() if load_system(name).performance is not None]
BATCHES = (*range(1, 65), 80, 96, 128, 192, 256, 400)
NODES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)

OTHER_TORUS = "abci_nnl"
"""Sony's torus is as square as the ranks allow: 4 x 5 of 20 ranks, 4 x 6 of 24. A wider row adds up
more inside the nodes, so that the columns have less to send: 0.45 ms of 19 at most."""


@pytest.mark.parametrize("name", MODELLED)
def test_more_work_never_takes_less_time(name: str) -> None:
    system = load_system(name)
    about, local = system.performance, system.ranks_per_node
    assert about is not None
    counts = [1 << k for k in range(15) if 1 << k < local]
    counts += [nodes * local for nodes in NODES if nodes * local <= 16384]
    for precision in known_precisions(about):
        machine = build(name, system, precision)
        step_s = {(n, b): step_time(machine, n, b).total_s for n in counts for b in BATCHES}
        for gpus in counts:
            for few, many in pairwise(BATCHES):
                assert step_s[gpus, many] > step_s[gpus, few], (gpus, few, many)
            assert all(machine.compute_s(b) <= step_s[gpus, b] * (1 + 1e-9) for b in BATCHES)
        for batch in BATCHES:
            for few, many in pairwise(counts):
                slack = 0.97 if name == OTHER_TORUS else 1 - 1e-9
                assert step_s[many, batch] >= slack * step_s[few, batch], (few, many, batch)


@pytest.mark.parametrize("name", MODELLED)
def test_one_node_more_is_no_jump(name: str) -> None:
    """From the second node on; the first brings the network. The largest growth is that of a ring
    over 30 us hops (Horovod PR 542): its third node takes half as long again for its hops."""
    system = load_system(name)
    assert system.performance is not None
    local = system.ranks_per_node
    if local > 1024:
        pytest.skip("one torus is one node")
    machine = build(name, system, known_precisions(system.performance)[0])
    for nodes in (2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 255):
        for batch in (1, 8, 32, 128):
            few, many = (step_time(machine, n * local, batch).total_s for n in (nodes, nodes + 1))
            assert many < 1.36 * few, (nodes, batch, few, many)


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "says"),
    [
        ("tpu_v4", 16381, 8, "a torus at most 4 times as long as wide expected on tpu_v4, as of"),
        ("dgxh100", 2047, 8, "whole nodes of dgxh100 expected, multiples of 8 such as 2040"),
        ("abci", 16, 4096, "found 4096, which need about 25"),
    ],
)
def test_what_no_machine_can_run_is_refused(name: str, gpus: int, batch: int, says: str) -> None:
    with pytest.raises(UserError, match=says):
        job_of_system(name, load_system(name), gpus, batch)


def test_all_published_batches_fit_their_memory() -> None:
    for row in read_table("mlperf_runs.csv"):
        about = load_system(row["machine"]).performance if row["machine"] else None
        if about is not None and about.memory_bytes is not None:
            assert memory_bytes(int(row["batch_per_accelerator"]), "fp16") <= about.memory_bytes
