"""The watchdog's side of the conversation: real sockets, no ranks."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from rn50.config.schema import Watchdog as Settings
from rn50.host.atomic import sync
from rn50.launch.failure import PROCESS_EXITED
from rn50.launch.watchdog import Watchdog
from rn50.logging.records import Failure, to_dict
from rn50.train.activity import Activity, activity_of
from rn50.train.heartbeat import WATCHDOG_ENV, Line, Place
from tests.conftest import ROOT
from tests.waiting import wait_until

PATIENCE_S = 60.0
TRAINING = ("epoch 1", "epoch 3")

BEAT = b'{"beat": true}\n'
WAITS = Line("train/communication/communicator.py:120 barrier", in_engine=True)
FETCHES = Line("data/pipeline.py:90 next")


def connected(address: str) -> socket.socket:
    """A connection to HOST:PORT."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


class Rank:
    """A rank's connection, message by message."""

    def __init__(
        self, watchdog: Watchdog, rank: int, host: str = "", pid: int = 1
    ) -> None:
        address, _, token = watchdog.environment[WATCHDOG_ENV].rpartition(":")
        self.socket = connected(address)
        self.lines = self.socket.makefile("rb")
        self.say(
            token=token, rank=rank, host=host or f"h{rank}", pid=pid, identity="{}"
        )

    def say(self, **message: Any) -> None:
        line = f"{json.dumps(message)}\n"
        self.socket.sendall(line.encode())

    def leave(self) -> None:
        self.lines.close()  # or the connection would stay
        self.socket.close()

    def beat(
        self,
        phase: str,
        step: int,
        line: Line = FETCHES,
        activity: Activity | None = None,
    ) -> None:
        self.say(
            place=Place(phase, step),
            line=line,
            activity=activity,
            is_started=phase in TRAINING,
            grace_s=0.0,
        )


@pytest.fixture
def watchdog(request: pytest.FixtureRequest) -> Iterator[Watchdog]:
    settings = Settings(**getattr(request, "param", {}))
    with closing(Watchdog(settings, 2, one_machine=True)) as watchdog:
        yield watchdog


@pytest.mark.slow
def test_a_rank_that_is_gone_is_named_with_its_place(watchdog: Watchdog) -> None:
    ranks = [Rank(watchdog, 0), Rank(watchdog, 1)]
    ranks[1].beat("epoch 3", 120)
    ranks[1].leave()
    lost = wait_until(lambda: watchdog.lost)
    assert lost == Failure(1, "h1", "epoch 3", 120, PROCESS_EXITED)
    ranks[0].leave()  # what follows from the first is not news
    failed = wait_until(lambda: watchdog.failed_rank)
    assert failed is not None
    assert failed.rank == 1


@pytest.mark.slow
def test_a_rank_that_has_said_why_or_is_done_is_not_lost(watchdog: Watchdog) -> None:
    ranks = [Rank(watchdog, 0), Rank(watchdog, 1)]
    failure = Failure(1, "h1", "epoch 1", 2, "x", retryable=False)
    ranks[1].say(failure=to_dict(failure) | {"more": "ignored"})
    ranks[0].say(done=True)
    assert wait_until(lambda: watchdog.failures) == [failure]
    for rank in ranks:
        rank.leave()
    time.sleep(0.6)
    assert watchdog.lost is None
    assert watchdog.failed_rank is None


@pytest.mark.slow
def test_hosts_whose_ranks_never_connect_are_named() -> None:
    settings = Settings(start_s=0.5, silence_s=0.4)
    hosts = ["h1", "h1", "h2", "h3"]
    with closing(Watchdog(settings, 4, one_machine=False, hosts=hosts)) as watchdog:
        failed = wait_until(lambda: watchdog.failed_rank)
    assert (failed.rank, failed.host) == (0, "h1")
    assert "4 ranks of h1, h2, h3" in failed.reason
    assert "MTU" in failed.reason


@pytest.mark.slow
@pytest.mark.parametrize("other_phase", ["warm up network", "build network"])
def test_of_ranks_of_which_none_is_behind_the_network_is_named(
    other_phase: str,
) -> None:
    settings = Settings(start_s=1.5)
    with closing(Watchdog(settings, 2, one_machine=False)) as watchdog:
        ranks = [Rank(watchdog, 0), Rank(watchdog, 1)]
        ranks[0].beat("warm up network", 0)
        ranks[1].beat(other_phase, 0)
        failed = wait_until(lambda: watchdog.failed_rank)
    assert ("as all 2 ranks" in failed.reason) == (other_phase == "warm up network")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="IPv6 expected, found none")
@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
def test_ranks_of_other_hosts_connect_over_ipv4_or_ipv6(address: str) -> None:
    with closing(Watchdog(Settings(), 1, one_machine=False)) as watchdog:
        _, port, _ = watchdog.environment[WATCHDOG_ENV].rsplit(":", 2)
        connected(f"{address}:{port}").close()


@pytest.mark.slow
@pytest.mark.parametrize("watchdog", [{"stall_s": 0.5}], indirect=True)
@pytest.mark.parametrize(
    "steps_and_lines", [[(10, WAITS), (9, WAITS)], [(10, WAITS), (10, FETCHES)]]
)
def test_of_ranks_that_stand_still_the_one_that_the_others_wait_for_is_blamed(
    watchdog: Watchdog, steps_and_lines: list[tuple[int, Line]]
) -> None:
    """The lowest step; of equals the one that waits for none."""
    ranks = [Rank(watchdog, number) for number in range(2)]

    def beat() -> Any:
        for rank, step_and_line in zip(ranks, steps_and_lines, strict=True):
            rank.beat("epoch 1", *step_and_line)
        return watchdog.failed_rank

    failed = wait_until(beat)
    assert failed.rank == 1
    assert "no progress" in failed.reason


COMPUTES = "print(flush=True)\nwhile True: pass"
SLEEPS = "import time; print(flush=True); time.sleep(600)"
# Ten reads of a disk a second, as of a process that is swapped out: the file leaves the cache.
READS = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
print(flush=True)
while True:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(file, 1 << 20, 0)
    time.sleep(0.1)
"""
POLLS = """
import threading, time
from rn50.train.activity import talks_to_ranks
def poll():
    while True:
        pass
with talks_to_ranks():
    threading.Thread(target=poll, daemon=True).start()
print(flush=True)
time.sleep(600)
"""
LIMITS = Settings(silence_s=1.0, stall_s=2.0, start_s=3.0)
STARTED_LATE = "no progress for 3 s"
VERDICTS = {
    # what the process does, whether it reports: in start-up, in training
    (SLEEPS, "reports"): (STARTED_LATE, "no progress.*sleeping.* 0.0 s of CPU"),
    (POLLS, "reports"): (STARTED_LATE, "no progress"),
    (COMPUTES, "reports"): (STARTED_LATE, None),
    (READS, "reports"): (STARTED_LATE, None),
    (SLEEPS, "silent"): (STARTED_LATE, "silent.*sleeping"),
    (POLLS, "silent"): (STARTED_LATE, "silent"),
    (COMPUTES, "silent"): (STARTED_LATE, None),
    (READS, "silent"): (STARTED_LATE, None),
    (SLEEPS, "stopped"): ("silent.*is stopped",) * 2,
    (COMPUTES, "stopped"): ("silent.*is stopped",) * 2,
    (COMPUTES, "cut off"): (
        f"{STARTED_LATE}.*; silent for .*network is cut",
        "silent.*network is cut",
    ),
}


class MovedClock:
    """A watchdog's clock that a test moves: a busy machine changes no verdict."""

    now_s = 0.0
    looks = 0

    def watch(self) -> None:
        pass

    def look_s(self) -> float:
        self.looks += 1
        return self.now_s


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[tuple[str, bool], int]]:
    """The processes of VERDICTS, by what they do and whether they are stopped."""
    large = tmp_path / "large"
    large.write_bytes(bytes(1 << 20))
    sync(large)
    started = {}
    for code, state in VERDICTS:
        is_stopped = state == "stopped"
        if (code, is_stopped) in started:
            continue
        command = [sys.executable, "-c", code, str(large)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        started[code, is_stopped] = process
        assert process.stdout is not None
        process.stdout.readline()  # it has come to what it is for
        if is_stopped:
            process.send_signal(signal.SIGSTOP)
    yield {what: process.pid for what, process in started.items()}
    for process in started.values():
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["load MXNet and Horovod", "epoch 1"])
def test_a_rank_is_judged_by_what_its_process_does(
    phase: str, processes: dict[tuple[str, bool], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cases at once, each with a watchdog of its own, over real processes."""
    monkeypatch.setattr("rn50.launch.watchdog.RunningClock", MovedClock)
    monkeypatch.setattr("rn50.launch.watchdog._TICK_S", 0.01)
    watchdogs = {case: Watchdog(LIMITS, 1, one_machine=True) for case in VERDICTS}
    ranks = {}
    for case, watchdog in watchdogs.items():
        code, state = case
        host = "elsewhere" if state == "cut off" else socket.gethostname()
        pid = processes[code, state == "stopped"]
        ranks[case] = Rank(watchdog, 0, host, pid)
        ranks[case].beat(phase, 7)
        for _ in range(2):
            assert ranks[case].lines.readline() == BEAT
    clocks: list[Any] = [watchdog._clock for watchdog in watchdogs.values()]
    reads = processes[READS, False]

    def move() -> None:
        """Move the clocks by less than `silence_s`, while the process that reads has read."""
        last_seen = activity_of(reads)
        wait_until(lambda: activity_of(reads) != last_seen)
        for clock in clocks:
            clock.now_s += 0.4
            clock.looks = 0

    for _ in range(15):
        move()
        for (code, state), rank in ranks.items():
            if state == "reports":
                rank.beat(phase, 7, activity=activity_of(processes[code, False]))
                assert rank.lines.readline() == BEAT
        # the second look follows the verdict of the first
        wait_until(lambda: all(clock.looks > 2 for clock in clocks))
    for case, reasons in VERDICTS.items():
        watchdogs[case].close()
        failed = watchdogs[case].failed_rank
        expected = reasons[phase in TRAINING]
        if expected is None:
            assert failed is None, (case, failed)
        else:
            assert re.search(expected, str(failed)), (case, failed)
            assert failed
            assert failed.step == 7


@pytest.mark.slow
def test_a_step_at_which_a_rank_works_ends_too() -> None:
    """A loop without end computes as well."""
    watchdog = Watchdog(Settings(stall_s=0.3), 1, one_machine=True)
    rank = Rank(watchdog, 0)
    began_s = time.monotonic()

    def beat() -> Any:
        worked_s = time.monotonic() - began_s
        rank.beat("epoch 1", 7, activity=Activity("R", worked_s, 0))
        return watchdog.failed_rank

    assert "no progress for 3 s" in wait_until(beat).reason
    assert watchdog.may_save
    watchdog.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100_000,
        b"[[[[\n",
        b'{"token": "guess", "rank": 0, "host": "h", "pid": 1}\n',
    ],
)
def test_a_stranger_is_cut_off_and_changes_nothing(
    watchdog: Watchdog, data: bytes
) -> None:
    address, _, _ = watchdog.environment[WATCHDOG_ENV].rpartition(":")
    with connected(address) as stranger, suppress(ConnectionResetError):
        stranger.sendall(data)
        assert stranger.recv(10) == b""
    rank = Rank(watchdog, 0)
    assert rank.lines.readline() == BEAT
    assert watchdog.lost is None
    assert watchdog.failures == []


def first_with(rank: Rank, key: str) -> dict[str, Any]:
    """The next message of the launcher that has this key."""
    messages = map(json.loads, rank.lines)
    return next(message for message in messages if key in message)


def test_a_wish_to_stop_reaches_all_ranks_also_one_that_joins_later(
    watchdog: Watchdog,
) -> None:
    """Ctrl-C in start-up: such a rank trained on until the launcher's grace was over."""
    first = Rank(watchdog, 0)
    watchdog.request_stop("SIGTERM")
    first_with(first, "hold")
    first.say(begun=7)
    last = Rank(watchdog, 1)
    first_with(last, "hold")
    last.say(begun=9)
    for rank in (first, last):
        message = first_with(rank, "stop_after")
        assert message == {"stop_after": 9, "by": "SIGTERM"}


def test_the_first_to_fall_silent_is_blamed(watchdog: Watchdog) -> None:
    ranks = [Rank(watchdog, number) for number in (1, 0)]
    for rank in ranks:
        rank.beat("epoch 1", 6)
        for _ in range(2):
            assert rank.lines.readline() == BEAT
    silent = watchdog._silent(time.monotonic() + 1e6)
    assert silent is not None
    assert silent.rank == 1
