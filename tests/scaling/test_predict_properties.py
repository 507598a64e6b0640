"""Every system x GPUs x batch: the answer is sane, more work never takes less time, and no jump
without its cause."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.load import load, load_system
from rn50.config.machine import System
from rn50.config.names import PRESETS
from rn50.scaling.epochs import read_table
from rn50.scaling.fit import build
from rn50.scaling.gpu import largest_batch, memory_bytes
from rn50.scaling.machine import known_precisions
from rn50.scaling.predict import Prediction, job_of_system, predict
from rn50.scaling.step import step_time

SYSTEMS = {
    path.stem: system
    for path in sorted((PRESETS / "system").glob("*.yaml"))
    if (system := load_system(str(Path(path)))).performance is not None
}


def ask(
    name: str,
    gpus: int,
    batch: int,
    algorithm: str | None = None,
) -> Prediction:
    system: System = SYSTEMS[name]
    about = system.performance
    assert about is not None
    precision = known_precisions(about)[0]
    return predict(
        job_of_system(
            name, system, gpus, batch, precision=precision, algorithm=algorithm
        )
    )


@settings(max_examples=50)
@given(st.sampled_from(sorted(SYSTEMS)), st.integers(1, 8192), st.integers(1, 512))
def test_every_answer_is_finite_and_inside_its_interval(
    name: str, gpus: int, batch: int
) -> None:
    system = SYSTEMS[name]
    if system.performance is not None and system.performance.square_torus:
        gpus = 1 << gpus.bit_length()
    elif gpus > system.ranks_per_node:  # whole nodes
        gpus += -gpus % system.ranks_per_node
    assert system.performance is not None
    most = largest_batch(system.performance.memory_bytes or 1e12, "fp32")
    answer = ask(name, gpus, min(batch, 1_281_167 // gpus, most))
    step_low, step_high = answer.step_interval_s
    low, high = answer.time_interval_s
    assert 0 < step_low < answer.step.total_s < step_high < math.inf
    assert 0 < low < answer.run.total_s < high < math.inf
    assert 0 < answer.efficiency <= 1 + 1e-9
    assert all(
        value >= 0
        for value in (*answer.step.parts.values(), *answer.run.parts.values())
    )
    assert 1 <= answer.epochs < 2000


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_the_interval_widens_away_from_the_points(name: str) -> None:
    widths = []
    largest = max((point.gpus for point in ask(name, 1, 32).machine.points), default=1)
    node = SYSTEMS[name].ranks_per_node
    for times in (1, 8, 64):
        whole = -(-times * largest // node) * node if node <= 64 else times * largest
        answer = ask(name, whole, min(16, 1_281_167 // whole))
        widths.append(answer.step_interval_s[1] / answer.step.total_s)
    assert widths == sorted(widths)


# --- what if the network were slower? ----------------------------------------------------------

SLOWER = (
    "nic_bytes_per_s: 1e9",
    "nics: 1",
    "jitter: 0.05",
    "intra_bytes_per_s: 5e9",
    "intra_latency_s: 5e-5",
    "inter_latency_s: 5e-5",
    "tree_latency_s: 9e-5",
    "{rack_nodes: 2, oversubscription: 9.0}",
)


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_a_slower_network_never_makes_a_step_shorter(name: str, tmp_path: Path) -> None:
    """By `base:` on all machines: the same computation, and no step of any size is shorter."""
    about = SYSTEMS[name].performance
    node = SYSTEMS[name].ranks_per_node
    assert about is not None
    file = tmp_path / "slower.yaml"
    sizes = [1, *(n * node for n in (1, 2, 16))] if node <= 64 else [1, 64, 1024]
    for slower in SLOWER:
        own = slower if slower.startswith("{") else f"{{{slower}}}"
        file.write_text(f"base: {name}\nperformance: {own}\n")
        for precision in known_precisions(about):
            before = build(name, SYSTEMS[name], precision)
            after = build(name, load_system(str(file)), precision)
            assert (after.fixed_s, after.per_image_s) == (
                before.fixed_s,
                before.per_image_s,
            ), own
            fast, slow = (
                [step_time(m, n, 32).total_s for n in sizes] for m in (before, after)
            )
            assert all(b >= a * (1 - 1e-9) for a, b in zip(fast, slow, strict=True)), (
                own
            )
            # more ranks
            assert all(b >= a * (1 - 1e-9) for a, b in pairwise(slow)), own


NICS = ["system.performance.nics=1", "system.performance.nic_bytes_per_s=3.125e9"]
POINT = "{gpus: 64, batch: 50, step_s: 0.02, source: mine}"


@pytest.mark.parametrize(
    ("overrides", "fitted_on"),
    [
        ([], None),
        (["system.nodes=16", *NICS], (8, 8)),
        (["system=dgxa100", "system.nodes=16", *NICS], (8, 8)),
        (["system=xe8545", *NICS, "system.ranks_per_node=2"], (2, 4)),
        (["system=a100_pcie", "system.nodes=2", "system.ranks_per_node=1"], (2, 4)),
        (["system=a40"], (2, 24)),  # eight ranks of a node that has 24
        (["system=xe8545"], None),  # eight ranks of two nodes, as its file has them
        (
            ["system=xe8545", "system.ranks_per_node=8", "system.performance.nics=2"],
            (2, 4),
        ),
        ([*NICS, f"system.performance.fp16.points=[{POINT}]"], None),
    ],
)
def test_points_keep_the_network_they_were_measured_on(
    overrides: list[str], fitted_on: tuple[int, int] | None, tmp_path: Path
) -> None:
    """On the command line, and in the config.yaml of the run with another override on it."""
    loaded = load("dgxh100_8", ["batch.per_rank=256", *overrides])
    (tmp_path / "config.yaml").write_text(loaded.to_yaml())
    again = load(tmp_path / "config.yaml", ["system.performance.launch_s=2e-5"])
    assert again.run.system == loaded.run.system
    changed = load(
        tmp_path / "config.yaml", ["system.performance.inter_latency_s=1e-3"]
    ).run
    machine = build("x", loaded.run.system)
    assert build("x", changed.system).per_image_s == machine.per_image_s
    own = load(
        tmp_path / "config.yaml", [f"system.performance.fp16.points=[{POINT}]"]
    ).run
    assert own.system.performance.fp16.measured_on is None
    compute = loaded.run.system.performance.fp16
    found = compute.measured_on and (
        compute.measured_on.nics,
        compute.measured_on.ranks_per_node,
    )
    assert found == fitted_on


# --- more work ----------------------------------------------------------------------------------

BATCHES = (*range(1, 65), 80, 96, 128, 192, 256, 400)
NODES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)

OTHER_TORUS = "abci_nnl"
"""Sony's torus is as square as the ranks allow: 4 x 5 of 20 ranks, 4 x 6 of 24. A wider row adds up
more inside the nodes, so that the columns have less to send: 0.45 ms of 19 at most."""


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_more_work_never_takes_less_time(name: str) -> None:
    system = load_system(name)
    about = system.performance
    local = system.ranks_per_node
    assert about is not None
    counts = [1 << k for k in range(15) if 1 << k < local]
    counts += [nodes * local for nodes in NODES if nodes * local <= 16384]
    for precision in known_precisions(about):
        machine = build(name, system, precision)
        step_s = {
            (n, b): step_time(machine, n, b).total_s for n in counts for b in BATCHES
        }
        for gpus in counts:
            for few, many in pairwise(BATCHES):
                assert step_s[gpus, many] > step_s[gpus, few], (gpus, few, many)
            assert all(
                machine.compute_s(b) <= step_s[gpus, b] * (1 + 1e-9) for b in BATCHES
            )
        for batch in BATCHES:
            for few, many in pairwise(counts):
                slack = 0.97 if name == OTHER_TORUS else 1 - 1e-9
                assert step_s[many, batch] >= slack * step_s[few, batch], (
                    few,
                    many,
                    batch,
                )


@pytest.mark.parametrize("name", sorted(SYSTEMS))
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
            few, many = (
                step_time(machine, n * local, batch).total_s for n in (nodes, nodes + 1)
            )
            assert many < 1.36 * few, (nodes, batch, few, many)


def test_all_published_batches_fit_their_memory() -> None:
    for row in read_table("mlperf_runs.csv"):
        about = load_system(row["machine"]).performance if row["machine"] else None
        if about is not None and about.memory_bytes is not None:
            assert (
                memory_bytes(int(row["batch_per_accelerator"]), "fp16")
                <= about.memory_bytes
            )
