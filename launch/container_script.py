"""The part of a job's script that starts containers: the host may have no Python of ours.

What is the same for every job is shell, in `container_job.sh` beside this module; here are the
settings and the commands that it reads from variables.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..config.schema import Run
from .engine_environment import ENGINE_PREFIXES, engine_environment
from .launchers import LAUNCHERS, Job
from .schedulers import LIMIT_SIGNAL, Scheduler
from .system_description import system_id

CONTAINER = "rn50"
"""Pyxis keeps the unpacked image under this name from step to step."""


def container_script(run: Run, dialect: Scheduler, runs: int) -> str:
    """What follows the names and modules of a script."""
    text = Path(__file__).with_name("container_job.sh").read_text()
    for marker, lines in (
        ("#: settings", _settings(run, dialect, runs)),
        ("#: commands", _commands(run, dialect)),
    ):
        text = text.replace(marker, "\n".join(lines))
    return text.rstrip("\n")


def _settings(run: Run, dialect: Scheduler, runs: int) -> Iterator[str]:
    job, system = run.system.job, run.system
    settings = engine_environment(run, {}).settings
    for name, value in sorted(settings.items()):
        yield f"default {name} {shlex.quote(value)}"
    yield f"engine_pattern='^({'|'.join(ENGINE_PREFIXES)})|^(PATH|LD_LIBRARY_PATH|PYTHONPATH)$'"
    yield f"launcher={dialect.launcher} nodes={system.nodes} ranks_per_node={system.ranks_per_node}"
    yield f'runs={runs} score={system_id(run)} job_id="{dialect.job_id}"'
    staged, drop_caches = int(job.stage is not None), int(job.drop_caches)
    folder = f"{_shell_folder(job.stage)}/rn50_data" if job.stage else shlex.quote(run.data.path)
    yield f"staged={staged} drop_caches={drop_caches} data={folder}"
    can_requeue = job.requeue and dialect.requeue_command
    yield f"limit_signal={LIMIT_SIGNAL if can_requeue else chr(39) * 2}"
    yield "# shellcheck disable=SC2317,SC2329  # called by the trap"
    yield f"requeue() {{ {dialect.requeue_command if can_requeue else ':'}; }}"


def _commands(run: Run, dialect: Scheduler) -> Iterator[str]:
    """Arrays that start a command: `container`, `ranks`, `per_node`, `once` (in the container)."""
    job, system = run.system.job, run.system
    yield from _container(run)
    inside = '"${container[@]}"'
    bind = [] if job.bind == "none" else ['"$home/scripts/bind.sh"']
    before: list[str] = []
    if dialect.launcher == "mpirun":
        before = ["--host", '"$hosts"'] if system.nodes > 1 else []
        before.append('"${exports[@]}"')
    ranks = Job.of(run, [*before, inside, *bind])
    launcher = LAUNCHERS[dialect.launcher]
    yield bash_array("ranks", launcher.command(ranks))
    yield bash_array("per_node", launcher.command(ranks.once_per_node(before)))
    once = ["srun", "--nodes=1", "--ntasks=1"] if job.engine == "pyxis" else []
    yield bash_array("once", [*once, inside])


def _container(run: Run) -> Iterator[str]:
    job = run.system.job
    mounts = ['"$start:$start"', *(shlex.quote(mount) for mount in job.mounts)]
    if job.stage:
        mounts.append('"${data%/*}:${data%/*}"')
    image = shlex.quote(job.container or "")
    if job.engine == "pyxis":
        yield f"mounts={','.join(mounts)}"
        tokens = [f"--container-image={image}", f"--container-name={CONTAINER}"]
        tokens += ['--container-mounts="$mounts"', '--container-workdir="$start"']
    else:
        gpus = ["--nv"] if run.system.device == "gpu" else []
        binds = [token for mount in mounts for token in ("--bind", mount)]
        tokens = ["singularity", "exec", *gpus, *binds, "--pwd", '"$start"', image]
    yield bash_array("container", tokens)


def _shell_folder(value: str) -> str:
    """A folder as a shell word; $NAME between slashes is that variable, and has to be set."""
    parts = []
    for part in value.split("/"):
        if match := re.fullmatch(r"\$([A-Z][A-Z0-9_]*)", part):
            parts.append(f'"${{{match[1]}:?a node-local folder expected}}"')
        else:
            parts.append(shlex.quote(part) if part else "")
    return "/".join(parts)


def bash_array(name: str, tokens: Sequence[str]) -> str:
    """A Bash array of tokens that are shell text already, in lines of up to 100 columns."""
    lines = [f"{name}=({tokens[0]}"]
    for token in tokens[1:]:
        if len(lines[-1]) + len(token) > 97:
            lines.append(f"  {token}")
        else:
            lines[-1] += f" {token}"
    return "\n".join(lines) + ")"
