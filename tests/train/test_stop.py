"""A request to stop, at each moment of a rank's life."""

import gc
import json
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from mxnet import nd

from rn50.config.load import load
from rn50.train import host_reads
from rn50.train.__main__ import Rank
from rn50.train.activity import Activity
from rn50.train.context import RunContext
from rn50.train.heartbeat import HeartbeatClient, Place, main_thread
from rn50.train.process_info import ProcessInfo
from rn50.train.stopping import StopRequest
from tests.waiting import finished, wait_until


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RunContext]:
    """A rank above 0, which writes nothing, before it has begun. Its open socket is collected here:
    as a thread starts, Python 3.11 waits for ever (the warning of a socket takes a lock)."""
    patience = ["watchdog.silence_s=60", "watchdog.stall_s=100", "limits.grace_s=1e6"]
    loaded = load("quick", patience)
    yield RunContext(loaded, tmp_path, ProcessInfo(1, 2, 1, "here"))
    for thread in threading.enumerate():
        if thread.name == "watchdog":
            thread.join(10)
    gc.collect()


def start(context: RunContext) -> None:
    """Its clock runs: all start-up has been done."""
    context.prepare()
    context.start_clock([])


STEPS = 10_000_000
"""More than a rank can take before it is asked to hold."""


def train(stop: StopRequest) -> int:
    """Begin steps as a rank does until it may not; returns the last that it began."""
    for step in range(1, STEPS + 1):
        if not stop.may_begin(step):
            return step - 1
    return STEPS


@pytest.mark.parametrize("delay_s", [0.0, 1e-3])
def test_all_ranks_end_after_the_same_step_wherever_they_are_asked(
    delay_s: float,
) -> None:
    ranks = [StopRequest() for _ in range(4)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(len(ranks)) as pool:
        ended = pool.map(train, ranks)
        time.sleep(delay_s)
        last = max([stop.hold() for stop in ranks])
        time.sleep(2e-3)  # until the launcher has all answers
        for stop in ranks:
            stop.stop_after(last, "asked")
    sys.setswitchinterval(interval_s)
    assert list(ended) == [last] * len(ranks)


Messages = Iterator[dict[str, Any]]


def first_with(key: str, messages: Messages) -> Any:
    """Its value in the first message that has it and is not 0."""
    return next(message[key] for message in messages if message.get(key))


@contextmanager
def connected(
    context: RunContext, on_stop: Callable[[str], object] = print
) -> Iterator[tuple[HeartbeatClient, socket.socket, Messages]]:
    """A rank's heartbeat, the launcher's end of it, and what the rank says there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}:token"
        heartbeat = HeartbeatClient(address, context, on_stop)
        launcher, _ = server.accept()
        with launcher, launcher.makefile("rb") as lines:
            yield heartbeat, launcher, map(json.loads, lines)
            heartbeat.stop()


@pytest.mark.parametrize("started", [False, True])
def test_the_launchers_word_ends_a_rank_in_start_up_only(
    context: RunContext, started: bool
) -> None:
    if started:
        start(context)
        assert context.stop.may_begin(7)
    reasons: list[str] = []
    with connected(context, reasons.append) as (_, launcher, messages):
        assert next(messages)["rank"] == 1
        launcher.sendall(b'{"beat": true}\n{"hold": true}\n{"stop_')
        if started:
            assert first_with("begun", messages) == 7
            launcher.sendall(b'after": 9, "by": "SIGTERM"}\n')
        wait_until(lambda: reasons or context.stop.last_step == 9)
    assert context.stop.may_begin(9)
    assert context.stop.may_begin(10) == (not started)
    assert reasons == ([] if started else ["asked to stop during start-up"])


def test_the_launcher_is_told_of_a_new_phase_and_step(context: RunContext) -> None:
    with connected(context) as (_, _, messages):
        assert next(messages)["rank"] == 1
        first = next(messages)
        assert first["place"] == [*Place()]
        assert not first["is_started"]
        with context.timeline.span("build network"):
            assert next(messages)["place"][0] == "build network"
        idle = first_with("activity", messages)
        assert Activity(*idle).work_s > 0
        context.stop.may_begin(7)
        context.eval_batches = 3
        start(context)
        assert first_with("is_started", messages)
        assert next(messages)["place"][1:] == [7, 0, 3]


def test_a_signal_to_a_rank_is_told_to_the_launcher_alone(context: RunContext) -> None:
    """Who asked would stay unknown where the ranks agree at a log point before it has answered."""
    start(context)
    rank = Rank(context.folder.path)
    with connected(context) as (rank.heartbeat, _, messages):
        waiting = threading.Thread(
            target=rank.stop_on_signal, args=[context], daemon=True
        )
        waiting.start()
        rank.to_signals.send(bytes([signal.SIGTERM]))
        assert first_with("stop", messages) == "SIGTERM"
    assert not any(context.stop.flags)


@pytest.mark.parametrize("watched", [True, False])
def test_a_suspension_is_no_long_step(
    context: RunContext, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat's may be the first of two looks at the clock an hour apart. Without a heartbeat
    a suspension cannot be told from a step that took as long."""
    hour_s = 3600.0
    ahead_s = 0.0
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead_s)
    start(context)
    stop = context.stop
    with connected(context) if watched else nullcontext() as connection:
        if connection is not None:
            _, _, messages = connection
            first_with("place", messages)
        for step in range(1, 4):
            assert stop.may_begin(step)
            ahead_s += hour_s
        assert stop.may_begin(4)
    assert (stop.longest_step_s < hour_s) == watched


NO_PORT = """
import pathlib, socket, types
from rn50.config.load import load
from rn50.train.heartbeat import HeartbeatClient
pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("60000 60001")
server = socket.create_server(("127.0.0.1", 5000))
taken = [socket.create_connection(("127.0.0.1", 5000)) for _ in range(2)]
HeartbeatClient("127.0.0.1:5000:token", types.SimpleNamespace(run=load("quick").run), print)
"""


def test_a_host_without_a_free_port_is_named_by_its_range() -> None:
    alone = ["unshare", "--user", "--map-root-user", "--net", "--"]
    if finished([*alone, "ip", "link"]).returncode:
        pytest.skip("a network namespace and ip expected, found none")
    shell = 'ip link set lo up; exec "$0" -c "$1"'
    done = finished([*alone, "sh", "-c", shell, sys.executable, NO_PORT])
    assert re.search(r"net\.ipv4\.ip_local_port_range: .* 60000 to 60001", done.stderr)


def test_a_main_thread_that_waits_for_the_device_is_in_an_engine() -> None:
    lines = {main_thread()}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            lines.add(main_thread())

    looking = threading.Thread(target=look)
    looking.start()
    product = nd.ones((1000, 1000))
    for _ in range(20):
        product = nd.dot(product, product)
    host_reads.counts(product)
    over.set()
    looking.join()
    functions = {re.sub(r":\d+ ", " ", str(line)) for line in lines}
    assert {
        "train/heartbeat.py _frames",
        "train/host_reads.py counts (in an engine)",
    } <= functions


def test_a_look_at_the_main_thread_collects_no_garbage() -> None:
    """Else a thread that starts meanwhile may stop the whole process. A thread's frame is made when
    it is asked for first."""
    collecting: list[str] = []

    def note(phase: str, _info: dict[str, int]) -> None:
        collecting.append(sys._getframe(1).f_code.co_name)

    over = threading.Event()
    waiting = [threading.Thread(target=over.wait) for _ in range(10)]
    for thread in waiting:
        thread.start()
    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    main_thread()
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(note)
    over.set()
    assert "_frames" not in collecting
