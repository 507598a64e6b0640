"""The discrete-event simulation of a predicted job, beside its closed form. Pure."""

from __future__ import annotations

from typing import Any

from ..config.errors import UserError
from .clocks import SlowLink
from .layers import wire_groups
from .machine import topology_of
from .predict import Job
from .simulate import Failure, Faults, SlowNode, simulate
from .step import build, step_time, straggler_s, with_grid

CHECKPOINT_STEPS = 10
RESTART_S = 10.0


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
        failure=Failure(fail_step, CHECKPOINT_STEPS, RESTART_S) if fail_step else None,
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
