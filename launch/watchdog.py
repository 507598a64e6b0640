"""The watchdog: every rank reports to it over TCP, and it says which rank the job must end for."""

from __future__ import annotations

import json
import re
import secrets
import selectors
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..config.schema import Watchdog as Settings
from ..host.errors import UserError
from ..host.reading import read_text
from ..logging.records import Failure, fit
from ..train.activity import Activity, activity_of
from ..train.communication.identity import differences, divide
from ..train.heartbeat import WATCHDOG_ENV, Line, Place
from ..train.running_clock import RunningClock
from .failure import PROCESS_EXITED
from .host_limits import raise_open_files

DEATH_GRACE_S = 5.0
"""From the end of a rank's process to that of the job, if its launcher does not see to it."""
_TICK_S = 0.25
_MAX_LINE_BYTES = 65536
_HERE = "127.0.0.1"
_MOST_HOSTS = 8
_SILENT = "its process is stopped or blocked, or its network is cut"
_NETWORK = "their launcher hangs, or the network between hosts drops what they send (firewall, MTU)"
_JOINING = ("join ranks", "open connections", "agree on weights")
"""Stages of start-up in which a rank waits for others."""
_MOST_STALLS = 10
"""A rank that works may take so many times `stall_s` for a step: what it does may have no end."""


class RankStatus:
    """What is known of one rank."""

    def __init__(self, connection: socket.socket, now_s: float) -> None:
        self.connection = connection
        self.buffer = b""
        self.rank = -1
        self.host = ""
        self.identity = ""
        self.pid = 0
        self.asked_to_hold = False
        self.is_started = False
        self.place = Place()
        self.line = Line("an unknown line")
        self.last_received_s = now_s
        self.last_look_s = now_s
        self.last_work_s = now_s
        self.last_step_s = now_s
        self.last_progress_s = now_s
        """The last new step or phase; in training work counts too."""
        self.looks: list[Activity] = []
        """What its process did then, at a step: when it last worked, and now."""

    @property
    def waits(self) -> bool:
        """Whether it most likely waits for other ranks."""
        return self.place.phase in _JOINING or self.line.in_engine

    def beat(self, message: Mapping[str, Any], now_s: float) -> None:
        """Note where the rank says it is."""
        reported = Place(*message["place"])
        self.line = Line(*message["line"])
        self.is_started = message["is_started"]
        if reported != self.place:
            self.place = reported
            self.last_step_s = now_s
            self.last_progress_s = now_s
        if seen := message["activity"]:
            self.look(Activity(*seen), now_s)
        else:
            self.looks = []

    def look(self, seen: Activity, now_s: float) -> bool:
        """Note what its process does at a step. Returns whether it works."""
        earlier, *_ = self.looks or [seen]
        works = seen.works_since(earlier, now_s - self.last_work_s)
        if works or not self.looks:
            earlier = seen
            self.last_work_s = now_s
        if works and self.is_started:
            self.last_progress_s = now_s
        self.looks = [earlier, seen]
        return works

    def found(self, what: str, for_s: float, does: str, *more: str) -> Failure:
        """A verdict: since when, where the rank is, how far it was. `does`: what its process does,
        where no look has shown that."""
        facts = [f"{what} for {for_s:.0f} s at {self.line}", *more]
        if self.place.done_step:
            facts.append(f"its device had done step {self.place.done_step}")
        if self.looks:
            earlier, seen = self.looks
            does = seen.since(earlier)
        return self.report("; ".join([*facts, does]))

    def report(self, reason: str) -> Failure:
        """The failure as a rank itself would report it."""
        return Failure(self.rank, self.host, self.place.phase, self.place.step, reason)


class Watchdog:
    """Listens in a thread, on one machine on its own address alone. To be read at any time:
    `failures` (what ranks reported of their own end, in this order), `lost` (the first rank whose
    process ended without a word, and where it was), `failed_rank` (for which the job must end),
    `grace_s` (which the ranks need for an orderly end), `signals` (which a rank
    got, by rank), `may_save` (whether ranks that answer may end in order, with a checkpoint).
    `hosts`: each rank's, where they are known."""

    def __init__(
        self,
        settings: Settings,
        ranks: int,
        *,
        one_machine: bool,
        hosts: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self.not_connected = set(range(ranks))
        self._clock = (
            RunningClock()
        )  # no rank is silent while this process is suspended
        self._start_s = self._clock.look_s()
        # a connection that does not begin with it is not from a rank of this job
        self._token = secrets.token_hex(16)
        self._hosts = dict(enumerate(hosts))
        self._host = _HERE if one_machine else socket.gethostname()
        # A host's name may have an address of IPv6 alone.
        both = not one_machine and socket.has_dualstack_ipv6()
        self._listener = socket.create_server(
            (_HERE if one_machine else "", 0),
            family=socket.AF_INET6 if both else socket.AF_INET,
            backlog=4096,  # all ranks of a large job connect at once
            dualstack_ipv6=both,
        )
        raise_open_files()  # a connection for every rank
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._statuses: dict[int, RankStatus] = {}
        self._closed = False
        self._asked_by = ""
        self.signals: dict[int, str] = {}
        self._begun: dict[int, int] = {}
        self._stop_sent = False
        self.grace_s = 0.0
        self.failures: list[Failure] = []
        self.lost: Failure | None = None
        self._lost_s = 0.0
        self.failed_rank: Failure | None = None
        self.may_save = False
        self._thread = threading.Thread(
            target=self._listen, name="watchdog", daemon=True
        )
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """The variable by which ranks find this watchdog."""
        port = self._listener.getsockname()[1]
        return {WATCHDOG_ENV: f"{self._host}:{port}:{self._token}"}

    def request_stop(self, by: str) -> None:
        """Ask all ranks for a checkpoint and an orderly end after the same step. `by`: who asks."""
        self._asked_by = self._asked_by or by

    def close(self) -> None:
        """End the thread and close every connection."""
        self._closed = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _listen(self) -> None:
        self._clock.watch()
        next_look_s = 0.0
        while not self._closed:
            for key, _ in self._selector.select(_TICK_S):
                if not key.data:
                    self._accept()
                else:
                    self._read(key.data)
            if self._asked_by and not self._stop_sent:
                self._stop_all()
            # A look goes over all ranks: one a message would be their square.
            now_s = self._clock.look_s()
            if now_s >= next_look_s:
                self._evaluate(now_s)
                next_look_s = now_s + _TICK_S

    def _stop_all(self) -> None:
        """Ask each rank to hold; when all have answered, name the last step (train/stopping.py)."""
        # one that is gone is taken out
        for status in list(self._statuses.values()):
            if not status.asked_to_hold:
                status.asked_to_hold = True
                self._reply(status, hold=True)
        if self.not_connected or self._statuses.keys() - self._begun.keys():
            return
        self._stop_sent = True
        last_step = max(self._begun.values(), default=0)
        for status in list(self._statuses.values()):
            self._reply(status, stop_after=last_step, by=self._asked_by)

    def _accept(self) -> None:
        """All that wait to connect."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # none left, or one that has hung up meanwhile
                return
            connection.setblocking(False)
            self._selector.register(
                connection,
                selectors.EVENT_READ,
                RankStatus(connection, self._clock.look_s()),
            )

    def _read(self, status: RankStatus) -> None:
        try:
            data = status.connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        status.buffer += data
        lines = status.buffer.split(b"\n")
        status.buffer = lines.pop()
        try:
            for line in lines:
                self._handle(status, json.loads(line))
            if len(status.buffer) > _MAX_LINE_BYTES:
                raise ValueError
        except (UserError, ValueError, TypeError, KeyError, RecursionError):
            data = b""  # not one of ours
        if not data:
            self._on_disconnect(status)

    def _handle(self, status: RankStatus, message: Mapping[str, Any]) -> None:
        now_s = self._clock.look_s()
        if status.rank < 0:  # the first message says who it is
            if not secrets.compare_digest(str(message["token"]), self._token):
                raise ValueError
            status.rank = int(message["rank"])
            status.host = message["host"]
            status.identity = message["identity"]
            status.pid = message["pid"]
            self._statuses[status.rank] = status
            self.not_connected.discard(status.rank)
            if not self.not_connected:
                self._compare_identities()
        elif "failure" in message:
            self.failures.append(fit(Failure, message["failure"], "failure"))
            self._unregister(status)
        elif "stop" in message:
            name = self.signals[status.rank] = message["stop"]
            self.request_stop(f"{name} to rank {status.rank} on {status.host}")
        elif "begun" in message:
            self._begun[status.rank] = message["begun"]
        elif "done" in message:
            self._unregister(status)
        else:
            status.beat(message, now_s)
            self.grace_s = max(self.grace_s, message["grace_s"])
        status.last_received_s = now_s
        status.last_look_s = now_s
        # so that a rank notices when this process stands still
        self._reply(status, beat=True)

    def _compare_identities(self) -> None:
        """Name a rank that is not of the others' run, or those of which one is not, before they
        wait for each other."""
        statuses = [self._statuses[rank] for rank in sorted(self._statuses)]
        division = divide([status.identity for status in statuses])
        if not division.differ:
            return
        usual, odd_one = (statuses[group[0]] for group in division.groups[:2])
        tables = (json.loads(usual.identity), json.loads(odd_one.identity))
        names = [f"rank {status.rank} on {status.host}" for status in statuses]
        form = "{} expected, found {}" if division.odd else "{} and {}"
        what = "; ".join(islice(differences(*tables, form), 4))
        reason = f"identities differ: {division.named(names, what)}"
        failure = replace(odd_one.report(reason), by_all=not division.odd)
        self.failed_rank = self.failed_rank or failure

    def _reply(self, status: RankStatus, **message: Any) -> None:
        """Send a rank one line of JSON (train/heartbeat.py has the messages)."""
        try:
            status.connection.send(json.dumps(message).encode() + b"\n")
        except BlockingIOError:
            pass  # silence_s decides
        except OSError:
            self._on_disconnect(status)

    def _unregister(self, status: RankStatus) -> None:
        """Its end has been explained; whatever it does now is no news."""
        self._statuses.pop(status.rank, None)

    def _on_disconnect(self, status: RankStatus) -> None:
        if status.connection.fileno() != -1:
            self._selector.unregister(status.connection)
            status.connection.close()
        if self._statuses.get(status.rank) is status:
            self._unregister(status)
            if not self.lost:
                self.lost = status.report(PROCESS_EXITED)
                self._lost_s = self._clock.look_s()

    def _evaluate(self, now_s: float) -> None:
        """Look for a rank that the job must end for; the first verdict stays."""
        if not self.failed_rank:
            self.failed_rank = (
                self._lost(now_s)
                or self._absent(now_s)
                or self._silent(now_s)
                or self._stalled(now_s)
            )

    def _lost(self, now_s: float) -> Failure | None:
        """A process has ended, and its launcher has not ended the job."""
        if now_s > self._lost_s + DEATH_GRACE_S:
            return self.lost
        return None

    def _absent(self, now_s: float) -> Failure | None:
        """A rank has not connected in time."""
        start_s = self._settings.start_s
        if not self.not_connected or now_s <= self._start_s + start_s:
            return None
        missing = sorted(self.not_connected)
        of_ranks = (self._hosts.get(rank, "an unknown host") for rank in missing)
        hosts = list(dict.fromkeys(of_ranks))
        reason = f"not connected after {start_s:g} s"
        if self._host != _HERE:
            named = ", ".join(hosts[:_MOST_HOSTS])
            reason += f", as {len(missing)} ranks of {named}: {_NETWORK}"
        return Failure(missing[0], hosts[0], "start", 0, reason)

    def _silent(self, now_s: float) -> Failure | None:
        """A connected rank sends nothing, and a look at its process shows no work either. Python
        sends nothing while it loads a library: in start-up only a stopped process is silent."""
        silence_s = self._settings.silence_s
        connected = self._statuses.values()
        for status in sorted(connected, key=lambda status: status.last_received_s):
            # two looks within `silence_s` show what it did between them
            if status.last_look_s >= now_s - silence_s / 2:
                continue
            status.last_look_s = now_s
            is_stopped = False
            if status.host == socket.gethostname() and (
                seen := activity_of(status.pid)
            ):
                is_stopped = seen.state == "T"  # by SIGSTOP
                if status.look(seen, now_s):
                    status.last_received_s = now_s
            else:
                status.looks = []
            silent_s = now_s - status.last_received_s
            if silent_s > silence_s and (status.is_started or is_stopped):
                return status.found("silent", silent_s, _SILENT)
        return None

    def _stalled(self, now_s: float) -> Failure | None:
        """No rank makes a step, and none works at one: all wait for one. It is silent, behind, or
        not where one waits for others. In start-up no rank reaches another phase."""
        connected = self._statuses.values()
        # the latest: as long as one rank gets on the others wait for it
        last_s = max((status.last_progress_s for status in connected), default=now_s)
        last_step_s = max((status.last_step_s for status in connected), default=now_s)
        is_started = all(status.is_started for status in connected)
        limit_s = self._settings.start_s
        if is_started:
            limit_s = self._settings.stall_s
            # work puts the end off, but not for ever
            last_s = min(last_s, last_step_s + (_MOST_STALLS - 1) * limit_s)
        if last_s >= now_s - limit_s:
            return None
        answer_s = now_s - self._settings.silence_s

        def order(status: RankStatus) -> tuple[bool, int, bool]:
            """Silent ranks first, then those behind, then those that wait for nobody."""
            answers = status.last_received_s >= answer_s
            return answers, status.place.step, status.waits

        status = min(connected, key=order)
        answers, *_ = order(status)
        self.may_save = is_started and answers
        facts = []
        does = "it waits for its device"
        if not answers:
            facts = [f"silent for {now_s - status.last_received_s:.0f} s"]
            does = _SILENT
        positions = {(status.place, status.waits) for status in connected}
        if answers and self._host != _HERE and len(positions) == 1:  # no rank is behind
            facts = [f"as all {len(connected)} ranks: {_NETWORK}"]
        return status.found("no progress", now_s - last_step_s, does, *facts)


def oom_kills() -> int:
    """Processes that the kernel of this machine has killed for want of memory so far."""
    kills = re.search(r"^oom_kill (\d+)", read_text(Path("/proc/vmstat")), re.M)
    return int(kills[1]) if kills else 0
