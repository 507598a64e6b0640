"""The names that a config and the command line may choose from: one table a fact.

The code behind a name stands in the room that runs it, in a table with the same names, which
`tests/test_extending.py` compares. Optimizer variants are in `variants.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from pydantic_core.core_schema import CoreSchema


NETWORKS = {
    "resnet": "ResNet v1.5; depth, width, stem, norm and zero_gamma are of it alone",
    "alexnet": "AlexNet, without batch norm",
    "googlenet": "GoogLeNet, Inception v1",
}
SHAPES = {
    "poly": "to end_lr over decay with power",
    "cosine": "to end_lr over decay along half a cosine",
    "step": "the factors of milestones, constant without any",
    "sony_b": "Sony's configuration B, which ignores the other keys",
}
GROUPINGS = {
    "cubic": "sizes that grow with the cube, the first of F tensors",
    "equal_bytes": "N groups of about as many bytes each",
    "equal_count": "N groups of as many tensors each",
    "halving": "N groups, each of half the bytes of the one before",
    "single": "all gradients together",
    "explicit": "the number of tensors of each group, last layers first",
}
ALGORITHMS = {
    "auto": "the engine's own choice",
    "ring": "reduce-scatter and allgather around a ring",
    "segmented_ring": "a ring in segments",
    "recursive_doubling": "whole messages between partners, ever further apart",
    "recursive_halving_doubling": "halves between partners, and back (Rabenseifner)",
    "double_tree": "two binary trees, each with half of the message (NCCL)",
    "torus_2d": "rings along the rows and columns of a grid",
    "hierarchical": "within the node, between nodes, within the node",
}
_BRACKETS: dict[str | int, tuple[str, ...]] = {
    **dict.fromkeys(("equal_bytes", "equal_count", "halving"), ("(N)",)),
    "cubic": ("(F)",),
    "explicit": ("(N,...)",),
    "torus_2d": ("", "(ROWSxCOLUMNS)"),
}
"""What stands behind a name, each way of it. A word in capitals is a number from 1, `N,...` a list
of them."""
LAUNCHERS = {
    "mpirun": "Open MPI",
    "gloo": "horovodrun without MPI",
    "srun": "Slurm",
    "hydra": "MPICH and Intel MPI",
}
SCHEDULERS = {
    "slurm": "Slurm",
    "sge": "Grid Engine",
    "pbs": "PBS Pro",
    "local": "none: the job runs at once, on this machine",
}


@dataclass(eq=False)
class Form:
    """The annotation of a field: what may be written, in words (for errors and the reference), and
    the function that parses it; one that returns None refuses the value."""

    description: str
    parse: Callable[[Any], Any]

    def __str__(self) -> str:
        return self.description

    def check(self, value: Any) -> Any:
        """The parsed value. Raises ValueError, which pydantic makes an error of: it is refused."""
        parsed = self.parse(value)
        if parsed is None:
            raise ValueError(self)
        return parsed

    def __get_pydantic_core_schema__(self, *_: Any) -> CoreSchema:
        # the command line reads the tables without pydantic
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.check)


class OneOf(Form):
    """One of the names of a table, with its brackets."""

    def __init__(self, names: Collection[str | int]) -> None:
        self._spellings = [spelling for name in names for spelling in _spellings(name)]
        super().__init__(", ".join(map(str, self._spellings)), self._find)

    def _find(self, value: Any) -> Any:
        if isinstance(value, str):
            names = (form for form in self._spellings if isinstance(form, str))
            fits = any(re.fullmatch(_pattern(name), value) for name in names)
        else:
            fits = isinstance(value, int) and value in self._spellings
        return value if fits else None


def _spellings(name: str | int) -> Sequence[str | int]:
    """`ring`; `torus_2d` and `torus_2d(ROWSxCOLUMNS)`."""
    if name not in _BRACKETS:
        return [name]
    return [f"{name}{brackets}" for brackets in _BRACKETS[name]]


def meanings(table: Mapping[str, str]) -> str:
    """The rows of a table as the description of a key."""
    return "; ".join(f"{name}: {meaning}" for name, meaning in table.items()) + "."


def _pattern(spelling: str) -> str:
    """The regular expression of `torus_2d(ROWSxCOLUMNS)`."""
    pattern = re.escape(spelling).replace(r",\.\.\.", "(,N){0,999}")
    # by a function: in a text `re.sub` would read \d as its own escape
    return re.sub("[A-Z]+", lambda _: r"[1-9]\d{0,3}", pattern)


Network = Annotated[str, OneOf(NETWORKS)]
Shape = Annotated[str, OneOf(SHAPES)]
SchedulerName = Annotated[str, OneOf(SCHEDULERS)]
Algorithm = Annotated[str, OneOf(ALGORITHMS)]
Groups = Annotated[str, OneOf(GROUPINGS)]
