"""A request to stop, at each moment of a rank's life."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path

import pytest
from mxnet import nd

from rn50.config.load import load
from rn50.train import host_reads
from rn50.train.context import RunContext
from rn50.train.heartbeat import HeartbeatClient, main_thread
from rn50.train.limits import REQUESTED
from rn50.train.process_info import ProcessInfo
from tests.waiting import wait_until


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    """A rank above 0, which writes nothing, before it has begun."""
    loaded = load("quick", ["watchdog.silence_s=60", "watchdog.stall_s=100"])
    return RunContext(loaded, tmp_path, ProcessInfo("none", 1, 2, 1, "here"))


def start(context: RunContext) -> None:
    """Its clock runs: all start-up has been done."""
    context.prepare()
    context.start_clock([])


def test_a_second_request_leaves_a_rank_that_has_ended_alone(context: RunContext) -> None:
    start(context)
    assert context.request_stop()
    context.log.abort()
    assert context.request_stop()


@pytest.mark.parametrize("started", [False, True])
def test_the_launchers_word_ends_a_rank_in_start_up_only(
    context: RunContext, started: bool
) -> None:
    if started:
        start(context)
    reasons: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}:token"
        heartbeat = HeartbeatClient(address, context, reasons.append)
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            assert json.loads(lines.readline())["rank"] == 1
            connection.sendall(b"stop\n")
            wait_until(lambda: reasons or context.stop.flags[REQUESTED])
            heartbeat.stop()
    assert reasons == ([] if started else ["asked to stop during start-up"])


def test_the_launcher_is_told_of_a_new_phase_and_step(context: RunContext) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}:token"
        heartbeat = HeartbeatClient(address, context, lambda _: None)
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            places = (json.loads(line) for line in lines)
            assert next(places)["rank"] == 1
            first = next(places)
            assert (first["phase"], first["step"]) == ("start", 0)
            with context.timeline.span("build network"):
                assert next(places)["phase"] == "build network"
            context.state.step = 7
            assert next(place["step"] for place in places if place["step"]) == 7
            heartbeat.stop()


def test_a_main_thread_that_waits_for_the_device_is_in_an_engine() -> None:
    places = {main_thread()}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            places.add(main_thread())

    looking = threading.Thread(target=look)
    looking.start()
    product = nd.ones((1000, 1000))
    for _ in range(20):
        product = nd.dot(product, product)
    host_reads.counts(product)
    over.set()
    looking.join()
    found = {re.sub(r":\d+ ", " ", place) for place in places}
    assert {"train/heartbeat.py main_thread", "train/host_reads.py counts (in an engine)"} <= found
