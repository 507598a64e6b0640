import shutil
from pathlib import Path

import pytest


@pytest.fixture
def packed(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the module's packed set, to spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "set"))
