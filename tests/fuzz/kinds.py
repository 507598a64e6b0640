"""The kinds of cases, how many of each a child takes, and what is loaded before it is forked."""

from __future__ import annotations

import logging
from importlib import import_module

from tests.fuzz import configs, folders, logs, official, options, records, verdicts
from tests.fuzz.case import Generator

GENERATORS: dict[str, Generator] = {
    "logs": logs.case,
    "configs": configs.case,
    "verdicts": verdicts.case,
    "official": official.case,
    "options": options.case,
    "records": records.case,
    "images": records.image_case,
    "submissions": folders.submission_case,
    "runs": folders.run_case,
    "sweeps": folders.sweep_case,
}
BATCH = {
    "logs": 40,
    "configs": 40,
    "verdicts": 40,
    "official": 40,
    "options": 30,
    "records": 40,
    "images": 30,
    "submissions": 30,
    "runs": 30,
    "sweeps": 30,
}
SUITE = {
    "logs": 50,
    "configs": 20,
    "verdicts": 80,
    "official": 60,
    "options": 30,
    "records": 40,
    "images": 20,
    "submissions": 15,
    "runs": 20,
    "sweeps": 20,
}
"""How many of each the test suite runs, from seed 0 on."""
_LOADED = (
    *("mlperf_logging.compliance_checker.mlp_compliance", "rn50.cli.main", "numpy", "jinja2"),
    *(
        "rn50.report.html",
        "rn50.compliance.submission",
        "rn50.compliance.score",
        "rn50.report.write",
    ),
    *(
        "rn50.compliance.config_rules",
        "rn50.launch.dry_run",
        "rn50.launch.preflight",
        "rn50.data.pack",
    ),
    *("rn50.data.prepare", "rn50.data.jpeg", "rn50.launch.resume", "rn50.launch.failure"),
    *("rn50.scaling.predict", "rn50.scaling.simulate", "rn50.sweep.definition", "rich.table"),
    *("rn50.sweep.driver", "rn50.sweep.report", "rn50.cli.machine_option"),
    *("rn50.report.predict_logs", "rn50.scaling.calibrate", "rn50.report.compare"),
)


def warm_up() -> None:
    """Load in this process what every child would load; quiets mlperf-logging."""
    for name in _LOADED:
        import_module(name)
    logging.disable(logging.CRITICAL)
