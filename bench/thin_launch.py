"""`rn50 launch` with thin ranks: `python -m rn50.bench.thin_launch CONFIG OUT MODEL_VALUES`.

Everything is `launch/run.py`'s: the lock, the watchdog, supervision, failure, the report; only the
launcher's program is bench/thin_rank.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from ..config.errors import UserError
from ..config.load import load
from ..launch.ending import Failed, Stopped
from ..launch.launchers import LAUNCHERS, Job, Launcher
from ..launch.run import Options, launch

NAME = "forked"


class Forked(Launcher):
    """All ranks on this machine, however many nodes they are said to be on."""

    name, program, product, controller = NAME, "fork", "rn50", "gloo"
    may_start_elsewhere: ClassVar[bool] = False

    def command(self, job: Job) -> list[str]:
        module = [sys.executable, "-m", "rn50.bench.thin_rank"]
        return [*module, str(job.ranks), str(job.ranks_per_node), *job.command]

    def is_installed(self) -> bool:
        return True


def main(config: str, out: str, model_values: str) -> int:
    """Run to the end that the driver brings about."""
    LAUNCHERS[NAME] = Forked()
    try:
        track = lambda _: lambda done, total: None  # noqa: E731
        launch(load(config), track, Options(NAME, out=Path(out), program=(model_values,)))
    except (Failed, Stopped, UserError) as error:
        print(f"rn50: error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
