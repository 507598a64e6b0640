"""`rn50 bench log`: our log check and the official checker on the same files, side by side."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..compliance.official import installed_version
from ..config.errors import UserError
from ..config.load import load
from ..config.plan import build_plan
from ..config.progress import Tracker
from ..logging.clock import Clock
from ..logging.mlperf import MLPerfLog
from .harness import machine, spread

_RULESET = "4.0.0"
_EPOCH_S = 50.0  # about as long as eight A100 take
_IN_ONE_PROCESS = """
import json, sys, time
name, path, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
if name == "ours":
    from pathlib import Path
    from rn50.compliance.check_log import check_log
    check = lambda: check_log(Path(path), "4.0.0", official=False)
else:
    from mlperf_logging.compliance_checker import mlp_compliance as official
    def check():
        checker = official.make_checker("training", "4.0.0", True, False)
        official.main(path, "training_4.0.0/common.yaml", checker)
check()
seconds = []
for _ in range(times):
    start = time.process_time()
    check()
    seconds.append(time.process_time() - start)
print(json.dumps(seconds))
"""


# Runs a module and leaves the peak of its own memory: what wait() tells includes the parent's.
_MEASURED = """
import runpy, signal, sys
signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent started it with some blocked
peak, module, *sys.argv[1:] = sys.argv[1:]
try:
    if module == "rn50":
        from rn50.cli.entry import main
        main()
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    with open("/proc/self/status") as status, open(peak, "w") as file:
        file.write(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""


class Cost(NamedTuple):
    """Of one process. CPU time, as other work on the machine does not count there."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def bench_log(*, megabytes: int, rounds: int, track: Tracker) -> dict[str, Any]:
    """Time and peak memory of both checkers on one ordinary log and on a huge one.

    The ordinary log is what the writer of this harness leaves of a run of 37 epochs; the huge one
    is the same with `tracked_stats` records before run_stop.
    """
    with tempfile.TemporaryDirectory(prefix="rn50-bench-") as scratch:
        folder = Path(scratch)
        ordinary = _write_ordinary(folder / "result_0.txt")
        huge = _write_huge(ordinary, folder / "huge.txt", megabytes * 1_000_000)
        contenders = {
            "ours": ["rn50", "log", "check", "--no-official"],
            "official": [
                *("mlperf_logging.compliance_checker", "--ruleset", _RULESET),
                *("--log_output", str(folder / "official.log")),
            ],
        }
        # pip compiles the official checker; ours may have been compiled by nothing yet.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        progress = track("checking logs")
        for start in contenders.values():
            _run([*start, str(ordinary)], folder, environment)
        costs: dict[str, list[Cost]] = {}
        for number in range(rounds):
            progress(number, rounds + 2)
            for name, start in contenders.items():
                costs.setdefault(name, []).append(
                    _run([*start, str(ordinary)], folder, environment)
                )
        progress(rounds, rounds + 2)
        inside = {name: _inside(name, ordinary, folder, times=20) for name in ("ours", "official")}
        progress(rounds + 1, rounds + 2)
        big = {
            name: _run([*start, str(huge)], folder, environment)
            for name, start in contenders.items()
        }
        progress(rounds + 2, rounds + 2)
        size_mb = ordinary.stat().st_size / 1e6
    return {
        "ratios": {
            f"{megabytes} MB: official / ours": spread([big["official"].cpu_s / big["ours"].cpu_s]),
            "ordinary log: official / ours": _ratio(costs["official"], costs["ours"]),
            "ordinary log, one process: official / ours": spread(
                [a / b for a, b in zip(inside["official"], inside["ours"], strict=True)]
            ),
        },
        "figures": {
            "ordinary log KB": size_mb * 1e3,
            **_figures(f"{megabytes} MB", {name: [cost] for name, cost in big.items()}),
            **_figures("ordinary log", costs),
            "ordinary log, one process, ours ms": statistics.median(inside["ours"]) * 1e3,
            "ordinary log, one process, official ms": statistics.median(inside["official"]) * 1e3,
            "official checker": installed_version(),
        },
        "measurements": {
            "CPU ms": {
                **{f"ordinary log, {name}": [1e3 * c.cpu_s for c in costs[name]] for name in costs},
                **{f"one process, {name}": [1e3 * s for s in inside[name]] for name in inside},
            },
            f"CPU s, {megabytes} MB": {name: [cost.cpu_s] for name, cost in big.items()},
        },
        "machine": machine(),
    }


def _figures(what: str, costs: dict[str, list[Cost]]) -> dict[str, float]:
    found = {}
    for name in costs:
        found[f"{what}, {name} CPU ms"] = 1e3 * statistics.median(c.cpu_s for c in costs[name])
        found[f"{what}, {name} wall ms"] = 1e3 * statistics.median(c.wall_s for c in costs[name])
        found[f"{what}, {name} peak MB"] = max(cost.peak_mb for cost in costs[name])
    return found


def _ratio(theirs: Sequence[Cost], ours: Sequence[Cost]) -> dict[str, float]:
    return spread([a.cpu_s / b.cpu_s for a, b in zip(theirs, ours, strict=True)])


def _run(arguments: list[str], folder: Path, environment: dict[str, str]) -> Cost:
    """Run a checker to its end; a verdict other than pass is an error of the benchmark."""
    peak = folder / "peak"
    start = time.perf_counter()
    # A stop within Popen would leave the child behind, writing into a folder that is removed.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _MEASURED, str(peak), *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:  # a signal: the checker need not have got it
        process.kill()
        process.wait()
        raise
    wall_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UserError(f"bench log: exit {process.returncode} of {' '.join(arguments)}")
    return Cost(usage.ru_utime + usage.ru_stime, wall_s, int(peak.read_text()) / 1e3)


def _inside(name: str, log: Path, folder: Path, *, times: int) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", _IN_ONE_PROCESS, name, str(log), str(times)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"bench log: {done.stderr.strip().splitlines()[-1]}")
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds


class _StandingClock(Clock):
    """A clock that stands still but for `pass_s`."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = super().unix_s

    @property
    def unix_s(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


def _write_ordinary(path: Path) -> Path:
    """The log of a run that converges at its last evaluation, as our writer leaves it."""
    loaded = load("dgxa100_8", ["seed=1", f"ruleset={_RULESET}"])
    run, plan = loaded.run, build_plan(loaded.run)
    clock = _StandingClock()
    log = MLPerfLog(path, clock)
    log.submission(run)
    log.cache_clear()
    log.init_start()
    log.hyperparameters(run, plan)
    log.init_stop()
    log.run_start(run)
    first = 1
    for last in plan.eval_epochs:
        log.block_start(first, last - first + 1)
        for epoch in range(first, last + 1):
            log.epoch_start(epoch)
            clock.pass_s(_EPOCH_S)
            log.epoch_stop(epoch)
        log.eval_start(last)
        log.eval_stop(last)
        log.eval_accuracy(last, round(0.76 * (last / plan.eval_epochs[-1]) ** 0.25, 4))
        log.block_stop(first)
        first = last + 1
    log.run_stop(success=True)
    return path


def _write_huge(ordinary: Path, path: Path, size: int) -> Path:
    *records, stop = ordinary.read_text().splitlines(keepends=True)
    stamp = stop.split('"time_ms": ')[1].split(",")[0]
    stats = (
        f':::MLLOG {{"namespace": "", "time_ms": {stamp}, "event_type": "POINT_IN_TIME", '
        '"key": "tracked_stats", "value": {"throughput": 20480.123}, '
        '"metadata": {"file": "train.py", "lineno": 163, "step": 393}}\n'
    )
    with path.open("w") as file:
        file.writelines(records)
        for _ in range(size // len(stats)):
            file.write(stats)
        file.write(stop)
    return path
