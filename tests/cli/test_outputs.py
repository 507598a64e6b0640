"""Nobody reads what a command prints."""

import shlex
import sys
from pathlib import Path

from tests.waiting import finished


def test_an_unread_standard_output(root: Path) -> None:
    """What `| head` leaves in Python's buffer was two lines of it, and exit 120."""
    program = shlex.quote(str(Path(sys.executable).with_name("rn50")))
    log = shlex.quote(str(root / "tests/golden/smoke_result_0.txt"))
    done = finished(["bash", "-c", f"{program} log report {log} --out - | true"])
    assert (done.returncode, done.stderr) == (0, "")
