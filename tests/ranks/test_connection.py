"""MPI starts beside other threads: no transport that it has may change their code."""

import json
import os
import sys
from pathlib import Path

import pytest

from rn50.config.engines import WITHOUT_HOOKS
from tests import mpi
from tests.waiting import output_of

BODY = Path(__file__).with_name("connection_body.py")
TRANSPORTS = {
    "mca_btl_ofi": {"OMPI_MCA_btl": "^openib"},
    "mca_mtl_ofi": {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi"},
    "mca_pml_ucx": {
        "OMPI_MCA_pml": "ucx",
        "OMPI_MCA_opal_common_ucx_tls": "any",
        "OMPI_MCA_opal_common_ucx_devices": "any",
    },
    "libmpi": {},
}
"""A library of the installed Open MPI -> what has it used here, against Debian's own settings."""


@pytest.mark.slow
@pytest.mark.skipif(mpi.LAUNCHER != "mpirun", reason="settings of Open MPI")
@pytest.mark.parametrize("has_hooks", [False, True])
@pytest.mark.parametrize("library", TRANSPORTS)
def test_an_mpi_changes_code_only_before_other_threads_run(
    library: str, has_hooks: bool
) -> None:
    mpirun = ["mpirun", "--allow-run-as-root", "-np", "1"]
    environment = os.environ | TRANSPORTS[library]
    if not has_hooks:
        environment |= WITHOUT_HOOKS
    printed = output_of([*mpirun, sys.executable, str(BODY)], env=environment)
    answer = json.loads(printed)
    if library not in answer["libraries"]:
        pytest.skip(f"no {library} in this Open MPI")
    changes = has_hooks and library != "libmpi"
    assert bool(answer["changed"]) == changes, answer["changed"]
