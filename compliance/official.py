"""The official compliance checker, run apart: its verdict, its version, never its traceback."""

import sys
from pathlib import Path
from typing import NamedTuple

_TIMEOUT_S = 300
NOT_RUN = "NOT_RUN"


class Official(NamedTuple):
    """verdict: PASS, FAIL, CRASH or NOT_RUN (messages say why); messages: its warnings and errors,
    one a line."""

    verdict: str
    version: str
    ruleset: str
    messages: tuple[str, ...]


def installed_version() -> str:
    """The version of the installed mlperf-logging: a verdict belongs to a version."""
    from importlib import metadata  # 15 ms that a check without it need not pay

    return metadata.version("mlperf-logging")


def check_officially(log: Path, ruleset: str) -> Official:
    """Run `mlperf_logging.compliance_checker` on `log` in a process and folder of its own."""
    import subprocess  # with tempfile 10 ms that a check without the official one need not pay
    import tempfile

    version = installed_version()
    with tempfile.TemporaryDirectory(prefix="rn50-checker-") as scratch:
        command = [
            sys.executable,
            "-m",
            "mlperf_logging.compliance_checker",
            "--usage=training",
            f"--ruleset={ruleset}",
            f"--log_output={Path(scratch) / 'checker.log'}",
            str(log.resolve()),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=scratch,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return Official("CRASH", version, ruleset, (f"no verdict in {_TIMEOUT_S} s",))
    lines = done.stderr.splitlines()
    messages = tuple(line for line in lines if not line.startswith("INFO") and line.strip())
    if done.returncode == 0:
        return Official("PASS", version, ruleset, messages)
    crashed = any(line.startswith("Traceback (most recent call last)") for line in lines)
    if done.returncode != 1 or crashed:  # 2: it does not know the ruleset
        return Official("CRASH", version, ruleset, messages[-1:])
    return Official("FAIL", version, ruleset, messages)
