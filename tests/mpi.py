"""The MPI of this machine, for tests that run over whichever there is."""

import pytest

from rn50.config.engines import ALGORITHMS
from rn50.launch.launchers import LAUNCHERS, OF_FAMILY
from rn50.train.communication.mpi_library import horovods_mpi

_LIBRARY = horovods_mpi()
FAMILY = _LIBRARY.family if _LIBRARY else None
LAUNCHER = OF_FAMILY[FAMILY] if FAMILY else "mpirun"
"""That of the MPI which Horovod was linked to."""

WHY_NOT = ""
if not FAMILY or not LAUNCHERS[LAUNCHER].is_installed():
    _program = LAUNCHERS[LAUNCHER].program
    WHY_NOT = f"no {_program} here for an MPI that Horovod was linked to"
NEEDED = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "there is one")


def offers(algorithm: str) -> bool:
    """Whether this MPI can be told to use `algorithm`."""
    name = algorithm.partition("(")[0]
    return FAMILY is not None and name in ALGORITHMS[FAMILY]
