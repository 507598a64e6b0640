"""A job's script: a pure function of the resolved config, its system and where things lie.

It asks the scheduler for the nodes, loads modules and becomes `rn50 launch --job`, which does the
rest on the allocation (job.py).
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..config.machine import JobSettings
from ..config.schema import Run
from ..host.errors import UserError
from .preflight import refuse_runs
from .schedulers import SCHEDULERS, Scheduler

ROOT = Path(__file__).resolve().parent.parent


class JobPaths(NamedTuple):
    """The places of a job's files on every node.

    `config`: CONFIG and overrides. `start`: absolute; relative paths of the config begin here.
    `folder`: of the job, from `start` on or absolute. `home`: the checkout of this repository.
    `python`: the interpreter of its virtual environment.
    """

    config: tuple[str, ...]
    start: str
    folder: str
    home: str
    python: str


def program_on_nodes(job: JobSettings) -> tuple[str, str]:
    """The checkout and the interpreter that the config names, on the nodes or in the container;
    else those of this process."""
    python = f"{job.home}/.venv/bin/python" if job.home else sys.executable
    return job.home or str(ROOT), job.python or python


def job_script(run: Run, scheduler: str, paths: JobPaths, runs: int = 1) -> str:
    """The text to submit, which may be edited and submitted by hand as well. Raises UserError: what
    the scheduler or the container cannot express."""
    dialect = SCHEDULERS[scheduler]
    job = run.system.job
    refuse_runs(run, runs)
    if job.container and job.engine == "pyxis" and scheduler != "slurm":
        raise UserError(
            f"system.job.engine: singularity expected with {scheduler}, found pyxis"
        )
    # with which the engines separate folders and their places in the container
    if job.container and re.search(r"[:,\n]", paths.start):
        raise UserError(
            f"a folder without : and , expected for a container, found {paths.start!r}"
        )
    sections = (
        _head(run, dialect),
        _names(paths),
        _modules(run),
        _launch(run, dialect, runs),
    )
    texts = ["\n".join(section) for section in sections]
    return "\n\n".join(part for part in texts if part) + "\n"


def _head(run: Run, dialect: Scheduler) -> Iterator[str]:
    system = run.system
    yield "#!/usr/bin/env bash"
    yield from dialect.directives(run)
    yield "#"
    nodes = "1 node" if system.nodes == 1 else f"{system.nodes} nodes"
    shape = f"{nodes} x {system.ranks_per_node} ranks"
    yield f"# {run.name}: {shape}, on {dialect.name}."
    yield "# Written by `rn50 submit`; may be edited and submitted by hand."
    yield "set -euo pipefail"


def _names(paths: JobPaths) -> Iterator[str]:
    for name in ("start", "folder", "home", "python"):
        yield f"{name}={shlex.quote(getattr(paths, name))}"
    yield f"config=({shlex.join(paths.config)})"
    yield 'cd -- "$start"'
    yield 'export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"'


def _modules(run: Run) -> Iterator[str]:
    if run.system.job.modules:
        yield "set +u  # modules are not written for it"
        yield "# shellcheck source=/dev/null"
        yield '[[ -n $(type -t module) ]] || source "${MODULESHOME:-/usr/share/modules}/init/bash"'
        yield f"module load {' '.join(run.system.job.modules)}"
        yield "set -u"


def _launch(run: Run, dialect: Scheduler, runs: int) -> Iterator[str]:
    if dialect.name == "local" and run.system.nodes > 1:
        yield ': "${RN50_HOSTS:?a file with the names of the hosts, one a line, expected}"'
    yield "# Output: $folder/job.log. Started again it goes on, and writes over nothing."
    yield 'exec "$python" -m rn50.cli.entry launch --job="$folder" \\'
    if run.system.job.requeue and dialect.requeue_command:
        yield f'  --requeue "{dialect.requeue_command}" \\'
    arguments = f'--runs {runs} -- "${{config[@]}}"'
    if dialect.launcher:
        arguments = f"--launcher {dialect.launcher} {arguments}"
    yield f"  {arguments}"
