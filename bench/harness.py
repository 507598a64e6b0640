"""`rn50 bench`: starts the ranks of a benchmark and collects what rank 0 measured."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..config.atomic import write_file
from ..config.errors import UserError
from ..config.load import Loaded
from ..config.plan import build_plan
from ..config.progress import Tracker
from ..data.prepare import prepare
from ..launch.launchers import build_job, pick_launcher, run_job
from ..train.capabilities import check_supported
from .rounds import read_rounds

Progress = Callable[[int, int], None]
POLL_S = 0.5
"""Between two looks at the rounds that rank 0 has noted."""


def measure_on_ranks(
    loaded: Loaded,
    launcher: str,
    module: str,
    *arguments: str,
    environment: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda ours: ours,
    watch: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Run `python -m rn50.train.MODULE CONFIG FOLDER ARGUMENTS` on the ranks of `loaded`.

    `environment` turns the engines' settings that the config asks for into others; with `watch`
    there is a watchdog to which ranks may report; `progress` gets (done, total) rounds, as rank 0
    notes them. Returns the content of the bench.json that rank 0 leaves.
    """
    check_supported(loaded.run)
    with _scratch(loaded) as out, _following(out, progress):
        command = [
            *(sys.executable, "-m", f"rn50.train.{module}", str(out / "config.yaml")),
            *(str(out), *arguments),
        ]
        job, _ = build_job(loaded.run, launcher, command)
        watched = loaded.run if watch else None
        run_job(job._replace(environment=environment(job.environment)), launcher, out, watched)
        return json.loads((out / "bench.json").read_text())


@contextmanager
def _following(out: Path, progress: Progress | None) -> Iterator[None]:
    """Tell `progress` of each round that a rank notes in `out` (bench/rounds.py)."""
    if progress is None:
        yield
        return
    over = threading.Event()

    def follow() -> None:
        known = None
        while not over.wait(POLL_S):
            if (found := read_rounds(out)) not in (None, known):
                known = found
                progress(*known)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
        if found := read_rounds(out):
            progress(*found)
    finally:
        over.set()
        follower.join()


def bench_loop(
    loaded: Loaded, launcher: str | None, *, rounds: int, steps: int, track: Tracker
) -> dict[str, Any]:
    """Trainer against bare loop in alternation on the ranks of `loaded`."""
    name = pick_launcher(launcher)
    prepare(loaded.run.data, track, loaded.origins)
    seconds = measure_on_ranks(
        *(loaded, name, "bench_loop", str(rounds), str(steps)), progress=track("timing rounds")
    )
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
        "measurements": {
            "images/s": {
                "trainer": [images / s for s in trainer],
                "bare loop": [images / s for s in bare],
            }
        },
        "machine": machine() | {"launcher": name},
    }


def bench_faults(
    loaded: Loaded, launcher: str | None, *, rounds: int, track: Tracker
) -> dict[str, Any]:
    """Epochs with checkpoint, watchdog and comparison of replicas against epochs without."""
    name = pick_launcher(launcher)
    prepare(loaded.run.data, track, loaded.origins)
    seconds = measure_on_ranks(
        *(loaded, name, "bench_faults", str(rounds)), watch=True, progress=track("timing epochs")
    )
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
        "measurements": {"s an epoch": {"guarded": guarded, "bare": bare}},
        "machine": machine() | {"launcher": name},
    }


def bench_gaps(loaded: Loaded, launcher: str | None, *, track: Tracker) -> dict[str, Any]:
    """A run to its last epoch: the step over an epoch's boundary against a plain one."""
    name, plan = pick_launcher(launcher), build_plan(loaded.run)
    blocks = [last - first for first, last in pairwise((0, *plan.eval_epochs))]
    if max(blocks) < 2:
        raise UserError("eval.period: blocks of at least 2 epochs expected, to have a boundary in")
    check_supported(loaded.run)
    prepare(loaded.run.data, track, loaded.origins)
    track("training to the last epoch")
    with _scratch(loaded) as out:
        config = str(out / "config.yaml")
        command = [sys.executable, "-m", "rn50.train", config, "--out", str(out)]
        with redirect_stdout(sys.stderr):  # the run's progress
            run_job(build_job(loaded.run, name, command)[0], name, out)
        records = [json.loads(line) for line in (out / "metrics.jsonl").open()]
    gaps = [record for record in records if record["kind"] == "gaps"]
    ratios = [b / record["step_s"] for record in gaps for b in record["epoch_boundaries_s"]]
    exits = [record["eval_exit_s"] for record in gaps if record["eval_exit_s"] is not None]
    evaluations = [record["eval_s"] for record in records if record["kind"] == "eval"]
    return {
        "ratios": {"step over an epoch's boundary / plain step": spread(ratios)},
        "figures": {
            "plain step ms (medians of blocks)": spread([r["step_s"] * 1e3 for r in gaps]),
            "evaluation entry ms": spread([record["eval_entry_s"] * 1e3 for record in gaps]),
            **({"evaluation exit ms": spread([s * 1e3 for s in exits])} if exits else {}),
            "evaluation ms": spread([s * 1e3 for s in evaluations]),
            "ranks": plan.ranks,
        },
        "measurements": {
            "ms": {
                "plain step (medians of blocks)": [r["step_s"] * 1e3 for r in gaps],
                "step over an epoch's boundary": [
                    s * 1e3 for r in gaps for s in r["epoch_boundaries_s"]
                ],
                "evaluation entry": [r["eval_entry_s"] * 1e3 for r in gaps],
                **({"evaluation exit": [s * 1e3 for s in exits]} if exits else {}),
                "evaluation": [s * 1e3 for s in evaluations],
            }
        },
        "machine": machine() | {"launcher": name},
    }


@contextmanager
def _scratch(loaded: Loaded) -> Iterator[Path]:
    """A folder below the results, where all nodes can read, with `config.yaml` in it.

    It is removed, unless a rank failed: then it stays, as `bench_failed_...`, with stderr.log.
    """
    results = Path(loaded.run.system.results)
    try:
        results.mkdir(parents=True, exist_ok=True)
        out = Path(tempfile.mkdtemp(prefix=".bench-", dir=results))
    except OSError as error:
        raise UserError(f"{results}: cannot create a folder in it: {error.strerror}") from None
    try:
        write_file(out / "config.yaml", loaded.to_yaml())
        yield out
    except UserError as error:
        if str(out) not in str(error):
            raise
        kept = results / f"bench_failed_{out.name.removeprefix('.bench-')}"
        out.rename(kept)
        raise UserError(*str(error).replace(str(out), str(kept)).split("\n")) from None
    finally:
        shutil.rmtree(out, ignore_errors=True)


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
    progress = track("timing ours and Horovod's example in turn")
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
        "measurements": {
            "ms a step": {
                "ours": [s * 1e3 for s in ours],
                "Horovod's example": [s * 1e3 for s in theirs],
            }
        },
        "machine": machine() | {"launcher": name},
    }


def bench_optimizer(*, rounds: int, threads: int, track: Tracker) -> dict[str, Any]:
    """One LARS step of ResNet-50 against MXNet's own, a textbook loop and the memory floor."""
    with (
        tempfile.TemporaryDirectory(prefix="rn50-bench-") as scratch,
        _following(Path(scratch), track("timing LARS steps")),
    ):
        out = Path(scratch)
        done = subprocess.run(
            [sys.executable, "-m", "rn50.bench.optimizer_rank", str(out), str(rounds)],
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise UserError(f"bench optimizer: {lines[-1]}")
        measured = json.loads((out / "bench.json").read_text())
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
        "measurements": {
            "ms": {name: [value * 1e3 for value in s] for name, s in seconds.items()},
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
