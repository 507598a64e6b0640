"""The control plane at thousands of ranks, which do all but MXNet's work.

    python -m tests.lab.control_plane [CONFIG [KEY=VALUE ...]] [--ranks 16,64,2048] [--ends killed]

`rn50 launch` starts thin ranks (`thin_rank.py`), each a process; the driver waits until all of them
are at work and brings about an end. A line of JSON for each job.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rn50.config.load import Loaded
from rn50.data.prepare import prepare
from rn50.host.reading import read_ends
from rn50.launch.run import load_for_launch
from rn50.launch.run_files import scratch_folder
from rn50.logging.run_folder import RunFolder
from tests.lab.exchange import Exchange

ENDS = ("killed", "stopped", "asked")
"""A rank's process is killed; one is stopped, so that it is silent; the user asks all to stop."""
ROOT = Path(__file__).resolve().parents[2]
RANKS_PER_NODE = 4
LOG_POINTS = 2
POLL_S = 0.02
PATIENCE_S = 900.0


class Measured(NamedTuple):
    """One job."""

    ranks: int
    end: str
    opens: float
    """Files that all ranks open before the clock starts."""
    connected_s: float
    """From the launch until all ranks have joined."""
    end_s: float
    """To the exit of `rn50 launch`, with its report."""
    gone_s: float
    """To the end of the last rank's process."""
    named: bool | None
    """Whether the launcher's reason names the rank that was ended; None: none was."""
    reason: str


def load_thin(config: str, overrides: list[str], ranks: int) -> Loaded:
    """`config` on so many ranks, which start and write on this machine's cores and disk."""
    per_node = RANKS_PER_NODE if ranks % RANKS_PER_NODE == 0 else 1
    settings = (
        f"system.nodes={ranks // per_node}",
        f"system.ranks_per_node={per_node}",
        "batch.per_rank=1",
        "schedule.length=1000 epochs",
        f"log.every={LOG_POINTS} steps",
        "watchdog.start_s=600",
        "limits.grace_s=300",
        "checkpoint.enabled=false",
        "seed=1",
    )
    loaded = load_for_launch(config, [*overrides, *settings], None)
    prepare(loaded.run.data, lambda _: lambda done, total: None, loaded.origins)
    return loaded


def measure(loaded: Loaded, end: str) -> Measured:
    """Launch the thin ranks of `loaded` and bring about an end."""
    with scratch_folder(loaded, "lab") as folder:
        out = folder / "run"
        out.mkdir()
        begun_s = time.monotonic()
        exchange = Exchange(out, loaded.run.system.world_size)
        hosts = folder / "hosts"  # names alone: all ranks are here
        nodes = range(loaded.run.system.nodes)
        hosts.write_text("".join(f"node{node}\n" for node in nodes))
        command = [sys.executable, "-m", "tests.lab.thin_rank", "launch"]
        command += [str(folder / "config.yaml"), str(out)]
        with (folder / "launcher.txt").open("w") as output:
            launcher = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "RN50_HOSTS": str(hosts)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches the driver alone
            )
        try:
            return _watch(launcher, exchange, out, end, begun_s)
        finally:
            if launcher.returncode is None:
                launcher.kill()  # its ranks find their connections closed and end
                launcher.wait()
            until_s = time.monotonic() + PATIENCE_S
            while (
                exchange.pids and exchange.gone_s is None and time.monotonic() < until_s
            ):
                time.sleep(POLL_S)
            exchange.close()


def _watch(
    launcher: subprocess.Popen[bytes],
    exchange: Exchange,
    out: Path,
    end: str,
    launched_s: float,
) -> Measured:
    def wait_for(happened: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < until_s, read_ends(out.parent / "launcher.txt")
            time.sleep(POLL_S)

    wait_for(lambda: bool(exchange.sums) or launcher.poll() is not None)
    connected_s = time.monotonic() - launched_s
    at_work = lambda: len(exchange.sums) > LOG_POINTS  # noqa: E731
    wait_for(lambda: at_work() or launcher.poll() is not None)
    assert at_work(), read_ends(out.parent / "launcher.txt")
    victim = len(exchange.pids) * 2 // 3
    begun_s = time.monotonic()
    if end == "asked":
        launcher.send_signal(signal.SIGINT)
    else:
        number = signal.SIGKILL if end == "killed" else signal.SIGSTOP
        os.kill(exchange.pids[victim], number)
    wait_for(lambda: launcher.poll() is not None)
    end_s = time.monotonic() - begun_s
    wait_for(lambda: exchange.gone_s is not None)
    result = RunFolder(out).read_result()
    reason = result.reason if result else ""
    return Measured(
        ranks=len(exchange.pids),
        end=end,
        opens=exchange.sums[1][0],
        connected_s=connected_s,
        end_s=end_s,
        gone_s=(exchange.gone_s or begun_s) - begun_s,
        named=None if end == "asked" else f"rank {victim} on " in reason,
        reason=reason,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", default="quick")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--ranks", default="16,64,256,1024,2048")
    parser.add_argument("--ends", default=",".join(ENDS))
    options = parser.parse_args()
    for ranks in map(int, options.ranks.split(",")):
        loaded = load_thin(options.config, options.overrides, ranks)
        for end in options.ends.split(","):
            measured = measure(loaded, end)
            print(json.dumps(measured._asdict()), flush=True)


if __name__ == "__main__":
    main()
