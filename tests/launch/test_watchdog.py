"""The watchdog's side of the conversation: real sockets, no ranks."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rn50.config.schema import Watchdog as Settings
from rn50.launch.failure import PROCESS_EXITED, explain_failure
from rn50.launch.watchdog import Watchdog, oom_kills
from rn50.train.heartbeat import WATCHDOG_ENV, main_thread, suspended_s
from tests.waiting import wait_until

PATIENCE_S = 60.0
EXITED = {"reason": PROCESS_EXITED}


class Rank:
    """A rank's connection, message by message."""

    def __init__(self, watchdog: Watchdog, rank: int, token: str | None = None) -> None:
        host, port, right = watchdog.environment[WATCHDOG_ENV].rsplit(":", 2)
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self.say(token=token or right, rank=rank, host=f"h{rank}", pid=1, identity="{}")

    def say(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def beat(self, phase: str, step: int, at: str = "train/run.py:1 x") -> None:
        self.say(phase=phase, step=step, at=at)


@pytest.fixture
def watchdog(request: pytest.FixtureRequest) -> Iterator[Watchdog]:
    settings = Settings(**getattr(request, "param", {}))
    watchdog = Watchdog(settings, 2, one_machine=True)
    yield watchdog
    watchdog.close()


@pytest.mark.slow
def test_a_rank_that_is_gone_is_named_with_its_place(watchdog: Watchdog) -> None:
    ranks = [Rank(watchdog, 0), Rank(watchdog, 1)]
    ranks[1].beat("epoch 3", 120)
    ranks[1].socket.close()
    lost = wait_until(lambda: watchdog.lost)
    assert lost == {"rank": 1, "host": "h1", "phase": "epoch 3", "step": 120} | EXITED
    ranks[0].socket.close()  # what follows from the first is not news
    failed = wait_until(lambda: watchdog.failed_rank)
    assert failed is not None and failed["rank"] == 1


@pytest.mark.slow
def test_a_rank_that_has_said_why_or_is_done_is_not_lost(watchdog: Watchdog) -> None:
    ranks = [Rank(watchdog, 0), Rank(watchdog, 1)]
    place = {"rank": 1, "host": "h1", "phase": "epoch 1", "step": 2}
    told = {**place, "reason": "x", "retryable": False, "agreed_step": None}
    ranks[1].say(failure={**told, "more": "ignored"})
    ranks[0].say(done=True)
    assert wait_until(lambda: watchdog.failures) == [told]
    for rank in ranks:
        rank.socket.close()
    time.sleep(0.6)
    assert watchdog.lost is None and watchdog.failed_rank is None


@pytest.mark.slow
@pytest.mark.parametrize("watchdog", [{"silence_s": 0.5}], indirect=True)
def test_a_silent_rank_is_found_while_others_beat(watchdog: Watchdog) -> None:
    ranks = [Rank(watchdog, 0), Rank(watchdog, 1)]

    def beat() -> Any:
        ranks[0].beat("epoch 1", 7)
        return watchdog.failed_rank

    failed = wait_until(beat)
    assert failed["rank"] == 1 and failed["reason"].startswith("silent for 0.5 s")


@pytest.mark.slow
@pytest.mark.parametrize("watchdog", [{"stall_s": 0.5}], indirect=True)
@pytest.mark.parametrize("culprit_waits", [False, True])
def test_of_ranks_that_stand_still_the_one_behind_is_blamed(
    watchdog: Watchdog, culprit_waits: bool
) -> None:
    """The lowest step; of equals the one that does not wait for others."""
    ranks = [Rank(watchdog, 0), Rank(watchdog, 1)]
    waits, fetches = "train/comm.py:120 barrier (in an engine)", "data/pipeline.py:90 next"

    def beat() -> Any:
        ranks[0].beat("epoch 1", 10, waits)
        ranks[1].beat("epoch 1", 9 if culprit_waits else 10, waits if culprit_waits else fetches)
        return watchdog.failed_rank

    failed = wait_until(beat)
    assert failed["rank"] == 1 and "no progress for 0.5 s" in failed["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("watchdog", [{"start_s": 0.5}], indirect=True)
def test_a_rank_that_never_reports_is_missed(watchdog: Watchdog) -> None:
    rank = Rank(watchdog, 0)

    def move(step: list[int] = [0]) -> Any:  # noqa: B006
        step[0] += 1
        rank.beat("epoch 1", step[0])
        return watchdog.failed_rank

    assert wait_until(move)["rank"] == 1


@pytest.mark.slow
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
def test_a_stranger_is_cut_off_and_changes_nothing(watchdog: Watchdog, data: bytes) -> None:
    host, port, _ = watchdog.environment[WATCHDOG_ENV].rsplit(":", 2)
    with socket.create_connection((host, int(port)), PATIENCE_S) as stranger:
        try:
            stranger.sendall(data)
            assert stranger.recv(10) == b""
        except ConnectionResetError:
            pass
    rank = Rank(watchdog, 0)
    assert rank.socket.recv(5) == b"beat\n"
    assert watchdog.lost is None and watchdog.failures == []


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.slow
@pytest.mark.parametrize("heard_since", [False, True])
def test_an_hour_of_suspension_makes_no_rank_silent(heard_since: bool) -> None:
    """Afterwards a rank that is silent is found in time, however the others went on."""
    clock = Clock()
    watchdog = Watchdog(Settings(), 2, one_machine=True, clock=clock)
    try:
        ranks = [Rank(watchdog, 0), Rank(watchdog, 1)]
        assert [rank.socket.recv(5) for rank in ranks] == [b"beat\n"] * 2
        clock.now_s += 3600.0
        if heard_since:
            for rank in ranks:
                rank.beat("epoch 1", 1)
            assert [rank.socket.recv(5) for rank in ranks] == [b"beat\n"] * 2
        time.sleep(1.0)  # four looks
        assert watchdog.failed_rank is None
        silence_s = 0.0
        while watchdog.failed_rank is None:
            silence_s += 0.9  # less than what counts as suspended
            clock.now_s += 0.9
            ranks[0].beat("epoch 1", 2)
            assert ranks[0].socket.recv(5) == b"beat\n"
            time.sleep(0.6)
        assert watchdog.failed_rank["rank"] == 1
        assert 9 < silence_s <= 11.8  # watchdog.silence_s, and two looks
    finally:
        watchdog.close()


def test_what_counts_as_suspended() -> None:
    assert suspended_s(5.0, 5.2) == 0
    assert suspended_s(5.0, 3605.0) == 3600


def test_a_wish_to_stop_reaches_all_ranks(watchdog: Watchdog) -> None:
    ranks = [Rank(watchdog, 0), Rank(watchdog, 1)]
    assert [rank.socket.recv(5) for rank in ranks] == [b"beat\n"] * 2
    watchdog.request_stop()
    assert [rank.socket.recv(5) for rank in ranks] == [b"stop\n"] * 2


def test_a_wish_to_stop_reaches_a_rank_that_joins_later(watchdog: Watchdog) -> None:
    """Ctrl-C in start-up: such a rank trained on until the launcher's grace was over."""
    first = Rank(watchdog, 0)
    assert first.socket.recv(5) == b"beat\n"
    watchdog.request_stop()
    assert first.socket.recv(5) == b"stop\n"
    late = Rank(watchdog, 1)
    assert late.socket.recv(5) == b"stop\n"


def test_a_rank_that_is_gone_does_not_keep_a_wish_to_stop_from_the_others(
    watchdog: Watchdog,
) -> None:
    """Its entry goes while the watchdog is telling all: the thread ended there."""
    ranks = [Rank(watchdog, 0), Rank(watchdog, 1)]
    assert [rank.socket.recv(5) for rank in ranks] == [b"beat\n"] * 2

    class Gone(socket.socket):
        def send(self, *_: Any) -> int:
            raise BrokenPipeError

    first = watchdog._statuses[0]
    first.connection = Gone(fileno=first.connection.detach())
    watchdog.request_stop()
    assert ranks[1].socket.recv(5) == b"stop\n"


def test_looks_do_not_grow_with_messages() -> None:
    """A look goes over all ranks; one for each message would be their square."""
    looks: list[float] = []

    class Counting(Watchdog):
        def _evaluate(self, now_s: float) -> None:
            looks.append(now_s)
            super()._evaluate(now_s)

    count, each = 40, 25
    begun_s = time.monotonic()
    watchdog = Counting(Settings(), count, one_machine=True)
    try:
        ranks = [Rank(watchdog, number) for number in range(count)]
        for step in range(each):
            for rank in ranks:
                rank.beat("epoch 1", step)
                assert rank.socket.recv(5) == b"beat\n"  # so that none share a turn
        most = (time.monotonic() - begun_s) / 0.25 + 2
    finally:
        watchdog.close()
    assert watchdog.messages >= count * each and watchdog.connected_s is not None
    assert len(looks) <= most < watchdog.messages


LOST = {"rank": 1, "host": "h", "phase": "epoch 1", "step": 5, "reason": PROCESS_EXITED}


def test_the_cause_comes_before_its_consequences() -> None:
    peer = {"rank": 0, "host": "h", "phase": "epoch 1", "step": 5, "retryable": True}
    follows = {**peer, "reason": "MXNetError: Horovod has been shut down"}
    stderr = "mpirun noticed that process rank 1 with PID 0 on node h exited on signal 9 (Killed)."
    told = explain_failure([follows], stderr, 137, lost=LOST)
    assert told == "rank 1 on h failed in epoch 1 at step 5: killed by SIGKILL"
    assert "out of memory" in explain_failure([], stderr, 137, lost=LOST, out_of_memory=True)
    silent = {**LOST, "reason": "silent for 10 s"}
    assert explain_failure([follows], stderr, 137, lost=silent).endswith("silent for 10 s")
    assert explain_failure([follows], "", 1, lost=LOST).endswith(PROCESS_EXITED)
    said = {**peer, "reason": "ValueError: x"}
    assert explain_failure([follows, said], stderr, 1, lost=LOST).endswith("ValueError: x")


def test_the_kernel_counts_what_it_killed_for_memory() -> None:
    assert oom_kills() >= 0


def test_a_rank_says_where_its_main_thread_is() -> None:
    assert main_thread() == "outside rn50" or "train/heartbeat.py" in main_thread()
