"""`rn50 launch` with ranks of body.py: `LAUNCHER FAULT PHASE VICTIM MARK [key=value ...]`."""

import sys
from pathlib import Path
from typing import NoReturn

from rn50.cli import entry
from rn50.cli import main as cli
from rn50.cli.console import track
from rn50.launch import run as launch
from rn50.launch.launch_plan import Options

BODY = str(Path(__file__).with_name("body.py"))


def job(_: list[str]) -> NoReturn:
    launcher, *fate = sys.argv[1:6]
    overrides = ["seed=1", *sys.argv[6:]]
    loaded = launch.load_for_launch("smoke", overrides, None)
    options = Options(launcher)
    _, _, victim, _ = fate
    if victim != "-":  # else it is there before, and the ranks are the usual ones
        options = options._replace(program=(sys.executable, BODY, *fate))
    result, _ = launch.launch(loaded, track, options)
    sys.exit(0 if result.status == "success" else 1)


if __name__ == "__main__":
    cli.run = job  # type: ignore[assignment]
    entry.main()
