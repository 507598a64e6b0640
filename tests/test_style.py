"""What `make lint` checks, so that the suite alone is all of CI."""

from __future__ import annotations

import subprocess
from pathlib import Path


def test_format_lint_types_and_shell_are_clean(root: Path) -> None:
    done = subprocess.run(
        ["make", "lint"], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
