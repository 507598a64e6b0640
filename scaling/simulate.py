"""Discrete-event simulation of training steps: ranks, links, groups, jitter and faults. Pure.

Per rank: a step's forward and backward stretched by jitter, during which groups of gradients
become ready; each group is one allreduce, started when the rank has it and has finished the group
before (one communication stream), and run message by message on the clocks (`clocks.py`); the
update follows; then the next step, without a barrier. Groups of one rank never share the network.
With no jitter this is `overlap.exposed` over `cost.allreduce`; tests hold it to 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .clocks import Program, SlowLink, Times, compile_allreduce, run
from .topology import Topology


class Jitter(NamedTuple):
    """A factor on a time, drawn anew for each rank and step; `spread` in units of that time."""

    kind: str = "none"
    spread: float = 0.0


STEADY = Jitter()

# Mean 1 but for "exponential", which is never early: 1 + spread x Exp(1).
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int, float], Times]] = {
    "none": lambda _rng, size, _: np.ones(size),
    "normal": lambda rng, size, spread: np.maximum(0.0, rng.normal(1.0, spread, size)),
    "lognormal": lambda rng, size, spread: rng.lognormal(-(spread**2) / 2, spread, size),
    "exponential": lambda rng, size, spread: 1.0 + rng.exponential(spread, size),
}


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


class Span(NamedTuple):
    """A part of a step, from its start: when the first and the last rank begin and end it."""

    name: str
    first_start_s: float
    last_start_s: float
    first_end_s: float
    last_end_s: float


class Result(NamedTuple):
    """One entry per step that ran; step = compute + straggler + exposed + update.

    straggler_s: the last rank's backward beyond the nominal one, by jitter, slow nodes and late
    starts; exposed_s: the communication after it; latest_rank: who that rank was; lost_s: the
    restart and the steps that ran twice; timeline: the last step.
    """

    step_s: Times
    exposed_s: Times
    straggler_s: Times
    latest_rank: NDArray[np.int64]
    total_s: float
    lost_s: float
    timeline: list[Span]


class _Step(NamedTuple):
    end_s: Times
    backward_s: Times
    spans: list[Span]


def simulate(
    steps: int,
    *,
    groups: Sequence[tuple[float, float]],
    compute_s: float,
    topology: Topology,
    algorithm: str,
    update_s: float = 0.0,
    launch_s: float = 0.0,
    jitter: Jitter = STEADY,
    network_jitter: Jitter = STEADY,
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
        jitter: of compute, per rank and step.
        network_jitter: of each message's latency.
        seed: root of the streams "compute" and "network"; the same seed gives the same result.

    Raises:
        ValueError: unknown algorithm or distribution, or a fault on a node that is not there.
    """
    _check(topology, jitter, network_jitter, faults)
    programs = [
        (ready_s, compile_allreduce(algorithm, topology, n_bytes, faults.slow_link))
        for ready_s, n_bytes in groups
    ]
    compute, network = _stream(seed, "compute"), _stream(seed, "network")
    noise = None
    if network_jitter.kind != "none":
        draw, spread = DISTRIBUTIONS[network_jitter.kind], network_jitter.spread

        def noise(size: int) -> Times:
            return draw(network, size, spread)

    clocks = np.zeros(topology.ranks)
    rows: list[tuple[float, float, float, int]] = []
    numbers = []
    start_s = lost_s = 0.0
    spans: list[Span] = []
    for number in _step_numbers(steps, faults.failure):
        if number < 0 and faults.failure is not None:  # the restart
            clocks[:] = start_s = start_s + faults.failure.restart_s
            lost_s += faults.failure.restart_s
            continue
        factor = DISTRIBUTIONS[jitter.kind](compute, topology.ranks, jitter.spread)
        if faults.slow_node is not None:
            first = faults.slow_node.node * topology.node.ranks
            factor[first : first + topology.node.ranks] *= faults.slow_node.factor
        step = _step(clocks, factor, programs, compute_s, update_s, launch_s, noise)
        clocks, end_s = step.end_s, float(step.end_s.max())
        latest = int(step.backward_s.argmax())
        backward_s = float(step.backward_s[latest])
        exposed_s = end_s - update_s - backward_s
        rows.append((end_s - start_s, exposed_s, backward_s - start_s - compute_s, latest))
        numbers.append(number)
        spans = [Span(s.name, *(t - start_s for t in s[1:])) for s in step.spans]
        start_s = end_s
    step_s, exposed, straggler, ranks = (np.array(column) for column in zip(*rows, strict=True))
    ran_again = [i for i, number in enumerate(numbers) if number in numbers[i + 1 :]]
    lost_s += float(step_s[ran_again].sum())
    return Result(step_s, exposed, straggler, ranks, start_s, lost_s, spans)


def _step(
    clocks: Times,
    factor: Times,
    programs: Sequence[tuple[float, Program]],
    compute_s: float,
    update_s: float,
    launch_s: float,
    noise: Callable[[int], Times] | None,
) -> _Step:
    """One step of every rank from its own start; a factor stretches its compute evenly."""
    backward_s = clocks + compute_s * factor
    spans = [_span("forward and backward", clocks, backward_s)]
    free_s = clocks
    for index, (ready_s, program) in enumerate(programs):
        launched_s = np.maximum(free_s, clocks + ready_s * factor)
        free_s = run(launched_s + launch_s, program, noise)
        spans.append(_span(f"group {index + 1}", launched_s, free_s))
    update_start_s = np.maximum(free_s, backward_s)
    end_s = update_start_s + update_s
    spans.append(_span("update", update_start_s, end_s))
    return _Step(end_s, backward_s, spans)


def _span(name: str, start_s: Times, end_s: Times) -> Span:
    edges = start_s.min(), start_s.max(), end_s.min(), end_s.max()
    return Span(name, *(float(edge) for edge in edges))


def _step_numbers(steps: int, failure: Failure | None) -> Iterator[int]:
    """0, 1, ...; at the failure -1, then again from the last checkpoint."""
    if failure is None or failure.step >= steps:
        yield from range(steps)
        return
    yield from range(failure.step)
    yield -1
    yield from range(failure.step - failure.step % failure.checkpoint_steps, steps)


def _stream(seed: int, name: str) -> np.random.Generator:
    """A named stream: NumPy's documented SeedSequence over the root seed and the name."""
    return np.random.default_rng([seed, int.from_bytes(name.encode(), "little")])


def _check(topology: Topology, jitter: Jitter, network_jitter: Jitter, faults: Faults) -> None:
    for kind in (jitter.kind, network_jitter.kind):
        if kind not in DISTRIBUTIONS:
            raise ValueError(f"one of {', '.join(DISTRIBUTIONS)} expected, found {kind}")
    for fault in (faults.slow_node, faults.slow_link):
        if fault is not None and not 0 <= fault.node < topology.nodes:
            raise ValueError(f"a node from 0 to {topology.nodes - 1} expected, found {fault.node}")
    if faults.slow_link is not None and topology.nodes == 1:
        raise ValueError("a slow link needs more than one node")
