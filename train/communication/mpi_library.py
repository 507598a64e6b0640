"""Which MPI Horovod was linked to: what the loader (`ldd`) finds for Horovod's own library.

Nothing is loaded but MPI's library, and that only where its name is not that of one family. The
presence of a libmpi.so or of an `mpirun` on the PATH decides nothing: both families have them.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ...config.engines import PRODUCTS, Family
from ...host.programs import ask
from ..mxnet_package import package_folder

MPICH_ABI: tuple[Family, ...] = ("mpich", "intel", "cray")
"""The families that share the binary interface of 2013."""

# libmpi_cxx and libmpicxx are for C++ and come with the one that is looked for.
_MPI = re.compile(r"libmpi(?:ch)?(?:_(?!cxx|mpifh|usempi)\w+)?\.so\b.*")
# libmpi.so.12 is MPICH's and its kin's, and was Open MPI 1.10's: those are asked.
_BY_NAME: tuple[tuple[str, Family], ...] = (
    (r"libmpi\.so\.[2-9]0\b", "openmpi"),
    (r"libmpi(ch)?_(cray|gnu|intel|nvidia|amd|aocc|pgi)", "cray"),
)
# In this order: MPICH's descendants may name it too.
_BY_VERSION: tuple[tuple[str, Family], ...] = (
    ("Open MPI", "openmpi"),
    ("Intel(R) MPI", "intel"),
    ("CRAY MPICH", "cray"),
    ("MPICH Version", "mpich"),
)
_LONGEST_VERSION = 8192  # MPICH's MPI_MAX_LIBRARY_VERSION_STRING, the largest


class MpiLibrary(NamedTuple):
    """MPI's library as dlopen takes it, and its family; None: not known for sure."""

    path: str
    family: Family | None

    @property
    def product(self) -> str:
        """Its name in messages."""
        product = PRODUCTS[self.family] if self.family else "an MPI that is not known"
        return f"{product} ({Path(self.path).name})"


@cache
def horovods_mpi() -> MpiLibrary | None:
    """The MPI that Horovod for MXNet was linked to; None: it was built without, or is not there."""
    package = package_folder("horovod")
    libraries = sorted(package.glob("mxnet/mpi_lib*.so")) if package else []
    return linked_mpi(libraries[0]) if libraries else None


def linked_mpi(library: Path) -> MpiLibrary | None:
    """The MPI that `library` was linked to; None: to none. Raises NoAnswer."""
    for line in ask(["ldd", str(library)]).out.splitlines():
        # libmpi.so.40 => /lib/x86_64-linux-gnu/libmpi.so.40 (0x00007f58812c1000)
        name, _, target = line.strip().partition(" => ")
        if _MPI.fullmatch(name):
            path = name if target == "not found" else target.rpartition(" (")[0]
            by_name = (family for form, family in _BY_NAME if re.match(form, name))
            family = next(by_name, None) or family_of(library_version(path))
            return MpiLibrary(path, family)
    return None


def family_of(version: str) -> Family | None:
    """Whose library it is, by the text of its MPI_Get_library_version."""
    families = (family for product, family in _BY_VERSION if product in version)
    return next(families, None)


def library_version(path: str) -> str:
    """The text of MPI_Get_library_version, which needs no MPI_Init; empty: there is none."""
    version = ctypes.create_string_buffer(_LONGEST_VERSION)
    length = ctypes.c_int()
    try:
        tell = ctypes.CDLL(path).MPI_Get_library_version
    except (OSError, AttributeError):  # not there, or of before MPI 3
        return ""
    tell(version, ctypes.byref(length))
    return version.value.decode(errors="replace")
