"""The watchdog's side of the conversation: real sockets, no ranks."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rn50.config.schema import Watchdog
from rn50.launch.failure import GONE, explain_failure
from rn50.launch.watchdog import Monitor, oom_kills
from rn50.train.heartbeat import WATCHDOG_ENV, main_thread, suspended_s
from tests.waiting import wait_until

PATIENCE_S = 60.0


class Rank:
    """A rank's connection, message by message."""

    def __init__(self, monitor: Monitor, rank: int, token: str | None = None) -> None:
        host, port, right = monitor.environment[WATCHDOG_ENV].rsplit(":", 2)
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self.say(token=token or right, rank=rank, host=f"h{rank}", pid=1)

    def say(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def beat(self, phase: str, step: int, at: str = "train/run.py:1 x") -> None:
        self.say(phase=phase, step=step, at=at)


@pytest.fixture
def monitor(request: pytest.FixtureRequest) -> Iterator[Monitor]:
    settings = Watchdog(**getattr(request, "param", {}))
    monitor = Monitor(settings, 2, one_machine=True)
    yield monitor
    monitor.close()


def test_a_rank_that_is_gone_is_named_with_its_place(monitor: Monitor) -> None:
    ranks = [Rank(monitor, 0), Rank(monitor, 1)]
    ranks[1].beat("epoch 3", 120)
    ranks[1].socket.close()
    lost = wait_until(lambda: monitor.lost)
    assert lost == {"rank": 1, "host": "h1", "phase": "epoch 3", "step": 120, "reason": GONE}
    ranks[0].socket.close()  # what follows from the first is not news
    verdict = wait_until(lambda: monitor.verdict)
    assert verdict is not None and verdict["rank"] == 1


def test_a_rank_that_has_said_why_or_is_done_is_not_lost(monitor: Monitor) -> None:
    ranks = [Rank(monitor, 0), Rank(monitor, 1)]
    told = {
        "rank": 1,
        "host": "h1",
        "phase": "epoch 1",
        "step": 2,
        "reason": "x",
        "retryable": False,
    }
    ranks[1].say(failure={**told, "more": "ignored"})
    ranks[0].say(done=True)
    assert wait_until(lambda: monitor.failures) == [told]
    for rank in ranks:
        rank.socket.close()
    time.sleep(0.6)
    assert monitor.lost is None and monitor.verdict is None


@pytest.mark.parametrize("monitor", [{"silence_s": 0.5}], indirect=True)
def test_a_silent_rank_is_found_while_others_beat(monitor: Monitor) -> None:
    ranks = [Rank(monitor, 0), Rank(monitor, 1)]

    def beat() -> Any:
        ranks[0].beat("epoch 1", 7)
        return monitor.verdict

    verdict = wait_until(beat)
    assert verdict["rank"] == 1 and verdict["reason"].startswith("silent for 0.5 s")


@pytest.mark.parametrize("monitor", [{"stall_s": 0.5}], indirect=True)
@pytest.mark.parametrize("culprit_waits", [False, True])
def test_of_ranks_that_stand_still_the_one_behind_is_blamed(
    monitor: Monitor, culprit_waits: bool
) -> None:
    """The lowest step; of equals the one that does not wait for others."""
    ranks = [Rank(monitor, 0), Rank(monitor, 1)]
    waits, fetches = "train/comm.py:120 barrier (in an engine)", "data/pipeline.py:90 next"

    def beat() -> Any:
        ranks[0].beat("epoch 1", 10, waits)
        ranks[1].beat("epoch 1", 9 if culprit_waits else 10, waits if culprit_waits else fetches)
        return monitor.verdict

    verdict = wait_until(beat)
    assert verdict["rank"] == 1 and "no progress for 0.5 s" in verdict["reason"]


@pytest.mark.parametrize("monitor", [{"start_s": 0.5}], indirect=True)
def test_a_rank_that_never_reports_is_missed(monitor: Monitor) -> None:
    rank = Rank(monitor, 0)

    def move(step: list[int] = [0]) -> Any:  # noqa: B006
        step[0] += 1
        rank.beat("epoch 1", step[0])
        return monitor.verdict

    assert wait_until(move)["rank"] == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100_000,
        b"{}\n",
        b"[[[[\n",
        b'{"token": 1, "rank": 0, "host": "h", "pid": 1}\n',
        b'{"token": "guess", "rank": 0, "host": "h", "pid": 1}\n',
    ],
)
def test_a_stranger_is_cut_off_and_changes_nothing(monitor: Monitor, data: bytes) -> None:
    host, port, _ = monitor.environment[WATCHDOG_ENV].rsplit(":", 2)
    with socket.create_connection((host, int(port)), PATIENCE_S) as stranger:
        try:
            stranger.sendall(data)
            assert stranger.recv(10) == b""
        except ConnectionResetError:
            pass
    rank = Rank(monitor, 0)
    assert rank.socket.recv(5) == b"beat\n"
    assert monitor.lost is None and monitor.failures == []


@pytest.mark.parametrize("heard_since", [False, True])
def test_time_in_which_nobody_ran_is_no_silence(monitor: Monitor, heard_since: bool) -> None:
    """An hour suspended, by a clock of the test's own; then a rank is silent, and found in time."""
    ranks = [Rank(monitor, 0), Rank(monitor, 1)]
    wait_until(lambda: not monitor.unheard)
    monitor._over = True
    monitor._thread.join()
    suspended_s, now_s = 3600.0, time.monotonic()
    monitor._judge(now_s)
    now_s += suspended_s
    if heard_since:  # before the watchdog looked at its clock again
        for beat in monitor._beats.values():
            beat.heard_s = beat.moved_s = now_s
    monitor._judge(now_s)
    assert monitor.verdict is None
    silence_s = 0.0
    while monitor.verdict is None:
        silence_s += 0.25
        monitor._beats[0].heard_s = now_s + silence_s
        monitor._judge(now_s + silence_s)
    assert monitor.verdict["rank"] == 1
    assert 9 < silence_s <= 10.25  # watchdog.silence_s, less what had passed before
    for rank in ranks:
        rank.socket.close()


def test_what_counts_as_suspended() -> None:
    assert suspended_s(5.0, 5.2) == 0
    assert suspended_s(5.0, 3605.0) == 3600


def test_a_wish_to_stop_reaches_all_ranks(monitor: Monitor) -> None:
    ranks = [Rank(monitor, 0), Rank(monitor, 1)]
    assert [rank.socket.recv(5) for rank in ranks] == [b"beat\n"] * 2
    monitor.request_stop()
    assert [rank.socket.recv(5) for rank in ranks] == [b"stop\n"] * 2


def test_a_wish_to_stop_reaches_a_rank_that_joins_later(monitor: Monitor) -> None:
    """Ctrl-C in start-up: such a rank trained on until the launcher's grace was over."""
    first = Rank(monitor, 0)
    assert first.socket.recv(5) == b"beat\n"
    monitor.request_stop()
    assert first.socket.recv(5) == b"stop\n"
    late = Rank(monitor, 1)
    assert late.socket.recv(5) == b"stop\n"


LOST = {"rank": 1, "host": "h", "phase": "epoch 1", "step": 5, "reason": GONE}


def test_the_cause_comes_before_its_consequences() -> None:
    peer = {"rank": 0, "host": "h", "phase": "epoch 1", "step": 5, "retryable": True}
    follows = {**peer, "reason": "MXNetError: Horovod has been shut down"}
    stderr = "mpirun noticed that process rank 1 with PID 0 on node h exited on signal 9 (Killed)."
    told = explain_failure([follows], stderr, 137, lost=LOST)
    assert told == "rank 1 on h failed in epoch 1 at step 5: killed by SIGKILL"
    assert "out of memory" in explain_failure([], stderr, 137, lost=LOST, out_of_memory=True)
    silent = {**LOST, "reason": "silent for 10 s"}
    assert explain_failure([follows], stderr, 137, lost=silent).endswith("silent for 10 s")
    assert explain_failure([follows], "", 1, lost=LOST).endswith(GONE)
    said = {**peer, "reason": "ValueError: x"}
    assert explain_failure([follows, said], stderr, 1, lost=LOST).endswith("ValueError: x")


def test_the_kernel_counts_what_it_killed_for_memory() -> None:
    assert oom_kills() >= 0


def test_a_rank_says_where_its_main_thread_is() -> None:
    assert main_thread() == "outside rn50" or "train/heartbeat.py" in main_thread()
