"""Nobody reads what a command prints."""

import shlex

from tests.conftest import GOLDEN_LOG, PROGRAM
from tests.waiting import finished


def test_an_unread_standard_output() -> None:
    """What `| head` leaves in Python's buffer was two lines of it, and exit 120."""
    program = shlex.quote(str(PROGRAM))
    log = shlex.quote(str(GOLDEN_LOG))
    done = finished(["bash", "-c", f"{program} log report {log} --out - | true"])
    assert (done.returncode, done.stderr) == (0, "")
