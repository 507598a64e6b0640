"""The hosts of an allocation, by the file or the variable with which its scheduler names them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..config.schema import Run
from ..host.errors import UserError, failing_as

HOST_FILES = (
    "SGE_JOB_HOSTLIST",
    "PE_HOSTFILE",
    "PBS_NODEFILE",
    "LSB_DJOB_HOSTFILE",
    "RN50_HOSTS",
)
"""Variables that name a file whose lines begin with the host names of the allocation: Grid
Engine's (ABCI's own first), PBS's, LSF's, and the user's where there is no scheduler."""
_HOST = re.compile(r"([\w.-]+)(:\d+)?")
"""Its name and slots, of which there is one a rank."""


def allocated_hosts(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The hosts of an allocation whose scheduler has no launcher of its own, each once. Raises
    UserError: the file that should name them cannot be read."""
    variable = next((name for name in HOST_FILES if environment.get(name)), None)
    if variable is None:
        # LSF's, in turn with their slots.
        return tuple(dict.fromkeys(environment.get("LSB_MCPU_HOSTS", "").split()[::2]))
    path = Path(environment[variable])
    with failing_as(f"{variable}: {path}"):
        # an editor may have begun the file with a byte order mark
        lines = path.read_text("utf-8-sig", errors="replace").splitlines()
    hosts = []
    for number, line in enumerate(lines, 1):
        entry = re.sub(r"\s*,\s*", ",", line.partition("#")[0])
        fields = entry.split()
        names = fields[0].strip(",").split(",") if fields else []
        for name in names:
            match = _HOST.fullmatch(name)
            if not match:
                raise UserError(
                    f"{variable}: {path}:{number}: a host expected, found {name}"
                )
            hosts.append(match[1])
    return tuple(dict.fromkeys(hosts))


def missing_hosts(run: Run, launcher: str) -> list[str]:
    """Why `launcher` has too few hosts for the nodes of `run`, in a line; empty: it has enough, or
    asks a scheduler for them."""
    expected = run.system.nodes
    asks = launcher == "srun" and not os.environ.get("SLURM_JOB_ID")
    if expected == 1 or asks:
        return []
    hosts = allocated_hosts()
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "")
    count = len(hosts)
    if not hosts and nodes.isdecimal():
        count = int(nodes)
    if count >= expected:
        return []
    names = f" ({', '.join(hosts)})" if hosts else ""
    where = ", ".join(HOST_FILES)
    return [
        f"system.nodes: {expected} hosts expected of a scheduler or of the file of {where}, found "
        f"{count}{names}"
    ]
