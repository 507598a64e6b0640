"""`rn50 bench`: starts the ranks of a benchmark and collects what rank 0 measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from ..config.errors import UserError
from ..config.load import Loaded
from ..config.plan import build_plan
from ..data.prepare import Tracker, prepare
from .launcher import build_job, pick_launcher, run_job


def measure_on_ranks(
    loaded: Loaded,
    launcher: str,
    module: str,
    *arguments: str,
    environment: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda ours: ours,
    watch: bool = False,
) -> Any:
    """Run `python -m rn50.train.MODULE CONFIG FOLDER ARGUMENTS` on the ranks of `loaded`.

    `environment` turns the engines' settings that the config asks for into others; with `watch`
    there is a watchdog to which ranks may report. Returns the
    content of the bench.json that rank 0 leaves.
    """
    with _scratch(loaded) as out:
        command = [
            *(sys.executable, "-m", f"rn50.train.{module}", str(out / "config.yaml")),
            *(str(out), *arguments),
        ]
        job, _ = build_job(loaded.run, launcher, command)
        watched = loaded.run if watch else None
        run_job(job._replace(environment=environment(job.environment)), launcher, out, watched)
        return json.loads((out / "bench.json").read_text())


def bench_loop(
    loaded: Loaded, launcher: str | None, *, rounds: int, steps: int, track: Tracker
) -> dict[str, Any]:
    """Trainer against bare loop in alternation on the ranks of `loaded`."""
    name = pick_launcher(launcher)
    prepare(loaded.run.data, track, loaded.origins)
    seconds = measure_on_ranks(loaded, name, "bench_loop", str(rounds), str(steps))
    ranks = build_plan(loaded.run).ranks
    images = steps * ranks * loaded.run.batch.per_rank
    trainer, bare = seconds["trainer_s"], seconds["bare_s"]
    return {
        "ratios": {"trainer / bare loop throughput": ratio_spread(bare, trainer)},
        "figures": {
            "trainer images/s (median)": images / statistics.median(trainer),
            "bare loop images/s (median)": images / statistics.median(bare),
            "ranks": ranks,
            "batch per rank": loaded.run.batch.per_rank,
            "steps per round": steps,
        },
        "machine": machine() | {"launcher": name},
    }


def bench_overlap(
    loaded: Loaded,
    launcher: str | None,
    *,
    groupings: Sequence[str],
    rounds: int,
    steps: int,
    track: Tracker,
) -> dict[str, Any]:
    """Computing, communication and what of it is exposed, for each grouping in turn."""
    name = pick_launcher(launcher)
    prepare(loaded.run.data, track, loaded.origins)
    seconds = measure_on_ranks(
        loaded, name, "bench_overlap", ";".join(groupings), str(rounds), str(steps)
    )
    rows = []
    for rule, kinds in seconds.items():
        step, computing, communication = (
            kinds[kind] for kind in ("step", "computing", "communication")
        )
        exposed = [s - c for s, c in zip(step, computing, strict=True)]
        rows.append(
            {
                "groups": rule,
                "step_s": spread(step),
                "computing_s": spread(computing),
                "communication_s": spread(communication),
                "exposed_s": spread(exposed),
                "hidden": ratio_spread(
                    [m - e for e, m in zip(exposed, communication, strict=True)], communication
                ),
                "communication_per_computing": ratio_spread(communication, computing),
            }
        )
    return {
        "ratios": {},
        "rows": rows,
        "figures": {
            "ranks": build_plan(loaded.run).ranks,
            "batch per rank": loaded.run.batch.per_rank,
        },
        "machine": machine() | {"launcher": name},
    }


def bench_faults(
    loaded: Loaded, launcher: str | None, *, rounds: int, track: Tracker
) -> dict[str, Any]:
    """Epochs with checkpoint, watchdog and comparison of replicas against epochs without."""
    name = pick_launcher(launcher)
    prepare(loaded.run.data, track, loaded.origins)
    seconds = measure_on_ranks(loaded, name, "bench_faults", str(rounds), watch=True)
    guarded, bare = seconds["guarded_s"], seconds["bare_s"]
    plan = build_plan(loaded.run)
    return {
        "ratios": {
            "guarded / bare epoch": spread([g / b for g, b in zip(guarded, bare, strict=True)])
        },
        "figures": {
            "guarded epoch s": spread(guarded),
            "bare epoch s": spread(bare),
            "guarded / bare, medians": statistics.median(guarded) / statistics.median(bare),
            "steps an epoch": plan.epoch_end_step(1),
            "ranks": plan.ranks,
        },
        "machine": machine() | {"launcher": name},
    }


def bench_gaps(loaded: Loaded, launcher: str | None, *, track: Tracker) -> dict[str, Any]:
    """A run to its last epoch: the step over an epoch's boundary against a plain one."""
    name = pick_launcher(launcher)
    prepare(loaded.run.data, track, loaded.origins)
    with _scratch(loaded) as out:
        config = str(out / "config.yaml")
        command = [sys.executable, "-m", "rn50.train", config, "--out", str(out)]
        with redirect_stdout(sys.stderr):  # the run's progress
            run_job(build_job(loaded.run, name, command)[0], name, out)
        records = [json.loads(line) for line in (out / "metrics.jsonl").open()]
    gaps = [record for record in records if record["kind"] == "gaps"]
    ratios = [b / record["step_s"] for record in gaps for b in record["epoch_boundaries_s"]]
    if not ratios:
        raise UserError("eval.period: blocks of at least 2 epochs expected, to have a boundary in")
    exits = [record["eval_exit_s"] for record in gaps if record["eval_exit_s"] is not None]
    evaluations = [record["eval_s"] for record in records if record["kind"] == "eval"]
    return {
        "ratios": {"step over an epoch's boundary / plain step": spread(ratios)},
        "figures": {
            "plain step ms (medians of blocks)": spread([r["step_s"] * 1e3 for r in gaps]),
            "evaluation entry ms": spread([record["eval_entry_s"] * 1e3 for record in gaps]),
            **({"evaluation exit ms": spread([s * 1e3 for s in exits])} if exits else {}),
            "evaluation ms": spread([s * 1e3 for s in evaluations]),
            "ranks": build_plan(loaded.run).ranks,
        },
        "machine": machine() | {"launcher": name},
    }


@contextmanager
def _scratch(loaded: Loaded) -> Iterator[Path]:
    """A folder below the results, where all nodes can read, with `config.yaml` in it."""
    results = Path(loaded.run.system.results)
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=results) as scratch:
        out = Path(scratch)
        (out / "config.yaml").write_text(loaded.to_yaml())
        yield out


STOCK = ("OMP_NUM_THREADS", "HOROVOD_CPU_OPERATIONS", "OMPI_MCA_mpi_yield_when_idle")
"""What the baseline gets of our settings: its cores, its backend, and that a waiting rank yields;
without the last, ranks that share cores starve each other."""


def bench_against(
    loaded: Loaded,
    launcher: str | None,
    *,
    rounds: int,
    steps: int,
    passes: int,
    track: Tracker,
) -> dict[str, Any]:
    """Our trainer and Horovod's example, jobs in turn, each with its own settings."""
    name = pick_launcher(launcher)
    prepare(loaded.run.data, track, loaded.origins)
    progress = track("ours and Horovod's example in turn")
    seconds: dict[str, list[float]] = {"ours": [], "horovod": []}
    cpu_s: dict[str, list[float]] = {"ours": [], "horovod": []}
    settings: dict[str, Callable[[Mapping[str, str]], Mapping[str, str]]] = {
        "ours": lambda ours: ours,
        "horovod": lambda ours: {key: ours[key] for key in STOCK if key in ours},
    }
    for number in range(passes):
        for order, contender in enumerate(seconds if number % 2 else reversed(seconds)):
            progress(2 * number + order, 2 * passes)
            measured = measure_on_ranks(
                *(loaded, name, "bench_against", contender, str(rounds), str(steps)),
                environment=settings[contender],
            )
            seconds[contender] += measured["wall_s"]
            cpu_s[contender] += measured["cpu_s"]
    progress(2 * passes, 2 * passes)
    ours, theirs = seconds["ours"], seconds["horovod"]
    ranks = build_plan(loaded.run).ranks
    images = ranks * loaded.run.batch.per_rank
    return {
        "ratios": {"our throughput / Horovod's example": ratio_spread(theirs, ours)},
        "figures": {
            "ours: ms a step": spread([s * 1e3 for s in ours]),
            "Horovod's example: ms a step": spread([s * 1e3 for s in theirs]),
            "ours: processor ms a step of rank 0": spread([s * 1e3 for s in cpu_s["ours"]]),
            "Horovod's example: processor ms a step of rank 0": spread(
                [s * 1e3 for s in cpu_s["horovod"]]
            ),
            "ours: images/s (median)": images / statistics.median(ours),
            "Horovod's example: images/s (median)": images / statistics.median(theirs),
            "ranks": ranks,
            "batch per rank": loaded.run.batch.per_rank,
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

    return {
        "ratios": {
            "MXNet's LARS / ours": ratio_spread(seconds["MXNet's LARS"], ours),
            "textbook loop / ours": ratio_spread(seconds["textbook loop"], ours),
            "ours / memory floor": ratio_spread(ours, seconds["floor"]),
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


def ratio_spread(ours: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Spread of ours / others, measured in turn."""
    return spread([mine / other for mine, other in zip(ours, others, strict=True)])
