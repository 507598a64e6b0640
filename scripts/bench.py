"""`rn50 bench`: starts the ranks of a benchmark and collects what rank 0 measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.load import Loaded
from ..data.prepare import Tracker, prepare
from .launcher import build_job, pick_launcher, run_job


def bench_loop(
    loaded: Loaded, launcher: str | None, *, rounds: int, steps: int, track: Tracker
) -> dict[str, Any]:
    """Trainer against bare loop in alternation on the ranks of `loaded`."""
    name = pick_launcher(launcher)
    prepare(loaded.run.data, track)
    with tempfile.TemporaryDirectory(prefix="rn50-bench-") as scratch:
        out = Path(scratch)
        (out / "config.yaml").write_text(loaded.to_yaml())
        command = [
            *(sys.executable, "-m", "rn50.train.bench", str(out / "config.yaml")),
            *(str(out), str(rounds), str(steps)),
        ]
        job, _ = build_job(loaded.run, name, command)
        run_job(job, name, out)
        seconds: dict[str, list[float]] = json.loads((out / "bench.json").read_text())
    images = steps * job.ranks * loaded.run.batch.per_rank
    trainer, bare = seconds["trainer_s"], seconds["bare_s"]
    return {
        "ratios": {
            "trainer / bare loop throughput": spread(
                [b / t for t, b in zip(trainer, bare, strict=True)]
            )
        },
        "figures": {
            "trainer images/s (median)": images / statistics.median(trainer),
            "bare loop images/s (median)": images / statistics.median(bare),
            "ranks": job.ranks,
            "batch per rank": loaded.run.batch.per_rank,
            "steps per round": steps,
        },
        "machine": {
            "host": platform.node(),
            "cores": len(os.sched_getaffinity(0)),
            "launcher": name,
        },
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, extremes and number of repeated measurements."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }
