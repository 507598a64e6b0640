"""Functions on ranks that are no run, as of a benchmark or an evaluation: started, and asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ..config.schema import Run
from ..train.body import ANSWER
from .launchers import build_job
from .supervisor import run_job


def run_body(
    run: Run,
    launcher: str,
    out: Path,
    phase: str,
    body: Callable[..., Any],
    *arguments: object,
    settings: Collection[str] | None = None,
) -> Any:
    """Run `body(out, *arguments)` on each rank of `run`; returns what it returned on rank 0.

    Args:
        run: the config, which lies in `out` too.
        launcher: by name.
        out: a folder where all nodes read.
        phase: what a rank that fails was doing.
        body: a function of a module.
        arguments: what JSON can say.
        settings: which of the engines' settings that the config asks for to make; None: all.
    """
    name = f"{body.__module__}:{body.__name__}"
    command = [sys.executable, "-m", "rn50.train.body", phase, name, str(out)]
    job, _ = build_job(run, launcher, [*command, *map(json.dumps, arguments)])
    if settings is not None:
        environment = job.environment
        chosen = {name: environment[name] for name in settings if name in environment}
        job = job._replace(environment=chosen)
    run_job(job, launcher, out)
    return json.loads((out / ANSWER).read_text())
