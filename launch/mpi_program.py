"""Whose MPI the launcher on the PATH is of, against the MPI that Horovod was linked to.

An active environment of conda or pip brings an mpirun of its own, and Open MPI 5 has Open MPI 4's
names: such a launcher starts ranks that are each alone, or that do not find a symbol.
"""

from __future__ import annotations

import os
import re
import shutil
from functools import cache
from typing import NamedTuple

from ..config.engines import PRODUCTS, Family
from ..host.programs import NoAnswer, ask
from ..train.communication.mpi_library import MPICH_ABI, MpiLibrary, library_version

# What `--version` prints. Hydra is of MPICH and its descendants alike.
_PRINTED: tuple[tuple[str, Family], ...] = (
    (r"\(Open ?MPI\) v?(?P<version>[\d.]+)", "openmpi"),
    (r"Intel\(R\) MPI Library[^\n]*Version (?P<version>[\d.]+)", "intel"),
    (r"HYDRA build details:\s+Version:\s+(?P<version>[\w.]+)", "mpich"),
)


class MpiProgram(NamedTuple):
    """A launcher of an MPI. `family`, `version`: as it says; None: it does not."""

    path: str
    family: Family | None = None
    version: str = ""

    def __str__(self) -> str:
        if self.family is None:
            return f"{self.path} of an MPI that it does not name"
        return f"{self.path} of {PRODUCTS[self.family]} {self.version}"

    def starts(self, library: MpiLibrary) -> bool:
        """Whether it can start ranks of `library`, as far as both say whose they are."""
        if self.family is None or library.family is None:
            return True
        if {self.family, library.family} <= {*MPICH_ABI}:
            return True
        linked = _major(_linked_version(library))
        return self.family == library.family and linked in ("", _major(self.version))


class MpiOnPath(NamedTuple):
    """`first`: of the PATH; None: there is none. `right`: the first that fits; None: none does."""

    library: MpiLibrary
    first: MpiProgram | None
    right: MpiProgram | None

    def __str__(self) -> str:
        linked = f"Horovod was linked to {self.library.product} {_linked_version(self.library)}"
        if self.first == self.right or self.first is None:
            return f"{self.first or 'none on the PATH'}; {linked.strip()}"
        remedy = "no other is on the PATH: put its folder first there, or use --launcher gloo"
        if self.right:
            remedy = f"{self.right} is taken"
        return f"the PATH's first is {self.first}, but {linked.strip()}; {remedy}"


def mpi_on_path(name: str, library: MpiLibrary) -> MpiOnPath:
    """The programs called `name` on the PATH, of which one has to start ranks of `library`."""
    paths = (shutil.which(name, path=folder) for folder in os.get_exec_path())
    programs = [_described(path) for path in paths if path]
    first = next(iter(programs), None)
    fitting = (program for program in programs if program.starts(library))
    # a later one that does not say whose it is fits no better than the first
    identified = (program for program in fitting if program.family or program == first)
    return MpiOnPath(library, first, next(identified, None))


@cache
def _described(path: str) -> MpiProgram:
    try:
        answer = ask([path, "--version"])
    except NoAnswer:
        return MpiProgram(path)
    for form, family in _PRINTED:
        if match := re.search(form, answer.out + answer.err):
            return MpiProgram(path, family, match["version"])
    return MpiProgram(path)


@cache
def _linked_version(library: MpiLibrary) -> str:
    """The version of MPI as `4.1.4`; empty: it cannot be asked."""
    match = re.search(r"(?:Version:?|MPI v?)\s*([\d.]+)", library_version(library.path))
    return match[1].strip(".") if match else ""


def _major(version: str) -> str:
    return version.partition(".")[0]
