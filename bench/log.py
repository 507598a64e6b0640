"""`rn50 bench log`: our log check and the official checker on the same files, side by side."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple

from ..compliance.official import installed_version
from ..config.errors import UserError
from ..config.load import load
from ..config.plan import build_plan
from ..launch.supervisor import StopSignals
from ..logging.clock import Clock
from ..logging.mlperf import MLPerfLog
from .harness import Job, Outcome, bench, option, ratio_spread, scaled

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
import sys
peak, module, *sys.argv[1:] = sys.argv[1:]
try:
    if module == "rn50":
        from rn50.cli.entry import main
        main()
    else:
        import runpy  # `python -m` pays for it, the script `rn50` does not
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


@bench("log")
def log(
    job: Job,
    *,
    megabytes: Annotated[int, option("Size of the huge log.", min=1, max=10_000)] = 100,
    rounds: Annotated[int, option("Rounds on the ordinary log.", min=1)] = 5,
) -> Outcome:
    """Our log check against the official checker: time and memory on one log and on 100 MB.

    Each runs as a process of its own, ours as `rn50 log check --no-official`, and on the ordinary
    log also inside one process. The ratios are CPU time, theirs over ours.

    Example: `rn50 bench log --megabytes 100`
    """
    with tempfile.TemporaryDirectory(prefix="rn50-bench-") as scratch:
        folder = Path(scratch)
        ordinary = write_ordinary(folder / "result_0.txt")
        huge = write_huge(ordinary, folder / "huge.txt", megabytes * 1_000_000)
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
        progress = job.track("checking logs")

        def check(name: str, path: Path) -> Cost:
            return _run([*contenders[name], str(path)], folder, environment)

        for name in contenders:
            check(name, ordinary)
        costs: dict[str, list[Cost]] = {name: [] for name in contenders}
        for number in range(rounds):
            progress(number, rounds + 2)
            for name in contenders:
                costs[name].append(check(name, ordinary))
        progress(rounds, rounds + 2)
        inside = {name: _inside(name, ordinary, folder, times=20) for name in contenders}
        progress(rounds + 1, rounds + 2)
        big = {name: [check(name, huge)] for name in contenders}
        progress(rounds + 2, rounds + 2)
        size_mb = ordinary.stat().st_size / 1e6
    cpu_s = {name: [cost.cpu_s for cost in found] for name, found in costs.items()}
    big_s = {name: [cost.cpu_s for cost in found] for name, found in big.items()}
    return Outcome(
        ratios={
            f"{what}: official / ours": ratio_spread(seconds["official"], seconds["ours"])
            for what, seconds in (
                (f"{megabytes} MB", big_s),
                ("ordinary log", cpu_s),
                ("ordinary log, one process", inside),
            )
        },
        figures={
            "ordinary log KB": size_mb * 1e3,
            **_figures(f"{megabytes} MB", big),
            **_figures("ordinary log", costs),
            **{
                f"ordinary log, one process, {name} ms": statistics.median(found) * 1e3
                for name, found in inside.items()
            },
            "official checker": installed_version(),
        },
        measurements={
            "CPU ms": {
                **{f"ordinary log, {name}": scaled(found, 1e3) for name, found in cpu_s.items()},
                **{f"one process, {name}": scaled(found, 1e3) for name, found in inside.items()},
            },
            f"CPU s, {megabytes} MB": big_s,
        },
    )


def _figures(what: str, costs: dict[str, list[Cost]]) -> dict[str, float]:
    found = {}
    for name, each in costs.items():
        found[f"{what}, {name} CPU ms"] = 1e3 * statistics.median(cost.cpu_s for cost in each)
        found[f"{what}, {name} wall ms"] = 1e3 * statistics.median(cost.wall_s for cost in each)
        found[f"{what}, {name} peak MB"] = max(cost.peak_mb for cost in each)
    return found


def _run(arguments: list[str], folder: Path, environment: dict[str, str]) -> Cost:
    """Run a checker to its end; a verdict other than pass is an error of the benchmark."""
    peak = folder / "peak"
    start = time.perf_counter()
    with StopSignals() as stop:  # a signal within Popen would leave the checker running
        process = subprocess.Popen(
            [sys.executable, "-c", _MEASURED, str(peak), *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        if stop.name:
            raise KeyboardInterrupt(stop.name)
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
    """A clock that stands still but where it is set."""

    unix_s = 1.7e9  # type: ignore[assignment]


def write_ordinary(path: Path) -> Path:
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
            clock.unix_s += _EPOCH_S
            log.epoch_stop(epoch)
        log.eval_start(last)
        log.eval_stop(last)
        log.eval_accuracy(last, round(0.76 * (last / plan.eval_epochs[-1]) ** 0.25, 4))
        log.block_stop(first)
        first = last + 1
    log.run_stop(success=True)
    return path


def write_huge(ordinary: Path, path: Path, size: int) -> Path:
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
