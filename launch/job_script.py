"""A job's script: a pure function of the resolved config, its system and where things lie.

It asks the scheduler for the nodes, loads modules and becomes `rn50 launch --job`, which does the
rest on the allocation (job.py). Where the ranks run in a container, the host may have no Python of
ours: those scripts are container_script.py's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from ..config.errors import UserError
from ..config.schema import Run
from .container_script import bash_array, container_script
from .preflight import refuse_common_seed
from .schedulers import SCHEDULERS, Scheduler, require_token


class JobPaths(NamedTuple):
    """Where things lie, on every node (in the container: inside it). None: as the script is run.

    `config`: CONFIG and overrides. `start`: absolute; relative paths of the config begin here.
    `folder`: of the job, from `start` on or absolute. `home`: the checkout of this repository.
    `python`: the interpreter of its virtual environment. `name`: of the script.
    """

    config: tuple[str, ...]
    start: str | None = None
    folder: str | None = None
    home: str | None = None
    python: str | None = None
    name: str = "job.sh"


def job_script(run: Run, scheduler: str, paths: JobPaths, runs: int = 1) -> str:
    """The text to submit, which may be edited and submitted by hand as well. Raises UserError: what
    the scheduler or the container cannot express."""
    dialect = SCHEDULERS[scheduler]
    _check(run, scheduler, paths, runs)
    sections = [_head(run, dialect, paths), _names(run, dialect, paths), _modules(run)]
    texts = ["\n".join(section) for section in sections]
    if run.system.job.container:
        texts.append(container_script(run, dialect, runs))
    else:
        texts.append("\n".join(_launch(run, dialect, runs)))
    return "\n\n".join(text for text in texts if text) + "\n"


def _check(run: Run, scheduler: str, paths: JobPaths, runs: int) -> None:
    job = run.system.job
    refuse_common_seed(run, runs)
    if job.container and job.engine == "pyxis" and scheduler != "slurm":
        raise UserError(f"system.job.engine: singularity expected with {scheduler}, found pyxis")
    if job.container and re.search(r"[:,\n]", paths.start or ""):
        raise UserError(f"a folder without : and , expected for a container, found {paths.start!r}")


def _head(run: Run, dialect: Scheduler, paths: JobPaths) -> Iterator[str]:
    system = run.system
    yield "#!/usr/bin/env bash"
    yield from dialect.directives(run)
    yield "#"
    shape = f"{system.nodes} node{'s' * (system.nodes > 1)} x {system.ranks_per_node} ranks"
    yield f"# {require_token(run.name)}: {shape}, on {dialect.name}."
    if paths.folder is None:
        yield "# As `rn50 submit` writes it. Edit what differs; submit it from the checkout:"
        command = shlex.join([*dialect.command, *run.system.job.options])
        yield f"#   {command} {'<' * dialect.from_stdin}{paths.name}"
    else:
        yield "# Written by `rn50 submit`; may be edited and submitted by hand."
    yield "set -euo pipefail"


def _names(run: Run, dialect: Scheduler, paths: JobPaths) -> Iterator[str]:
    new = f"results/{run.name}/$(date -u +%Y%m%dT%H%M%SZ)-$$"
    for name, value, by_hand in (
        ("start", paths.start, dialect.submitted_from),
        ("folder", paths.folder, new),
        ("home", paths.home, "$start"),
        ("python", paths.python, "$start/.venv/bin/python"),
    ):
        yield f"{name}={by_hand if value is None else shlex.quote(value)}"
    yield bash_array("config", [shlex.quote(token) for token in paths.config])
    yield 'cd -- "$start"'
    yield 'export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"'


def _modules(run: Run) -> Iterator[str]:
    if run.system.job.modules:
        yield "set +u  # modules are not written for it"
        yield "# shellcheck source=/dev/null"
        yield '[[ -n $(type -t module) ]] || source "${MODULESHOME:-/usr/share/modules}/init/bash"'
        yield f"module load {' '.join(map(require_token, run.system.job.modules))}"
        yield "set -u"


def _launch(run: Run, dialect: Scheduler, runs: int) -> Iterator[str]:
    if dialect.name == "local" and run.system.nodes > 1:
        yield ': "${RN50_HOSTS:?a file with the names of the hosts, one a line, expected}"'
    yield "# Output: $folder/job.log. Started again it goes on, and writes over nothing."
    yield 'exec "$python" -m rn50.cli.entry launch --job="$folder" \\'
    # Without one of the scheduler's own, that of the MPI which Horovod is linked to.
    launcher = "" if dialect.launcher == "mpirun" else f"--launcher {dialect.launcher} "
    if run.system.job.requeue and dialect.requeue_command:
        yield '  --requeue "{}" \\'.format(dialect.requeue_command.replace('"', '\\"'))
    yield f'  {launcher}--runs {runs} -- "${{config[@]}}"'
