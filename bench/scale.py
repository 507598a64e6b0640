"""`rn50 bench scale`: the control plane at thousands of ranks, which do all but MXNet's work.

`rn50 launch` starts thin ranks (bench/thin_rank.py), each a process; the driver waits until all of
them are at work, brings about an end, and measures launcher, watchdog and ranks apart: here they
share cores, on a cluster they do not.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil

from ..config.errors import UserError
from ..config.load import Loaded
from ..config.reading import read_ends, read_object
from ..launch.host_limits import check_open_files, read_limits
from ..launch.run_files import CHECKPOINTS
from ..launch.scratch import scratch_folder
from ..report.charts import finish, new_panels, save
from .exchange import Exchange
from .harness import Job, Outcome, bench, in_turn, option, parse_counts, spread
from .jobs import load_ready

ENDS = ("killed", "stopped", "asked")
"""A rank's process is killed; one is stopped, so that it is silent; the user asks all to stop."""
RANK_BYTES = 19 << 19
"""Of its own of a thin rank: 8.6 MB, page tables and stacks in the kernel."""
_RANKS_PER_NODE = 4
_LOG_POINTS = 2
_POLL_S = 0.02
_PATIENCE_S = 900.0
_SAMPLED = 8
_FITTED = {
    "connected_s": "s from launch to all connected",
    "launcher_cpu_s": "CPU s of the launcher and its watchdog",
    "watched_cores": "cores of the launcher and its watchdog while ranks train",
    "launcher_mb": "MB of the launcher",
    "end_s": "s from the end of a rank, or the request, to that of the job",
    "checkpoint_bytes": "bytes of a checkpoint",
    "read_bytes": "bytes that ranks read to start, without the first of each node",
    "opens": "files that all ranks open to start",
}


@dataclass(frozen=True)
class Measured:
    """One job."""

    ranks: int
    end: str
    connected_s: float
    """From the start of the watchdog; the launcher's program and all ranks start within."""
    launcher_cpu_s: float
    """Own, from its start to its end, imports and report included."""
    watchdog_cpu_s: float
    messages: int
    watched_cores: float
    """Own CPU of the launcher by time, while all ranks are at work."""
    launcher_mb: float
    rank_cpu_s: float | None
    """Of a rank, on average, to its end; None: some were killed, and their times are not known."""
    rank_mb: float
    """A rank's own pages, which it shares with no other."""
    opens: float
    """Of all ranks before the clock starts."""
    opens_by_place: Mapping[str, float]
    read_bytes: float
    """Of the ranks that are not the first of their node."""
    end_s: float
    """To the exit of `rn50 launch`, with its report."""
    gone_s: float
    """To the end of the last rank's process."""
    named: bool | None
    """Whether the launcher's reason names the rank that was ended; None: none was."""
    checkpoint_bytes: int
    checkpoint_files: int
    reason: str


@bench("scale", config="quick", plot="Draw times, CPU and memory against ranks as SVG")
def scale(
    job: Job,
    *,
    ranks: Annotated[str, option("Rank counts, such as `16,64,256`.")] = "16,64,256,1024,2048",
    ends: Annotated[str, option("How jobs end: killed, stopped, asked.")] = ",".join(ENDS),
    rounds: Annotated[int, option("Jobs of each count and end.", min=1)] = 1,
    watch_s: Annotated[float, option("Seconds to watch ranks at work.", min=0.1)] = 5.0,
    model_mb: Annotated[float, option("Of rank 0's part of the checkpoint.", min=0.1)] = 204.5,
) -> Outcome:
    """The control plane at thousands of ranks: launch, watchdog, log points, checkpoint, end.

    Every rank is a process that does all that a rank does but MXNet's and Horovod's work.

    Example: `rn50 bench scale --ranks 16,64,256 --plot scale.svg`
    """
    counts, kinds = parse_counts("--ranks", ranks), ends.split(",")
    for kind in kinds:
        if kind not in ENDS:
            raise UserError(f"--ends: {', '.join(ENDS)} expected, found {kind}")
    _check_room(max(counts))
    loaded = {count: load_ready(job, *_settings(count)) for count in counts}
    cases = [(count, kind) for count in counts for kind in kinds]
    found = []
    for count, kind in in_turn(cases, rounds, job.track("running thin ranks")):
        found.append(measure(loaded[count], kind, watch_s=watch_s, model_mb=model_mb))
    found.sort(key=lambda one: (one.ranks, ENDS.index(one.end)))
    fits = {f"{kind}: {text}": fit for kind in kinds for text, fit in _fits(found, kind).items()}
    return Outcome(
        figures={"fitted": fits, "processes": "real, forked", "rank_bytes": RANK_BYTES},
        rows=[asdict(one) for one in found],
        header=_HEADER,
        table=[_row([one for one in found if (one.ranks, one.end) == case]) for case in cases],
        notes=[f"{text}: {in_words(fit)}" for text, fit in fits.items()],
        shows_figures=False,
        draw=lambda path: plot_scale(found, path),
    )


def _settings(ranks: int) -> tuple[str, ...]:
    per_node = _RANKS_PER_NODE if ranks % _RANKS_PER_NODE == 0 else 1
    return (
        *(f"system.nodes={ranks // per_node}", f"system.ranks_per_node={per_node}"),
        *("batch.per_rank=1", "schedule.length=1000 epochs", f"log.every={_LOG_POINTS} steps"),
        # All ranks start and write on this machine's cores and disk.
        *("watchdog.start_s=600", "limits.grace_s=300", "checkpoint.enabled=true", "seed=1"),
    )


def _check_room(ranks: int) -> None:
    """Raise UserError where so many processes do not fit."""
    check_open_files(read_limits(), ranks)
    free = psutil.virtual_memory().available
    if free < ranks * RANK_BYTES:
        raise UserError(
            f"--ranks: at most {free // RANK_BYTES} processes of {RANK_BYTES / 2**20:g} MiB in the "
            f"{free >> 20:,} MiB of memory that are free expected, found {ranks}"
        )


# --- one job --------------------------------------------------------------------------------------


def measure(loaded: Loaded, end: str, *, watch_s: float, model_mb: float) -> Measured:
    """Launch the thin ranks of `loaded` and bring about an end. Raises UserError: the job ended by
    itself."""
    ranks = loaded.run.system.world_size
    with scratch_folder(loaded, "bench") as folder:
        out = folder / "run"
        out.mkdir()
        exchange = Exchange(out, ranks)
        values = str(int(model_mb * 1e6 / 4))
        config = str(folder / "config.yaml")
        with (folder / "launcher.txt").open("w") as text:
            launcher = subprocess.Popen(
                [sys.executable, "-m", "rn50.bench.thin_launch", config, str(out), values],
                stdin=subprocess.DEVNULL,
                stdout=text,
                stderr=text,
                start_new_session=True,  # Ctrl-C reaches the driver alone
            )
        try:
            return _watch(launcher, exchange, out, end, watch_s)
        finally:
            if launcher.returncode is None:
                launcher.kill()  # its ranks find their connections closed and end
                launcher.wait()
            until_s = time.monotonic() + _PATIENCE_S
            while exchange.pids and exchange.gone_s is None and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            exchange.close()


def _watch(
    launcher: subprocess.Popen[bytes], exchange: Exchange, out: Path, end: str, watch_s: float
) -> Measured:
    from .thin_rank import COUNTED  # with what a rank imports

    own = _Own(launcher)

    def wait_for(happened: Callable[[], bool]) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while not happened():
            if own.has_ended() or time.monotonic() > until_s:
                said = read_ends(out.parent / "launcher.txt").strip().rpartition("\n")[2]
                raise UserError(f"bench scale: ranks at work expected, found {said[:300]}")
            time.sleep(_POLL_S)

    wait_for(lambda: len(exchange.sums) > _LOG_POINTS)
    begun_s, begun_cpu_s = time.monotonic(), own.cpu_s
    wait_for(lambda: time.monotonic() > begun_s + watch_s)
    watched_cores = (own.cpu_s - begun_cpu_s) / (time.monotonic() - begun_s)
    ranks = len(exchange.pids)
    rank_mb = statistics.mean(
        _private_bytes(exchange.pids[rank]) / 1e6
        for rank in range(0, ranks, max(1, ranks // _SAMPLED))
    )
    victim = ranks * 2 // 3
    begun_s = time.monotonic()
    if end == "asked":
        launcher.send_signal(signal.SIGINT)
    else:
        number = signal.SIGKILL if end == "killed" else signal.SIGSTOP
        os.kill(exchange.pids[victim], number)
    while not own.has_ended():
        time.sleep(_POLL_S)
    end_s = time.monotonic() - begun_s
    use, reason = read_object(out / "launcher.json"), read_object(out / "result.json").get("reason")
    files = list((out / CHECKPOINTS).glob("*"))
    *opens, read_bytes = exchange.sums[0]
    return Measured(
        ranks=ranks,
        end=end,
        connected_s=use["connected_s"],
        launcher_cpu_s=own.cpu_s,
        watchdog_cpu_s=use["watchdog_cpu_s"],
        messages=use["messages"],
        watched_cores=watched_cores,
        launcher_mb=own.peak_mb,
        rank_cpu_s=(own.with_children_cpu_s - own.cpu_s) / ranks if end == "asked" else None,
        rank_mb=rank_mb,
        opens=sum(opens),
        opens_by_place=dict(zip(COUNTED, opens, strict=True)),
        read_bytes=read_bytes,
        end_s=end_s,
        gone_s=(exchange.gone_s or math.nan) - begun_s,
        named=None if end == "asked" else f"rank {victim} on " in str(reason),
        checkpoint_bytes=sum(path.stat().st_size for path in files),
        checkpoint_files=len(files),
        reason=str(reason),
    )


class _Own:
    """What the launcher needs itself, read while it is there."""

    def __init__(self, launcher: subprocess.Popen[bytes]) -> None:
        self._launcher = launcher
        self._process = psutil.Process(launcher.pid)
        self.cpu_s = self.peak_mb = self.with_children_cpu_s = 0.0

    def has_ended(self) -> bool:
        """Look; once it has ended its children's times are known as well."""
        with suppress(psutil.Error):
            times = self._process.cpu_times()
            self.cpu_s = times.user + times.system
        pid, status, usage = os.wait4(self._launcher.pid, os.WNOHANG)
        if not pid:
            with suppress(psutil.Error):
                self.peak_mb = max(self.peak_mb, self._process.memory_info().rss / 1e6)
            return False
        self._launcher.returncode = os.waitstatus_to_exitcode(status)
        self.with_children_cpu_s = usage.ru_utime + usage.ru_stime
        return True


def _private_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1]) << 10
    return 0


# --- growth ---------------------------------------------------------------------------------------


def fit_growth(points: Sequence[tuple[int, float]]) -> dict[str, float | None]:
    """`constant` + `per_rank` x ranks through (ranks, value), each point by its relative error; and
    the exponent of the growth between the two largest counts: 1 is linear, 2 the square."""
    counts, values = np.array(points, np.float64).T
    weights = 1 / np.maximum(np.abs(values), 1e-12)
    per_rank, constant = np.polyfit(counts, values, 1, w=weights)
    (n, before), (m, after) = points[-2:]
    exponent = math.log(after / before) / math.log(m / n) if before > 0 < after else None
    return {"constant": float(constant), "per_rank": float(per_rank), "exponent": exponent}


def _fits(found: Sequence[Measured], end: str) -> dict[str, dict[str, float | None]]:
    """Of the medians at each count; nothing where there are fewer than three."""
    of_end: dict[int, list[Measured]] = {}
    for one in found:
        if one.end == end:
            of_end.setdefault(one.ranks, []).append(one)
    fits = {}
    for name, text in _FITTED.items():
        points = [(n, statistics.median(getattr(m, name) for m in ms)) for n, ms in of_end.items()]
        if len(points) > 2 and all(value > 0 for _, value in points):
            fits[text] = fit_growth(points)
    return fits


def in_words(fit: Mapping[str, float | None]) -> str:
    """`0.3 + 0.001 x ranks, growing with the power 0.9 at the end`."""
    line = f"{fit['constant']:.3g} + {fit['per_rank']:.3g} x ranks"
    if fit["exponent"] is None:
        return line
    return f"{line}, growing with the power {fit['exponent']:.2f} at the end"


_HEADER = (
    *("ranks", "end", "connected s", "CPU s", "watchdog s", "cores", "MB"),
    *("end s", "gone s", "named", "rank CPU s", "rank MB", "checkpoint MB"),
)


def _row(found: Sequence[Measured]) -> list[str]:
    def of(name: str, digits: int) -> str:
        return f"{spread([getattr(one, name) for one in found])['median']:,.{digits}f}"

    first = found[0]
    named = "-" if first.named is None else f"{sum(bool(o.named) for o in found)} of {len(found)}"
    return [
        *(f"{first.ranks:,}", first.end, of("connected_s", 2), of("launcher_cpu_s", 2)),
        *(of("watchdog_cpu_s", 2), of("watched_cores", 3), of("launcher_mb", 0)),
        *(of("end_s", 1), of("gone_s", 1), named),
        "-" if first.rank_cpu_s is None else of("rank_cpu_s", 3),
        of("rank_mb", 1),
        f"{first.checkpoint_bytes / 1e6:,.1f}" if first.checkpoint_bytes else "-",
    ]


def plot_scale(found: Sequence[Measured], path: Path) -> None:
    """Times, CPU and memory against ranks, all axes logarithmic."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {
        "seconds": {
            "all connected": [(one.ranks, one.connected_s) for one in found],
            **{
                f"end: {end}": [(one.ranks, one.end_s) for one in found if one.end == end]
                for end in dict.fromkeys(one.end for one in found)
            },
        },
        "CPU seconds": {
            "launcher, with its watchdog": [(one.ranks, one.launcher_cpu_s) for one in found],
            "watchdog": [(one.ranks, one.watchdog_cpu_s) for one in found],
            "all ranks": [(o.ranks, o.rank_cpu_s * o.ranks) for o in found if o.rank_cpu_s],
        },
        "MB": {
            "launcher": [(one.ranks, one.launcher_mb) for one in found],
            "all ranks": [(one.ranks, one.rank_mb * one.ranks) for one in found],
        },
    }
    figure, axes_of = new_panels(len(panels))
    for axes, (unit, series) in zip(axes_of, panels.items(), strict=True):
        for label, points in series.items():
            counts = sorted({count for count, _ in points})
            middle = [statistics.median(v for n, v in points if n == count) for count in counts]
            axes.plot(counts, middle, marker="o", markersize=3, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(unit)
        axes.set_xlabel("ranks")
        finish(axes)
    save(figure, path)
