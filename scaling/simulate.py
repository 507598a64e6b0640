"""Simulation of training steps by a clock a rank, moved by every message: an oracle. Pure.

Per rank: a step's forward and backward stretched by jitter, during which groups of gradients
become ready; each group is one allreduce, started when the rank has it and has finished the group
before (one communication stream); the update follows; then the next step, without a barrier. With
no jitter this is `step.exposed` over `cost.allreduce`; tests hold it to 1e-9.

A message leaves when its sender has finished the round before; its receiver is done when it has
arrived, and not before the receiver's own link and adder are free:

    t'[dst] = max(t[dst] + m (beta + gamma), t[src] + alpha + m (beta + gamma))

Messages of a round share links: a node's its NICs, a rack's its uplinks, a rank's its own link,
each at the busier of the two ends.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config.errors import UserError
from .collectives import Ranks, Round, schedule
from .cost import TREE_CHUNK_BYTES, topology_grid
from .layers import wire_groups
from .machine import topology_of
from .predict import Job
from .step import build, step_time, straggler_s, with_grid
from .topology import Topology

MOST_FACTOR = 1_000_000
"""By which a node may be slower: what takes a million times as long stands still."""
Times = NDArray[np.float64]


class Work(NamedTuple):
    """A step of every rank of `topology`."""

    groups: tuple[tuple[float, float], ...]
    """(ready_s from the start of the step, bytes), in launch order."""
    compute_s: float
    """Forward and backward of a rank that nothing disturbs."""
    topology: Topology
    algorithm: str
    """As `comm.algorithm`, with or without a grid."""
    update_s: float = 0.0
    launch_s: float = 0.0
    """What each group costs before its first message (negotiation, kernel launch)."""
    jitter: float = 0.0
    """Deviation of compute, drawn for each rank and step: a normal factor of mean 1."""
    slow_node: float = 1.0
    """Factor by which node 0 computes slower."""


class Result(NamedTuple):
    """One entry a step; step = compute + straggler + exposed + update.

    straggler_s: the last rank's backward beyond the nominal one, by jitter, slow nodes and late
    starts; exposed_s: the communication after it.
    """

    step_s: Times
    exposed_s: Times
    straggler_s: Times


class _Stage(NamedTuple):
    """A round on a machine: latency and occupancy of its messages."""

    round: Round
    latency_s: Times
    wire_s: Times
    once: bool
    """No rank sends or receives two: ten times as fast."""
    tail_s: float = 0.0


def simulate(work: Work, steps: int, seed: int = 0) -> Result:
    """Run `steps` steps; the same seed gives the same result. Raises ValueError: an unknown
    algorithm."""
    topology = work.topology
    programs = [
        (ready_s, _compile(work.algorithm, topology, n_bytes)) for ready_s, n_bytes in work.groups
    ]
    draw = np.random.default_rng([seed, int.from_bytes(b"compute", "little")])
    clocks = np.zeros(topology.ranks)
    rows = []
    start_s = 0.0
    for _ in range(steps):
        factor = np.maximum(0.0, draw.normal(1.0, work.jitter, topology.ranks))
        factor[: topology.node.ranks] *= work.slow_node
        backward_s, free_s = clocks + work.compute_s * factor, clocks
        for ready_s, program in programs:  # a factor stretches a rank's compute evenly
            free_s = np.maximum(free_s, clocks + ready_s * factor) + work.launch_s
            for stage in program:
                free_s = _run(free_s, stage)
        clocks = np.maximum(free_s, backward_s) + work.update_s
        end_s, last_s = float(clocks.max()), float(backward_s.max())
        rows.append(
            (end_s - start_s, end_s - work.update_s - last_s, last_s - start_s - work.compute_s)
        )
        start_s = end_s
    return Result(*(np.array(column) for column in zip(*rows, strict=True)))


def _compile(algorithm: str, topology: Topology, n_bytes: float) -> list[_Stage]:
    """The allreduce of `n_bytes` on this machine. The double tree sends one chunk a tree through
    its levels; the others follow at the busiest rank's pace, as in `cost.double_tree`."""
    tail_s = 0.0
    if algorithm == "double_tree":
        chunks = max(1, math.ceil(n_bytes / 2 / TREE_CHUNK_BYTES))
        chunk = n_bytes / 2 / chunks
        inside = topology.node.inside
        link = topology.one_flow() if topology.nodes > 1 else inside
        beta = max(link.beta_s_per_byte, inside.beta_s_per_byte)
        tail_s = (chunks - 1) * (4 * chunk * beta + 2 * chunk * link.gamma_s_per_byte)
        n_bytes = 2 * chunk
    rounds = list(schedule(algorithm, topology.ranks, n_bytes, topology_grid(topology)))
    stages = [_stage(topology, one) for one in rounds]
    return [*stages[:-1], stages[-1]._replace(tail_s=tail_s)]


def _stage(topology: Topology, one: Round) -> _Stage:
    """Who shares what: a rank its link and its adder, a node its NICs, a rack its uplinks."""
    node, src, dst = topology.node, one.src, one.dst
    src_node, dst_node = src // node.ranks, dst // node.ranks
    leaves = src_node != dst_node
    nic_beta = node.nic.beta_s_per_byte / node.nics
    across = nic_beta * _busier(src_node, dst_node, leaves)
    if 0 < topology.rack_nodes < topology.nodes:
        src_rack, dst_rack = src_node // topology.rack_nodes, dst_node // topology.rack_nodes
        uplink = nic_beta / topology.rack_nodes * topology.oversubscription
        across = np.maximum(across, uplink * _busier(src_rack, dst_rack, src_rack != dst_rack))
    inside = node.inside.beta_s_per_byte * _busier(src, dst, ~leaves)
    gamma = node.inside.gamma_s_per_byte * np.bincount(dst)[dst] if one.reduce else 0.0
    latency_s = np.where(
        leaves, node.nic.latency_s(one.n_bytes), node.inside.latency_s(one.n_bytes)
    )
    wire_s = one.n_bytes * (np.where(leaves, across, inside) + gamma)
    once = bool(np.bincount(src).max() == 1 == np.bincount(dst).max())
    return _Stage(round=one, latency_s=latency_s, wire_s=wire_s, once=once)


def _busier(src: Ranks, dst: Ranks, counted: NDArray[np.bool_]) -> Times:
    """Of each message: how many `counted` ones leave its source, or enter its destination."""
    places = int(max(src.max(), dst.max())) + 1
    out = np.bincount(src[counted], minlength=places)[src]
    into = np.bincount(dst[counted], minlength=places)[dst]
    return np.maximum(out, into) * counted


def _run(clocks: Times, stage: _Stage) -> Times:
    """The ranks' clocks after a stage."""
    src, dst = stage.round.src, stage.round.dst
    arrival_s = stage.latency_s + stage.wire_s
    clocks = clocks.copy()
    for _ in range(stage.round.repeat):
        sent_s = clocks[src]
        done_s = np.maximum(clocks[dst] + stage.wire_s, sent_s + arrival_s)
        if stage.once:
            clocks[src] = sent_s + stage.wire_s
            clocks[dst] = np.maximum(clocks[dst], done_s)
        else:
            np.maximum.at(clocks, src, sent_s + stage.wire_s)
            np.maximum.at(clocks, dst, done_s)
    return clocks + stage.tail_s


def simulate_job(job: Job, steps: int, seed: int = 0, slow_node: float = 1.0) -> dict[str, Any]:
    """Figures of `steps` steps with the machine's jitter; one node computes `slow_node` times as
    long.

    The simulation has neither rare interruptions nor synchronised batch norm nor input:
    `closed_form_ms` is what the model says without those, for comparison; `predicted_ms` is all.
    Raises UserError: one GPU alone, or a factor that stands for a node that stands still.
    """
    machine = build(job.name, job.system, job.precision)
    first = job.segments[0]
    gpus, about = first.ranks, machine.performance
    if gpus == 1:
        raise UserError("--gpus: two GPUs or more expected for a simulation, found 1")
    if not 1 <= slow_node <= MOST_FACTOR:
        raise UserError(f"--slow-node: a factor up to {MOST_FACTOR:,} expected, found {slow_node}")
    step = step_time(machine, gpus, first.batch, groups=job.groups, algorithm=job.algorithm)
    algorithm = max(step.groups, key=lambda group: group.n_bytes).algorithm
    topology = topology_of(machine, gpus, tree=algorithm == "double_tree")
    compute_s = machine.compute_s(first.batch) - step.optimizer_s
    start_s = compute_s - max(group.ready_s for group in step.groups)
    planned = wire_groups(job.groups or about.groups, job.precision)
    work = Work(
        groups=tuple(
            (start_s + t.ready_s, g.n_bytes) for t, g in zip(step.groups, planned, strict=True)
        ),
        compute_s=compute_s,
        topology=topology,
        algorithm=with_grid(machine, gpus, algorithm),
        update_s=step.optimizer_s,
        launch_s=about.launch_s,
        jitter=about.jitter,
        slow_node=slow_node,
    )
    result = simulate(work, steps, seed)
    quiet_s = step.total_s - step.straggler_s - step.bn_sync_s - step.input_s
    jitter_s = straggler_s(gpus, compute_s, quiet_s, jitter=about.jitter, os_noise_fraction=0.0)
    return {
        "ranks": gpus,
        "steps": steps,
        "algorithm": algorithm,
        "step_ms": float(result.step_s.mean() * 1e3),
        "slowest_step_ms": float(result.step_s.max() * 1e3),
        "straggler_ms": float(result.straggler_s.mean() * 1e3),
        "exposed_ms": float(result.exposed_s.mean() * 1e3),
        "closed_form_without_jitter_ms": quiet_s * 1e3,
        "closed_form_ms": (quiet_s + jitter_s) * 1e3,
        "predicted_ms": step.total_s * 1e3,
        "total_s": float(result.step_s.sum()),
    }
