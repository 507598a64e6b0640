"""The kinds of cases, how many of each the suite runs, and what is loaded before a fork."""

from __future__ import annotations

import logging
from importlib import import_module

from tests.fuzz import configs, folders, logs
from tests.fuzz.values import Generator

KINDS: dict[str, tuple[Generator, int]] = {
    "logs": (logs.case, 15),
    "configs": (configs.case, 20),
    "runs": (folders.run_case, 8),
}
"""A generator, and how many of its cases the suite runs, from seed 0 on."""
_LOADED = (
    "mlperf_logging.compliance_checker.mlp_compliance",
    "rn50.cli.main",
    "rn50.compliance.score",
    "rn50.compliance.submission",
    "rn50.launch.dry_run",
    "rn50.launch.resume",
    "rn50.report.html",
    "rn50.scaling.predict",
)


def warm_up() -> None:
    """Load in this process what every child would load; quiets mlperf-logging."""
    for name in _LOADED:
        import_module(name)
    logging.disable(logging.CRITICAL)
