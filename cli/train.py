"""`rn50 train`: one rank without a launcher, which says itself how it ended."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.atomic import write_json
from ..config.errors import UserError, failing_as
from ..config.load import Loaded
from ..config.reading import read_object
from ..config.recorded import load_named
from ..data.dataset import check_before_run
from ..data.prepare import prepare
from ..launch.ending import asked_by, rank_failed, run_ended, run_stopped
from ..launch.resume import close_attempt
from ..launch.run import close_result, load_for_launch, save_config, try_report
from ..launch.run_files import new_run_folder, refuse_run
from ..train.__main__ import Report, check_ranks, run_rank
from ..train.process_info import ProcessInfo, read_process_info
from .console import EXIT_BAD, EXIT_STOPPED, Tracking


def train_by_hand(config: str, overrides: list[str], out: Path | None) -> int:
    """Train as one rank in this process; returns the exit code, where the run came to an end.

    Started by mpirun or the like it is one of several ranks: these need a seed and a folder in
    common, and rank 0 alone prints and writes. Raises UserError: before anything is written.
    """
    place = read_process_info()
    loaded = load_named(config, overrides)
    check_ranks(loaded.run, place)
    if out is not None and place.rank == 0:
        refuse_run(out)
    if place.world_size == 1:
        loaded = load_for_launch(config, overrides, None)
        with Tracking() as track:
            prepare(loaded.run.data, track, loaded.origins)
    elif out is None:
        raise UserError(f"--out: one folder for all {place.world_size} ranks expected, found none")
    else:
        check_before_run(loaded.run.data, loaded.origins)
    folder = out or new_run_folder(loaded.run)
    with failing_as(f"{folder}: cannot create"):
        folder.mkdir(parents=True, exist_ok=True)
        if place.rank == 0:
            save_config(loaded, folder)
    report = _Spoken(loaded, folder, place)
    run_rank(config, [*overrides, f"seed={loaded.run.seed}"], folder, report=report)
    report.over.set()
    return report.concluded()


class _Spoken(Report):
    """Rank 0 writes result.json to its end and says the last line."""

    def __init__(self, loaded: Loaded, folder: Path, place: ProcessInfo) -> None:
        super().__init__()
        self._run, self._folder, self._place = loaded.run, folder, place
        self._stopped_by: int | None = None

    def failed(self, failure: Mapping[str, Any]) -> None:
        super().failed(failure)
        if self._place.rank == 0:
            ending = rank_failed(
                str(failure["reason"]),
                self._folder,
                hopeless=not failure["retryable"],
            )
            close_attempt(self._folder)
            close_result(self._folder, self._run, ending)
            print(f"rn50: error: {ending.line}", file=sys.stderr, flush=True)

    def stopping(self, number: int) -> None:
        self._stopped_by = number

    def stopped(self, number: int) -> None:
        self._stopped_by = number
        self._say_stopped()

    def concluded(self) -> int:
        """After the end of training: result.json, the last line; returns the exit code."""
        if self._stopped_by is not None:
            self._say_stopped()
            return EXIT_STOPPED
        result = read_object(self._folder / "result.json") if self._place.rank == 0 else {}
        if not result:
            return 0
        ending = run_ended(result, self._folder)
        write_json(self._folder / "result.json", result | ending.to_dict())
        try_report(self._folder)
        print(ending.line, flush=True)
        return 0 if result["status"] == "success" else EXIT_BAD

    def _say_stopped(self) -> None:
        if self._place.rank != 0 or self._stopped_by is None:
            return
        by = asked_by(KeyboardInterrupt(signal.Signals(self._stopped_by).name))
        ending = run_stopped(by, self._folder)
        close_result(self._folder, self._run, ending)
        print(f"rn50: {ending.line}", file=sys.stderr, flush=True)
