"""Commands beside the ranks of a job: once on every node, through the same launcher."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..config.errors import UserError
from ..config.schema import Run
from .launchers import LAUNCHERS, Job, build_job

ROOT = Path(__file__).resolve().parent.parent
DROP_CACHES = (
    *("bash", "-c"),
    "sync; echo 3 2>/dev/null >/proc/sys/vm/drop_caches || sudo -n sysctl -q vm.drop_caches=3",
)


def bind(run: Run) -> list[str]:
    """What stands before a rank's command: it takes its cores, GPU and network card."""
    wanted = run.system.job.bind
    if wanted == "none":
        return []
    table = [] if wanted == "auto" else ["--table", wanted]
    return [str(ROOT / "scripts/bind.sh"), *table]


@contextmanager
def staged(run: Run, config: Sequence[str], launcher: str) -> Iterator[tuple[str, ...]]:
    """The set on every node's own disk within the block; gives the overrides of a run there.
    `config`: CONFIG and overrides. Raises UserError: a node has no such folder, or its copy
    fails."""
    if run.system.job.stage is None:
        yield ()
        return
    target = f"{node_folder(run.system.job.stage)}/rn50_data"
    rn50 = [sys.executable, "-m", "rn50.cli.entry", "data"]
    words = ["--", *config]
    _call([*rn50, "prepare", *words])
    on_nodes = [*rn50, "stage", "--to", target]
    run_once_per_node(run, launcher, ["mkdir", "-p", "--", str(Path(target).parent)])
    try:
        run_once_per_node(run, launcher, [*on_nodes, *words])
        yield (f"data.path={json.dumps(target)}",)
    finally:
        with suppress(UserError):
            run_once_per_node(run, launcher, [*on_nodes, "--remove", *words])


def node_folder(value: str) -> str:
    """A folder on the nodes; $NAME between slashes is that variable, and has to be set."""
    parts = value.split("/")
    for index, part in enumerate(parts):
        if match := re.fullmatch(r"\$([A-Z][A-Z0-9_]*)", part):
            parts[index] = os.environ.get(match[1], "")
            if not parts[index]:
                raise UserError(f"system.job.stage: {match[1]}: a node-local folder expected")
    return "/".join(parts)


def run_once_per_node(run: Run, launcher: str, command: Sequence[str]) -> None:
    """Run a command on every node of the job. Raises UserError: it fails on one."""
    job, _ = build_job(run, launcher, command)
    _call(LAUNCHERS[launcher].command(job.once_per_node(command)), job)


def _call(command: Sequence[str], job: Job | None = None) -> None:
    environment = os.environ | dict(job.environment if job else {})
    code = subprocess.call(command, env=environment, stdin=subprocess.DEVNULL)
    if code:
        raise UserError(f"{' '.join(command)}: exit code 0 expected, found {code}")
