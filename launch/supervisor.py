"""A command of ranks under the watchdog: `python -m rn50.launch.supervisor OUT -- COMMAND ...`.

For job scripts that start ranks with a scheduler's own launcher, such as plain srun, which waits
for ever for a rank that was killed or stopped. OUT holds the config.yaml that the ranks run; errors
go to OUT/stderr.log. On SIGTERM the ranks write a checkpoint and end.

Exit 0: all ranks ended well; 2: another process uses the folder; 3: one failed (which and why in
one line); 130: stopped by a signal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.errors import UserError
from ..config.load import load
from .host_limits import check_open_files, read_limits
from .launchers import run_watched
from .resume import close_attempt
from .run_lock import hold_run
from .watchdog import Monitor

EXIT_USAGE, EXIT_FAILED, EXIT_STOPPED = 2, 3, 130


def main(arguments: list[str]) -> int:
    """Lock the folder, run the command; one line for whatever goes wrong."""
    if len(arguments) < 3 or arguments[1] != "--":
        print(f"rn50: error: OUT -- COMMAND expected, found {arguments}", file=sys.stderr)
        return EXIT_USAGE
    out, command = Path(arguments[0]), arguments[2:]
    try:
        with hold_run(out):
            return watch(out, command)
    except UserError as error:
        print(f"rn50: error: {error}", file=sys.stderr)
        return EXIT_USAGE


def watch(out: Path, command: Sequence[str]) -> int:
    """Run the command in the folder `out`, which nobody else uses; returns the exit code."""
    monitor = None
    try:
        check_open_files(read_limits())
        run = load(out / "config.yaml").run
        system = run.system
        if run.watchdog.enabled:
            ranks = system.nodes * system.ranks_per_node
            monitor = Monitor(run.watchdog, ranks, one_machine=system.nodes == 1)
        environment = monitor.environment if monitor else {}
        run_watched(command, environment, out, monitor, run.limits.grace_s)
    except UserError as error:
        close_attempt(out)
        print(f"rn50: error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        close_attempt(out)
        return EXIT_STOPPED
    finally:
        if monitor is not None:
            monitor.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
