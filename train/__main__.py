"""One rank: `python -m rn50.train CONFIG --out FOLDER [key=value ...]`, what launchers start."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path

from ..config.errors import UserError
from ..config.load import load
from ..config.plan import build_plan
from .placement import find_placement
from .support import check_supported

EXIT_FAILED = 3


def main(arguments: list[str] | None = None) -> None:
    """Train one rank; on any error leave `failure_<rank>.json` and end the process at once."""
    parser = argparse.ArgumentParser(prog="rn50 train", description=__doc__)
    parser.add_argument("config", help="a preset's name or a YAML file")
    parser.add_argument("overrides", nargs="*", help="key.path=value, such as batch.per_rank=16")
    parser.add_argument("--out", type=Path, required=True, help="folder for the run's files")
    options = parser.parse_intermixed_args(arguments)
    run_rank(options.config, options.overrides, options.out)


def run_rank(config: str, overrides: list[str], out: Path) -> None:
    """Load the config, check it against the launcher's ranks, train."""
    # Before any library starts a thread: all of them inherit the mask, and one thread waits for
    # the signal, so that a main thread blocked inside MXNet or MPI cannot miss it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    place = find_placement()
    rank = None
    try:
        loaded = load(config, overrides)
        ranks = build_plan(loaded.run).ranks
        if ranks != place.size:
            raise UserError(
                f"system.nodes x system.ranks_per_node = {ranks} ranks expected, "
                f"found {place.size}: start them with `rn50 launch`"
            )
        check_supported(loaded.run)
        from .run import Rank  # MXNet loads here: everything above answers at once

        rank = Rank(loaded.run, loaded.sha256, out, place)
        threading.Thread(target=_stop_on_signal, args=(rank,), daemon=True).start()
        rank.train()
    except BaseException as error:  # whatever it was, the other ranks must not wait for this one
        phase, step = ("start", 0) if rank is None else (rank.timeline.phase, rank.step)
        reason = str(error).strip() or type(error).__name__
        if not isinstance(error, UserError):
            reason = f"{type(error).__name__}: {reason}"
            import traceback

            traceback.print_exc()
        if rank is not None:
            rank.log.abort()
        failure = {
            "rank": place.rank,
            "host": place.host,
            "phase": phase,
            "step": step,
            "reason": reason.splitlines()[0][:500],
        }
        _report(failure, out / f"failure_{place.rank}.json")
        os._exit(EXIT_FAILED)


def _report(failure: dict[str, object], path: Path) -> None:
    print("rank {rank} on {host} in {phase}: {reason}".format(**failure), file=sys.stderr)
    try:
        path.write_text(json.dumps(failure) + "\n")
    except OSError as error:
        print(f"{path}: cannot write: {error.strerror}", file=sys.stderr)
    sys.stderr.flush()


def _stop_on_signal(rank: object) -> None:
    number = signal.sigwait((signal.SIGTERM, signal.SIGINT))
    rank.log.abort()  # type: ignore[attr-defined]
    os._exit(128 + number)


if __name__ == "__main__":
    main()
