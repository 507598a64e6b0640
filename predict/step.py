"""Time of one training step: computation, exposed communication, stragglers, input. Pure.

step = max(compute + exposed + launches + synchronised batch norm + stragglers, input)
(`docs/scaling.md`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

from ..config.algorithms import IN_SWITCHES
from ..config.communication import Communication, plan_own
from .cost import allreduce, in_switches
from .gpu import update_s
from .hardware import Machine, topology_of
from .layer_table import BATCH_NORM_EXCHANGES, backward_fraction, wire_groups

PAUSE_S = 0.1
"""Length of a rare interruption of a rank (page-cache flush, daemon, link retrain)."""


@dataclass(frozen=True)
class GroupTimes:
    """A group of gradients in a step; seconds from the start of backward."""

    algorithm: str
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Step:
    """The parts of one step in seconds; they add up to `total_s`."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    launch_s: float
    """Launches and small kernels: the part that no batch makes larger, update aside."""
    exposed_s: float
    """Communication that backward does not hide."""
    bn_sync_s: float
    straggler_s: float
    input_s: float
    """Waiting for images."""
    groups: tuple[GroupTimes, ...]

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each part, by its name for people."""
        return {
            "forward": self.forward_s,
            "backward": self.backward_s,
            "optimizer": self.optimizer_s,
            "launch": self.launch_s,
            "exposed": self.exposed_s,
            "bn sync": self.bn_sync_s,
            "straggler": self.straggler_s,
            "input": self.input_s,
        }

    @property
    def total_s(self) -> float:
        """The whole step."""
        return math.fsum(self.parts.values())

    @property
    def allreduce(self) -> str:
        """How the groups are summed; empty: by nobody."""
        algorithms = [group.algorithm for group in self.groups]
        return ", ".join(dict.fromkeys(algorithms))


def step_time(
    machine: Machine, gpus: int, batch: int, plan: Communication | None = None
) -> Step:
    """One training step.

    Args:
        machine: the machine's model.
        gpus: how many ranks take part.
        batch: images of each.
        plan: how gradients are summed; None: by the machine's own software.
    """
    performance = machine.performance
    plan = plan or plan_own(machine.system, gpus)
    growing = machine.growing_s(batch)
    # a part of the fixed time, which points may set below what the memory's rate allows
    optimizer = min(machine.fixed_s, update_s(performance))
    launch = machine.fixed_s - optimizer
    share = backward_fraction()
    backward = share * growing
    times, exposed_s = _communicate(machine, gpus, plan, backward, share * launch)
    compute = machine.compute_s(batch)
    sync = _bn_sync_s(machine, gpus, batch)
    busy = compute + exposed_s + sync
    straggler = straggler_s(machine, gpus, compute, busy)
    decoding = 0.0
    if performance.node_images_per_s:
        local = min(gpus, machine.system.ranks_per_node)
        decoding = local * batch / performance.node_images_per_s
    return Step(
        forward_s=growing - backward,
        backward_s=backward,
        optimizer_s=optimizer,
        launch_s=launch,
        exposed_s=exposed_s,
        bn_sync_s=sync,
        straggler_s=straggler,
        input_s=max(0.0, decoding - busy - straggler),
        groups=times,
    )


def group_cost_s(
    machine: Machine, gpus: int, n_bytes: float, algorithms: Iterable[str]
) -> tuple[str, float]:
    """(algorithm, seconds) of one allreduce: the fastest of several.

    Args:
        machine: the machine's model.
        gpus: how many ranks sum.
        n_bytes: what each of them has.
        algorithms: those that may be taken.
    """
    costs_s = []
    for name in algorithms:
        tree = name in ("double_tree", IN_SWITCHES)
        # within one node no message comes to a switch
        if name == IN_SWITCHES:
            topology = topology_of(machine, gpus, tree=tree)
            if topology.nodes > 1:
                costs_s.append((name, in_switches(topology, n_bytes)))
            continue
        of_counts_s = [
            allreduce(name, topology_of(machine, ranks, tree=tree), n_bytes)
            for ranks in _counts(machine, gpus, name)
        ]
        costs_s.append((name, min(of_counts_s)))
    return min(costs_s, key=lambda cost: cost[1])


def _counts(machine: Machine, gpus: int, algorithm: str) -> tuple[int, ...]:
    """Ranks whose allreduce may be that of `gpus`. Halving and doubling fold ranks beyond a power
    of two as MPICH does, which can cost more than the next power of two; Gloo's binary blocks do
    not (Thakur et al. 2005, section 4.4), so the next power of two is the most that it takes."""
    nodes = topology_of(machine, gpus).nodes
    if algorithm != "recursive_halving_doubling" or nodes.bit_count() == 1:
        return (gpus,)
    per_node = min(gpus, machine.system.ranks_per_node)
    return gpus, (1 << nodes.bit_length()) * per_node


def straggler_s(machine: Machine, ranks: int, compute_s: float, busy_s: float) -> float:
    """How much longer the slowest of p ranks takes: ordinary jitter, and rare interruptions.

    Jitter is normal with sigma = jitter x compute: the expected maximum of p draws is about
    sigma z((p - 3/8) / (p + 1/4)) (Blom 1958), sqrt(2 ln p) in the limit. Interruptions of PAUSE_S
    take the share f = `os_noise_fraction` of a rank's time; while they are rare, the step waits for
    all of them: PAUSE (1 - exp(-p f t / PAUSE)), linear in p at first (Petrini et al. 2003).

    Args:
        machine: the machine's model.
        ranks: how many take part.
        compute_s: the time in which a rank computes.
        busy_s: that time with all that it waits for.
    """
    if ranks == 1:
        return 0.0
    performance = machine.performance
    sigmas = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    interrupted_s = ranks * performance.os_noise_fraction * busy_s
    # 1 - exp(-x), without the digits that a small x would lose
    waits = PAUSE_S * -math.expm1(-interrupted_s / PAUSE_S)
    return performance.jitter * compute_s * sigmas + waits


def _bn_sync_s(machine: Machine, gpus: int, batch: int) -> float:
    """One exchange per batch norm, forward and backward, for each doubling of the group of ranks
    that share its statistics: log2 of `bn_group_samples` over the batch, without its steps.

    Entries have groups of 2 at 15 and 16 images and none at 35, and where between them groups
    end has not been published. So a larger batch never makes a step shorter.
    """
    performance = machine.performance
    ranks = min(gpus, machine.system.ranks_per_node, performance.bn_group_ranks)
    sharing = max(1.0, performance.bn_group_samples / batch)
    exchanges = BATCH_NORM_EXCHANGES * math.log2(min(ranks, sharing))
    return exchanges * performance.bn_exchange_s


def _communicate(
    machine: Machine, gpus: int, plan: Communication, growing_s: float, fixed_s: float
) -> tuple[tuple[GroupTimes, ...], float]:
    """When each group is on the network, and the time exposed, after the end of backward:
    wait-free backpropagation, one group at a time.

    tau_c(l) = max(tau_c(l+1) + t_c(l+1), tau_b(l) + t_b(l)), a group being ready with its last
    tensor; exposed = tau_c(1) + t_c(1) - end of backward (Shi et al. 2019, MG-WFBP). Backward takes
    `growing_s`, which depends on the batch, and `fixed_s`, its share of launches.
    """
    if gpus == 1:
        return (), 0.0
    free_s = 0.0
    times = []
    for group in wire_groups(plan.groups, machine.precision):
        name, sum_s = group_cost_s(machine, gpus, group.n_bytes, plan.priced)
        ready_s = group.ready * growing_s + group.ready_fixed * fixed_s
        # one group at a time: the next one waits for the network too
        start_s = max(free_s, ready_s)
        free_s = start_s + (sum_s + machine.performance.launch_s)
        times.append(GroupTimes(name, ready_s, start_s, free_s))
    backward_s = growing_s + fixed_s
    return tuple(times), max(free_s, backward_s) - backward_s
