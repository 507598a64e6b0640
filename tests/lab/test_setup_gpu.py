"""`scripts/setup.sh --gpu` where there are neither Debian's tools nor nvcc, as on Rocky or SLES."""

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import finished

ABSENT = ("apt", "dpkg", "deb", "nvcc", "snap")


def test_horovod_over_nccl_without_debian_and_nvcc(root: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in os.environ["PATH"].split(":"):
        for path in Path(folder).glob("*"):
            link = programs / path.name
            if not path.name.startswith(ABSENT) and not link.is_symlink():
                link.symlink_to(path.resolve())
    environment = os.environ | {
        "PATH": str(programs),
        "PYTHON": f"{sys.base_prefix}/bin/python3",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),  # no wheel of Horovod is kept there
    }
    tools = ["bash", "-c", "command -v apt-get dpkg nvcc"]
    assert finished(tools, env=environment).stdout == ""
    folder = tmp_path / "environment"
    command = (root / "scripts/setup.sh", "--gpu", "--stack", "--into", folder)
    done = subprocess.run(command, env=environment, check=False)
    assert done.returncode == 0  # it asks Horovod at its end
    assert "gpu" in (folder / "stack.stamp").read_text().split()
    (wheel,) = (tmp_path / "cache/rn50/wheels").glob("*/horovod-*.whl")
    assert "nccl" in wheel.parent.name
