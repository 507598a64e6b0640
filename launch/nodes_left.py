"""Going on without the nodes that are gone: which are left, and the config for so many."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import compress
from pathlib import Path

from ..config.load import Loaded, load
from ..host.errors import UserError
from ..host.programs import NoAnswer, ask
from ..host.progress import say
from ..logging.run_folder import RunFolder
from ..train.checkpoint.resume import keep_batches
from .launch_plan import LaunchPlan
from .launchers import LAUNCHERS

PROBE_S = 30.0
"""Longest time in which a node starts a process. Slurm gives up a dead one after its MessageTimeout
(10 s), before it calls it down (SlurmdTimeout, 300 s)."""
POLL_S = 5.0
_AT_ONCE = 32


def on_nodes_left(began: LaunchPlan, out: Path) -> tuple[Loaded, tuple[str, ...]]:
    """Return (config, hosts) to go on with after a failure: the config of the run in `out`, on as
    many of its nodes as are left, with its global batch. No hosts: as it began, which waits for
    nodes that do not answer. Raises UserError: fewer are left than system.job.min_nodes."""
    run = began.run
    nodes = run.system.nodes
    min_nodes = run.system.job.min_nodes
    hosts = LAUNCHERS[began.launcher].hosts() if nodes > 1 else ()
    if not hosts:
        return began.loaded, ()
    if min_nodes is None:
        _wait_for(began, hosts[:nodes])
        return began.loaded, ()
    answering = _answering(began, hosts)
    # whatever happened, no node is gone
    if len(hosts) >= nodes and answering[:nodes] == hosts[:nodes]:
        return began.loaded, ()
    chosen_hosts = answering[:nodes]
    summary = f"{len(answering)} of {max(nodes, len(hosts))} nodes answer"
    if len(chosen_hosts) < min(min_nodes, nodes):
        raise UserError(
            f"system.job.min_nodes: {min_nodes} expected, {summary} "
            f"({', '.join(answering) or 'none'})"
        )
    say(f"{summary}: going on with {', '.join(chosen_hosts)}")
    batches = keep_batches(run, len(chosen_hosts) * run.system.ranks_per_node)
    return load(
        RunFolder(out).config, [f"system.nodes={len(chosen_hosts)}", *batches]
    ), chosen_hosts


def _wait_for(began: LaunchPlan, hosts: Sequence[str]) -> None:
    """Wait until all `hosts` answer, at most `watchdog.start_s`: a restart within an outage is
    lost."""
    patience_s = began.run.watchdog.start_s
    until_s = time.monotonic() + patience_s
    said = None
    while (answering := _answering(began, hosts)) != tuple(hosts):
        if time.monotonic() > until_s:
            return
        if answering != said:
            gone = ", ".join(host for host in hosts if host not in answering)
            say(f"{gone}: no answer, waiting up to {patience_s:g} s")
            said = answering
        time.sleep(POLL_S)


def _answering(began: LaunchPlan, hosts: Sequence[str]) -> tuple[str, ...]:
    """Those of `hosts` on which the launcher starts a process."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(compress(hosts, pool.map(partial(_answers, began), hosts)))


def _answers(began: LaunchPlan, host: str) -> bool:
    """Whether a process starts on a host and ends well in time."""
    job = began.job._replace(
        command=("true",), ranks=1, ranks_per_node=1, hosts=(host,)
    )
    command = LAUNCHERS[began.launcher].command(job)
    try:
        return ask(command, PROBE_S, job.launchers_environment).code == 0
    except NoAnswer:
        return False
