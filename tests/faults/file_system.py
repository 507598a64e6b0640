"""Real file systems that refuse a call: a library that is loaded before the C library says so."""

import errno
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("file_system.c")
_built = tempfile.TemporaryDirectory(prefix="rn50-tests-")  # until this process ends


@cache
def _library() -> Path:
    library = Path(_built.name) / "file_system.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True
    )
    return library


def refusing(below: Path, since: Path | None = None, **calls: str) -> dict[str, str]:
    """The environment of a process for which calls below a folder fail: `link="EPERM"`. `write`
    stands for all that changes names and contents. `since`: only once this file is there."""
    refused = ",".join(f"{call}={getattr(errno, name)}" for call, name in calls.items())
    added = {
        "LD_PRELOAD": str(_library()),
        "REFUSED_BELOW": str(below),
        "REFUSED": refused,
    }
    if since is not None:
        added["REFUSED_FROM"] = str(since)
    return added
