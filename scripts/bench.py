"""`rn50 bench`: starts the ranks of a benchmark and collects what rank 0 measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.errors import UserError
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
            *(sys.executable, "-m", "rn50.train.bench_loop", str(out / "config.yaml")),
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
        "machine": machine() | {"launcher": name},
    }


def bench_optimizer(*, rounds: int, threads: int) -> dict[str, Any]:
    """One LARS step of ResNet-50 against MXNet's own, a textbook loop and the memory floor."""
    with tempfile.TemporaryDirectory(prefix="rn50-bench-") as scratch:
        out = Path(scratch) / "bench.json"
        done = subprocess.run(
            [sys.executable, "-m", "rn50.train.bench_optimizer", str(out), str(rounds)],
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise UserError(f"bench optimizer: {done.stderr.strip().splitlines()[-1]}")
        measured = json.loads(out.read_text())
    seconds: dict[str, list[float]] = measured["seconds"]
    ours = seconds["ours"]

    def over(name: str) -> dict[str, float]:
        return spread([other / mine for other, mine in zip(seconds[name], ours, strict=True)])

    return {
        "ratios": {
            "MXNet's LARS / ours": over("MXNet's LARS"),
            "textbook loop / ours": over("textbook loop"),
            "ours / memory floor": spread(
                [mine / floor for mine, floor in zip(ours, seconds["floor"], strict=True)]
            ),
        },
        "figures": {
            **{f"{name} ms (median)": statistics.median(s) * 1e3 for name, s in seconds.items()},
            "parameter MB": measured["parameter_bytes"] / 1e6,
        },
        "machine": machine() | {"OpenMP threads": threads},
    }


def machine() -> dict[str, Any]:
    """Where it was measured."""
    return {"host": platform.node(), "cores": len(os.sched_getaffinity(0))}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, extremes and number of repeated measurements."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }
