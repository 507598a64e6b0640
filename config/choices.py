"""The names that a config may choose from: one table a fact, name -> what it is.

The schema's choices, the command line's choices and completion, a sweep's choices and the reference
are read from these tables. The code behind a name stands in the room that runs it, in a table with
the same names (`tests/test_extending.py` compares them). Optimizer variants have their table in
`variants.py`, the depths of a ResNet in `resnet_stages.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

if TYPE_CHECKING:
    from pydantic_core.core_schema import CoreSchema


class Choice(NamedTuple):
    """One name of a table, and what may stand in brackets behind it.

    `arguments`: each way of writing it, "" without brackets. A word in capitals is a number from 1,
    `N,...` a list of them: ("", "ROWSxCOLUMNS") allows `torus_2d` and `torus_2d(2x4)`.
    """

    meaning: str
    arguments: tuple[str, ...] = ("",)


NETWORKS = {
    "resnet": "ResNet v1.5; depth, width, stem, norm and zero_gamma are of it alone",
    "alexnet": "AlexNet with batch norm",
    "googlenet": "GoogLeNet, Inception v1",
}
SHAPES = {
    "poly": "to end_lr over decay with power",
    "cosine": "to end_lr over decay along half a cosine",
    "step": "the factors of milestones",
    "sony_b": "Sony's configuration B, which ignores the other keys",
}
GROUPINGS = {
    "cubic": Choice("sizes that grow with the cube, the first of F tensors", ("F",)),
    "equal_bytes": Choice("N groups of about as many bytes each", ("N",)),
    "equal_count": Choice("N groups of as many tensors each", ("N",)),
    "halving": Choice("N groups, each of half the bytes of the one before", ("N",)),
    "single": Choice("all gradients together"),
    "explicit": Choice("the number of tensors of each group, last layers first", ("N,...",)),
}
ALGORITHMS = {
    "auto": Choice("the engine's own choice"),
    "ring": Choice("reduce-scatter and allgather around a ring"),
    "segmented_ring": Choice("a ring in segments"),
    "recursive_doubling": Choice("whole messages between partners, ever further apart"),
    "recursive_halving_doubling": Choice("halves between partners, and back (Rabenseifner)"),
    "double_tree": Choice("two binary trees, each with half of the message (NCCL)"),
    "torus_2d": Choice("rings along the rows and columns of a grid", ("", "ROWSxCOLUMNS")),
    "hierarchical": Choice("within the node, between nodes, within the node"),
}
LAUNCHERS = {
    "mpirun": "Open MPI, MVAPICH2 and Spectrum MPI",
    "gloo": "horovodrun without MPI",
    "srun": "Slurm",
    "hydra": "MPICH and Intel MPI",
    "jsrun": "LSF on IBM's machines",
    "pals": "HPE Cray PALS",
}
SCHEDULERS = {
    "slurm": "Slurm",
    "sge": "Grid Engine",
    "pbs": "PBS Pro",
    "lsf": "LSF",
    "local": "none: the job runs at once, on this machine",
}


class Form:
    """As the annotation of a field: what may be written, in words (for errors and the reference),
    and the function that reads it; one that returns None refuses the value."""

    def __init__(self, text: str, read: Callable[[Any], Any]) -> None:
        self._text, self._read = text, read

    def __str__(self) -> str:
        return self._text

    def check(self, value: Any) -> Any:
        if (found := self._read(value)) is None:
            raise ValueError(self)
        return found

    def __get_pydantic_core_schema__(self, *_: Any) -> CoreSchema:
        from pydantic_core import core_schema  # the command line reads the tables without pydantic

        return core_schema.no_info_plain_validator_function(self.check)


class OneOf(Form):
    """One of the names of a table, with what its row allows in brackets behind it. A list of
    numbers stands for `explicit(...)`."""

    def __init__(self, names: Collection[str | int]) -> None:
        super().__init__("", self._find)
        self._names = names

    def __str__(self) -> str:
        return ", ".join(map(str, (way for name in self._names for way in self._ways(name))))

    def _find(self, value: Any) -> Any:
        if isinstance(value, list | tuple) and all(type(size) is int for size in value):
            value = f"explicit({','.join(map(str, value))})"
        if type(value) not in (str, int):
            return None
        for name in self._names:
            for way in self._ways(name):
                if value == way or re.fullmatch(_pattern(str(way)), str(value)):
                    return value
        return None

    def _ways(self, name: str | int) -> Iterator[str | int]:
        """`torus_2d`, `torus_2d(ROWSxCOLUMNS)`."""
        row = self._names[name] if isinstance(self._names, Mapping) else None
        for argument in row.arguments if isinstance(row, Choice) else ("",):
            yield f"{name}({argument})" if argument else name


def meanings(table: Mapping[str, str]) -> str:
    """The rows of a table as the description of a key."""
    return "; ".join(f"{name}: {meaning}" for name, meaning in table.items()) + "."


def _pattern(way: str) -> str:
    """The regular expression of `torus_2d(ROWSxCOLUMNS)`."""
    pattern = re.escape(way).replace(r",\.\.\.", "(,N){0,999}")
    return re.sub("[A-Z]+", lambda _: r"[1-9]\d{0,3}", pattern)


Network = Annotated[str, OneOf(NETWORKS)]
Shape = Annotated[str, OneOf(SHAPES)]
SchedulerName = Annotated[str, OneOf(SCHEDULERS)]
Algorithm = Annotated[str, OneOf(ALGORITHMS)]
Groups = Annotated[str, OneOf(GROUPINGS)]
