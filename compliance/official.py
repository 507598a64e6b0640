"""The official compliance checker, run apart: its verdict, its version, never its traceback."""

import sys
from functools import partial
from pathlib import Path

from ..logging.records import Verdict

_TIMEOUT_S = 300


def installed_version() -> str:
    """The version of the installed mlperf-logging: a verdict belongs to a version."""
    from importlib import metadata  # 15 ms that a check without it need not pay

    return metadata.version("mlperf-logging")


def check_officially(log: Path, ruleset: str) -> Verdict:
    """Run `mlperf_logging.compliance_checker` on `log` in a process and folder of its own: PASS,
    FAIL or CRASH, with its warnings and errors, a message each."""
    import tempfile  # with the programs' 10 ms that a check without the official one need not pay

    from ..host.programs import NoAnswer, ask

    official = partial(Verdict, version=installed_version(), ruleset=ruleset)
    with tempfile.TemporaryDirectory(prefix="rn50-checker-") as scratch:
        command = [
            sys.executable,
            "-m",
            "mlperf_logging.compliance_checker",
            "--usage=training",
            f"--ruleset={ruleset}",
            f"--log_output={Path(scratch) / 'checker.log'}",
            str(log.resolve()),  # as it runs in another folder
        ]
        try:
            done = ask(command, _TIMEOUT_S, folder=Path(scratch))
        except NoAnswer as error:
            return official("CRASH", messages=(str(error),))
    lines = done.err.splitlines()
    messages = tuple(
        line for line in lines if not line.startswith("INFO") and line.strip()
    )
    if done.code == 0:
        return official("PASS", messages=messages)
    crashed = any(
        line.startswith("Traceback (most recent call last)") for line in lines
    )
    # 1 is also Python's code for a traceback; 2: it does not know the ruleset
    if done.code != 1 or crashed:
        return official("CRASH", messages=messages[-1:])
    return official("FAIL", messages=messages)
