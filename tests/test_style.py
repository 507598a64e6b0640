"""What `make lint` checks, so that the suite alone is all of CI."""

from pathlib import Path

from tests.waiting import finished


def test_format_lint_types_and_shell_are_clean(root: Path) -> None:
    done = finished(["make", "lint"], cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
