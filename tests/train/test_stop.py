"""A request to stop, at each moment of a rank's life."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.train.limits import REQUESTED
from rn50.train.placement import Placement
from rn50.train.session import Session
from rn50.train.watchdog import Heart
from tests.waiting import wait_until


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A rank above 0, which writes nothing, before it has begun."""
    loaded = load("quick", ["watchdog.silence_s=60", "watchdog.stall_s=100"])
    return Session(loaded, tmp_path, Placement("none", 1, 2, 1, "here"))


def end(session: Session) -> None:
    session.log.state = "run"
    session.log.abort()


def test_before_the_clock_there_is_nothing_to_save(session: Session) -> None:
    assert not session.request_stop()
    assert not any(session.stop.flags)


@pytest.mark.parametrize("state", ["run", "epoch", "trained", "eval"])
def test_a_rank_that_trains_is_to_end_in_order(session: Session, state: str) -> None:
    session.log.state = state
    assert session.request_stop()
    assert session.stop.flags[REQUESTED] == 1


def test_a_second_request_leaves_a_rank_that_has_ended_alone(session: Session) -> None:
    end(session)
    assert session.request_stop()


@pytest.mark.parametrize("ended", [False, True])
def test_the_launchers_word_ends_a_rank_in_start_up_only(session: Session, ended: bool) -> None:
    if ended:
        end(session)
    reasons: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}:token"
        heart = Heart(address, session, reasons.append)
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            assert json.loads(lines.readline())["rank"] == 1
            connection.sendall(b"stop\n")
            wait_until(lambda: reasons or session.stop.flags[REQUESTED])
            heart.stop()
    assert reasons == ([] if ended else ["asked to stop during start-up"])
