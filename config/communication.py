"""The plan of communication: what sums the gradients, how, on which grid and in which groups, and
who chose that. Pure.

`rn50 launch` sets the engine by it, `config check` refuses by it, the dry run and the report show
it, `rn50 predict` prices it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ..host.errors import UserError
from .algorithms import GRIDS, IN_SWITCHES, grid, parse_algorithm
from .engines import ALGORITHMS, PRODUCTS, Backend, Controller, Family
from .machine import Performance, System
from .schema import Run

Chooser = Literal["config", "engine", "machine", "what-if", "search"]
CHOOSERS: dict[Chooser, str] = {
    "config": "chosen by the config",
    "engine": "chosen by the engine",
    "machine": "of the machine's own published software",
    "what-if": "a what-if",
    "search": "found by --best",
}


class Engine(NamedTuple):
    """What sums the gradients. `mpi`: the one that Horovod was linked to; None: not known."""

    backend: Backend
    mpi: Family | None = None
    controller: Controller = "mpi"

    @property
    def name(self) -> str:
        """The engine's name for people."""
        if self.backend == "mpi" and self.mpi:
            return PRODUCTS[self.mpi]
        return self.backend

    @property
    def offered(self) -> dict[str, dict[str, str]]:
        """The settings of each algorithm that it can be told to use."""
        if self.backend == "mpi" and self.mpi:
            return ALGORITHMS[self.mpi]
        return ALGORITHMS[self.backend]


def engine_of(system: System, controller: Controller, mpi: Family | None) -> Engine:
    """NCCL moves the gradients between GPUs, `controller` those between CPUs."""
    backend: Backend = "nccl" if system.device == "gpu" else controller
    return Engine(backend, mpi, controller)


@dataclass(frozen=True)
class Communication:
    """`algorithm`: as `comm.algorithm` names it, with its grid where it has one. `switches_reduce`:
    whether the machine's switches may. `refusal`: why `rn50 launch` would refuse it; empty: it
    would not."""

    engine: Engine
    algorithm: str
    algorithm_by: Chooser
    groups: str
    groups_by: Chooser
    switches_reduce: bool
    refusal: str = ""

    @property
    def priced(self) -> tuple[str, ...]:
        """What the model takes the fastest of, for each message. Where the engine chooses, NCCL
        does between rings, trees and switches; Gloo has a ring alone, an MPI what it can be told to
        use, or what every MPI has."""
        if self.algorithm != "auto":
            return (self.algorithm,)
        if self.engine.backend == "gloo":
            return ("ring",)
        if self.engine.backend == "nccl":
            switches = (IN_SWITCHES,) if self.switches_reduce else ()
            return ("ring", "double_tree", *switches)
        # no engine chooses a grid by itself: those are steps of Horovod or of the trainer
        flat = [name for name in self.engine.offered if name not in ("auto", *GRIDS)]
        every_mpi = ("ring", "recursive_doubling", "recursive_halving_doubling")
        return tuple(flat) or every_mpi

    @property
    def note(self) -> str:
        """Who chose the algorithm, and whether it runs."""
        if self.algorithm_by == "machine":
            note = CHOOSERS["machine"]
        else:
            note = f"{self.engine.name}, {CHOOSERS[self.algorithm_by]}"
        return f"{note}; rn50 launch refuses it" if self.refusal else note

    def __str__(self) -> str:
        return f"{self.algorithm} ({self.note})"

    def to_dict(self) -> dict[str, Any]:
        """The plan as `rn50 predict --json` prints it."""
        name, sides = parse_algorithm(self.algorithm)
        return {
            "backend": self.engine.backend,
            "engine": self.engine.name,
            "algorithm": name,
            "grid": sides,
            "algorithm_by": self.algorithm_by,
            "groups": self.groups,
            "groups_by": self.groups_by,
            # the command line asked for another plan than the config's
            "what_if": "what-if" in (self.algorithm_by, self.groups_by),
            "launch_refuses": self.refusal or None,
        }


def plan_communication(run: Run, engine: Engine) -> Communication:
    """What `rn50 launch` does for `run`. Raises UserError: the engine does not offer the algorithm,
    or the ranks have no such grid."""
    algorithm = launched(run.comm.algorithm, run.system, run.system.world_size, engine)
    performance = run.system.performance or Performance()
    return Communication(
        engine=engine,
        algorithm=algorithm,
        algorithm_by="engine" if algorithm == "auto" else "config",
        groups=run.comm.groups,
        groups_by="config",
        switches_reduce=performance.switches_reduce,
    )


def plan_of_any(run: Run, mpi: Family | None) -> Communication:
    """The plan by the first controller that offers what the config asks for. Raises UserError: none
    does, in the words of the first."""
    refused = []
    controllers: tuple[Controller, ...] = ("mpi", "gloo")
    for controller in controllers:
        try:
            return plan_communication(run, engine_of(run.system, controller, mpi))
        except UserError as error:
            refused.append(error)
    raise refused[0]


def plan_own(system: System, ranks: int, mpi: Family | None = None) -> Communication:
    """What the published runs of a machine did, by software of its own where that is another."""
    engine = engine_of(system, "mpi", mpi)
    performance = system.performance or Performance()
    plan = Communication(
        engine=engine,
        algorithm="auto",
        algorithm_by="engine",
        groups=performance.groups,
        groups_by="machine",
        switches_reduce=performance.switches_reduce,
    )
    if performance.algorithm == "auto":
        return plan
    algorithm = own_grid(
        performance.algorithm, system, ranks, squarest=performance.square_torus
    )
    # software of its own may have what no engine here offers
    return _free(plan, algorithm, system, ranks, "machine")


def what_if(
    plan: Communication,
    system: System,
    ranks: int,
    algorithm: str | None,
    groups: str | None,
) -> Communication:
    """`plan` with another algorithm or other groups, whether or not a launch would take them.

    Args:
        plan: what a launch does.
        system: the machine, whose nodes make the grid.
        ranks: how many sum.
        algorithm: the other algorithm; None: that of `plan`.
        groups: the other groups; None: those of `plan`.

    Raises:
        UserError: there is no such algorithm or grid.
    """
    if groups is not None:
        plan = replace(plan, groups=groups, groups_by="what-if")
    if algorithm is None:
        return plan
    return _free(plan, algorithm, system, ranks, "what-if")


def offered_plans(
    plan: Communication, system: System, ranks: int
) -> Iterator[Communication]:
    """`plan` with each algorithm that its engine offers for so many ranks."""
    for name in plan.engine.offered:
        try:
            algorithm = launched(name, system, ranks, plan.engine)
        except UserError:  # no grid of so many ranks
            continue
        yield replace(plan, algorithm=algorithm, algorithm_by="search", refusal="")


def at_size(plan: Communication, system: System, ranks: int) -> Communication:
    """The same choice on another number of ranks: its grid follows; where they have none the engine
    chooses."""
    name = plan.algorithm.partition("(")[0]
    # what was a what-if stays one at any size
    if plan.refusal:
        return _free(plan, name, system, ranks, plan.algorithm_by)
    try:
        algorithm = launched(name, system, ranks, plan.engine)
    except UserError:
        algorithm = "auto"
    return replace(plan, algorithm=algorithm)


def launched(algorithm: str, system: System, ranks: int, engine: Engine) -> str:
    """`algorithm` with the grid on which so many ranks sum.

    Args:
        algorithm: as `comm.algorithm` names it.
        system: the machine, whose nodes make the grid.
        ranks: how many sum.
        engine: what sums.

    Raises:
        UserError: `engine` does not offer it, or the ranks have no such grid.
    """
    name = algorithm.partition("(")[0]
    if name not in engine.offered:
        raise UserError(
            f"comm.algorithm: one that {engine.name} offers expected "
            f"({', '.join(engine.offered)}), found {algorithm}"
        )
    if name == "hierarchical" and engine.controller != "mpi":
        # It sums over nodes by MPI_Allreduce (the torus by NCCL); without MPI Horovod would take
        # NCCL's own allreduce without a word.
        raise UserError(
            "comm.algorithm: a launcher of MPI (mpirun, srun) expected for hierarchical on nccl, "
            f"found {engine.controller}"
        )
    return with_grid(algorithm, system, ranks)


def with_grid(algorithm: str, system: System, ranks: int) -> str:
    """`algorithm` with the grid, rows x columns, on which the trainer's `ranks` sum, if it has one.

    On CPUs the torus may be any, and is the squarest by default; on GPUs rows are nodes and columns
    the ranks of a node (Horovod 0.28.1 over NCCL).

    Raises:
        UserError: unknown algorithm, a grid that is not to be had, or one of too few ranks, where
            Horovod would take another allreduce.
    """
    name, chosen = parse_algorithm(algorithm, ranks)
    if name not in GRIDS:
        return algorithm
    any_grid = system.device == "cpu"
    sides = grid(ranks) if any_grid else _nodes_grid(system, ranks)
    if chosen and not any_grid and chosen != sides:
        raise UserError(
            f"comm.algorithm: {name}({sides[0]}x{sides[1]}) on GPUs expected, nodes x ranks of a "
            f"node, found {algorithm}"
        )
    rows, columns = chosen or sides
    if rows < 2 or (any_grid and columns < 2):
        expected = (
            "ranks in a grid of at least 2x2" if any_grid else "two nodes or more"
        )
        raise UserError(
            f"comm.algorithm: {expected} for {algorithm} expected, found {ranks} = {rows}x{columns}"
        )
    return f"{name}({rows}x{columns})"


def _nodes_grid(system: System, ranks: int) -> tuple[int, int]:
    per_node = min(ranks, system.ranks_per_node)
    return math.ceil(ranks / per_node), per_node


def _free(
    plan: Communication, algorithm: str, system: System, ranks: int, chooser: Chooser
) -> Communication:
    """`plan` with any algorithm that can be priced. Raises UserError: it cannot."""
    refusal = ""
    try:
        algorithm = launched(algorithm, system, ranks, plan.engine)
    except UserError as error:
        refusal = str(error)
        algorithm = own_grid(algorithm, system, ranks)
    return replace(plan, algorithm=algorithm, algorithm_by=chooser, refusal=refusal)


def own_grid(
    algorithm: str, system: System, ranks: int, *, squarest: bool = False
) -> str:
    """`algorithm` with the grid that it is given; without one, nodes x ranks of a node or, on one
    node and where it is asked for, the squarest.

    Args:
        algorithm: as `comm.algorithm` names it.
        system: the machine, whose nodes make the grid.
        ranks: how many sum.
        squarest: whether the grid is the squarest on several nodes too.

    Raises:
        UserError: there is no such algorithm or grid.
    """
    name, sides = parse_algorithm(algorithm, ranks, "--algorithm")
    if name not in GRIDS:
        return algorithm
    if sides is None:
        sides = _nodes_grid(system, ranks)
        # one row or column is a ring, no torus
        if 1 in sides or squarest:
            sides = grid(ranks)
    return f"{name}({sides[0]}x{sides[1]})"
