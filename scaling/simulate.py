"""Discrete-event simulation of training steps: ranks, links, groups, jitter and faults. Pure.

Per rank: a step's forward and backward stretched by jitter, during which groups of gradients
become ready; each group is one allreduce, started when the rank has it and has finished the group
before (one communication stream), and run message by message on the clocks (`clocks.py`); the
update follows; then the next step, without a barrier. Groups of one rank never share the network.
With no jitter this is `overlap.exposed` over `cost.allreduce`; tests hold it to 1e-9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..config.errors import UserError
from ..config.machine import Performance
from ..config.schema import Watchdog
from .clocks import SlowLink, Times, compile_allreduce, run
from .layers import wire_groups
from .machine import topology_of
from .predict import Job
from .step import build, step_time, straggler_s, with_grid
from .topology import Topology


class SlowNode(NamedTuple):
    """The ranks of `node` compute `factor` times as long."""

    node: int
    factor: float


class Failure(NamedTuple):
    """A node dies after `step` steps: all stop, restart, and redo what no checkpoint holds."""

    step: int
    checkpoint_steps: int
    restart_s: float


class Faults(NamedTuple):
    """What goes wrong, each at most once."""

    slow_node: SlowNode | None = None
    slow_link: SlowLink | None = None
    failure: Failure | None = None


NO_FAULTS = Faults()
CHECKPOINT_STEPS = 10
END_S = 2.1
"""From the discovery of a lost rank to the launcher's end, by tests/lab/control_plane.py at 16 and
64 ranks (docs/notebook/control_plane.md)."""
LAUNCH_S, LAUNCH_RANK_S = 1.0, 0.5e-3
"""Serial work of a launch, by the same: CPU time of the launcher before its ranks, and of its
watchdog for eight messages of each rank, of 60 us each, until it trains."""


def restart_s(ranks: int, about: Performance) -> float:
    """From a rank's failure until all `ranks` train again: found as silent, ended, launched, and
    the machine's own start-up."""
    control_s = Watchdog().silence_s + END_S + LAUNCH_S + ranks * LAUNCH_RANK_S
    return control_s + about.init_s + about.startup_s


class Result(NamedTuple):
    """One entry per step that ran; step = compute + straggler + exposed + update.

    straggler_s: the last rank's backward beyond the nominal one, by jitter, slow nodes and late
    starts; exposed_s: the communication after it; lost_s: the restart and the steps that ran twice.
    """

    step_s: Times
    exposed_s: Times
    straggler_s: Times
    total_s: float
    lost_s: float


def simulate(
    steps: int,
    *,
    groups: Sequence[tuple[float, float]],
    compute_s: float,
    topology: Topology,
    algorithm: str,
    update_s: float = 0.0,
    launch_s: float = 0.0,
    jitter: float = 0.0,
    faults: Faults = NO_FAULTS,
    seed: int = 0,
) -> Result:
    """Run `steps` steps on all ranks of `topology`.

    Args:
        groups: (ready_s from the start of the step, bytes), in launch order.
        compute_s: forward and backward of a rank that nothing disturbs.
        topology: the machine; `flat(ranks, link)` where all ranks are alike.
        algorithm: as `comm.algorithm`, with or without a grid.
        launch_s: what each group costs before its first message (negotiation, kernel launch).
        jitter: of compute, drawn for each rank and step: a normal factor of mean 1, its deviation.
        seed: the same seed gives the same result.

    Raises:
        ValueError: unknown algorithm, or a fault on a node that is not there.
    """
    _check(topology, faults)
    programs = [
        (ready_s, compile_allreduce(algorithm, topology, n_bytes, faults.slow_link))
        for ready_s, n_bytes in groups
    ]
    draw = np.random.default_rng([seed, int.from_bytes(b"compute", "little")])
    clocks = np.zeros(topology.ranks)
    rows: list[tuple[float, float, float]] = []
    numbers = []
    start_s = lost_s = 0.0
    for number in _step_numbers(steps, faults.failure):
        if number < 0 and faults.failure is not None:  # the restart
            clocks[:] = start_s = start_s + faults.failure.restart_s
            lost_s += faults.failure.restart_s
            continue
        factor = np.maximum(0.0, draw.normal(1.0, jitter, topology.ranks))
        if faults.slow_node is not None:
            first = faults.slow_node.node * topology.node.ranks
            factor[first : first + topology.node.ranks] *= faults.slow_node.factor
        backward_s, free_s = clocks + compute_s * factor, clocks
        for ready_s, program in programs:  # a factor stretches a rank's compute evenly
            free_s = run(np.maximum(free_s, clocks + ready_s * factor) + launch_s, program)
        clocks = np.maximum(free_s, backward_s) + update_s
        end_s, last_s = float(clocks.max()), float(backward_s.max())
        rows.append((end_s - start_s, end_s - update_s - last_s, last_s - start_s - compute_s))
        numbers.append(number)
        start_s = end_s
    step_s, exposed, straggler = (np.array(column) for column in zip(*rows, strict=True))
    ran_again = [i for i, number in enumerate(numbers) if number in numbers[i + 1 :]]
    lost_s += float(step_s[ran_again].sum())
    return Result(step_s, exposed, straggler, start_s, lost_s)


def _step_numbers(steps: int, failure: Failure | None) -> Iterator[int]:
    """0, 1, ...; at the failure -1, then again from the last checkpoint."""
    if failure is None or failure.step >= steps:
        yield from range(steps)
        return
    yield from range(failure.step)
    yield -1
    yield from range(failure.step - failure.step % failure.checkpoint_steps, steps)


def _check(topology: Topology, faults: Faults) -> None:
    for fault in (faults.slow_node, faults.slow_link):
        if fault is not None and not 0 <= fault.node < topology.nodes:
            raise ValueError(f"a node from 0 to {topology.nodes - 1} expected, found {fault.node}")
    if faults.slow_link is not None and topology.nodes == 1:
        raise ValueError("a slow link needs more than one node")


def simulate_job(
    job: Job,
    steps: int,
    seed: int = 0,
    *,
    slow_node: float = 1.0,
    slow_link: float = 1.0,
    fail_step: int | None = None,
) -> dict[str, Any]:
    """Figures of `steps` steps with the machine's jitter and the faults asked for.

    `slow_node` and `slow_link` are factors on the time of node 0's computation and messages.

    The simulation knows neither rare interruptions nor synchronised batch norm nor input:
    `closed_form_ms` is what the model says without those, for comparison; `predicted_ms` is all.
    Raises UserError: a fault that the simulation cannot place.
    """
    machine = build(job.name, job.system, job.precision)
    first = job.segments[0]
    gpus, about = first.ranks, machine.performance
    if gpus == 1:
        raise UserError("--simulate: two GPUs or more expected, found 1")
    step = step_time(machine, gpus, first.batch, groups=job.groups, algorithm=job.algorithm)
    compute_s = machine.compute_s(first.batch) - step.optimizer_s
    start_s = compute_s - max(group.ready_s for group in step.groups)
    planned = wire_groups(job.groups or about.groups, job.precision)
    largest = max(step.groups, key=lambda group: group.n_bytes)
    algorithm = largest.algorithm
    if fail_step is not None and fail_step >= steps:
        raise UserError(f"--fail-step: below --steps ({steps}) expected, found {fail_step}")
    faults = Faults(
        slow_node=SlowNode(0, slow_node) if slow_node > 1 else None,
        slow_link=SlowLink(0, slow_link) if slow_link > 1 else None,
        failure=Failure(fail_step, CHECKPOINT_STEPS, restart_s(gpus, about)) if fail_step else None,
    )
    topology = topology_of(machine, gpus, tree=algorithm == "double_tree")
    if faults.slow_link is not None and topology.nodes == 1:
        raise UserError(f"--slow-link: GPUs on two nodes or more expected, found {gpus} on one")
    result = simulate(
        steps,
        groups=[
            (start_s + t.ready_s, g.n_bytes) for t, g in zip(step.groups, planned, strict=True)
        ],
        compute_s=compute_s,
        topology=topology,
        algorithm=with_grid(machine, gpus, algorithm),
        update_s=step.optimizer_s,
        launch_s=about.launch_s,
        jitter=about.jitter,
        faults=faults,
        seed=seed,
    )
    quiet_s = step.total_s - step.straggler_s - step.bn_sync_s - step.input_s
    jitter_s = straggler_s(gpus, compute_s, quiet_s, jitter=about.jitter, os_noise_fraction=0.0)
    return {
        "ranks": gpus,
        "steps": len(result.step_s),
        "algorithm": algorithm,
        "step_ms": float(result.step_s.mean() * 1e3),
        "slowest_step_ms": float(result.step_s.max() * 1e3),
        "straggler_ms": float(result.straggler_s.mean() * 1e3),
        "exposed_ms": float(result.exposed_s.mean() * 1e3),
        "closed_form_without_jitter_ms": quiet_s * 1e3,
        "closed_form_ms": (quiet_s + jitter_s) * 1e3,
        "predicted_ms": step.total_s * 1e3,
        "total_s": float(result.total_s),
        "lost_s": float(result.lost_s),
    }
