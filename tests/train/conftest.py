"""For runs of one rank within the process of the tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def over_gloo() -> Iterator[pytest.MonkeyPatch]:
    """Horovod joins its ranks by Gloo: MPI starts once a process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"):
            patch.setenv(name, "gloo")
        yield patch
