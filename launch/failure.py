"""Why a job failed, in one line: the first cause, not what followed from it.

`explain_failure` asks a list of small detectors; the first that finds something has the word. What
launchers print is recorded in tests/golden/refusals/ and tests/golden/failures.yaml.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from ..host.programs import ended_by
from ..logging.records import Failure, failures_in
from .host_limits import NO_COMPONENT, NO_MEMORY, Cause, Limits, with_shortages

PROCESS_EXITED = "its process is gone"
"""The reason of a rank whose process ended before it reported one."""
LABEL = re.compile(r"^\[(?P<rank>\d+)\]<std(out|err)>:")
"""What horovodrun puts before a rank's line."""
SECONDARY_ERRORS = (
    "Horovod has been shut down",
    "Horovod has not been initialized",
    "Connection reset by peer",
    "Connection closed by peer",
    "Broken pipe",
    "Timed out waiting",
)
"""What the other ranks raise once one is gone."""
_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "CPU time limit exceeded": signal.SIGXCPU,
    "File size limit exceeded": signal.SIGXFSZ,
}
_WORD = f"(?P<word>{'|'.join(_SIGNALS)})"
# What launchers print of a rank that a signal ended: Open MPI 4 and 5, horovodrun's shell, srun,
# horovodrun (exit code 128 + signal), Hydra (the rank only in newer ones; 8 lines at most to the
# signal, so that thousands of blocks are searched once).
_KILLED = (
    re.compile(r"process rank (?P<rank>\d+) .*exited on\s+signal (?P<signal>\d+)"),
    re.compile(rf"^\[(?P<rank>\d+)\]<stderr>:{_WORD}", re.M),
    re.compile(rf"^srun: error: \S+: tasks? (?P<rank>\d+).*: {_WORD}", re.M),
    re.compile(
        r"Process name: (?:\[\S+,)?(?P<rank>\d+)\]?\s+Exit code:\s+(?P<code>1[3-9]\d)"
    ),
    re.compile(
        r"^=   (?:RANK (?P<rank>\d+) )?PID \d+ RUNNING AT (?:.*\n){1,8}?"
        r".*EXIT STRING: .* \(signal (?P<signal>\d+)\)",
        re.M,
    ),
)
_CUT = "a file in use, such as a record file, was cut short, its disk failed, or /dev/shm is full"
"""What SIGBUS means here: record files, and what ranks of one machine share, are memory-mapped."""
_CRASH = re.compile(
    r"Fatal Python error: .*|terminate called .*(\n.*what\(\): .*)?|Segmentation fault: .*"
    r"|Signal: (Segmentation fault|Aborted|Bus error).*|MPI_INIT failed"
    rf"|from \S+ to: \S+ Unable to connect to the peer .*|{NO_COMPONENT}"
    r"|uncaught exception: .*"
)
_SOURCE = re.compile(r"\[/\S+:\d+\] ")
"""The place in Gloo's sources where an error was thrown."""
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w+Error: .*", re.M)
_RULER = re.compile(r"[-=]{60,}")
_LONGEST = 500


class Evidence(NamedTuple):
    """What is known of a job that failed.

    `failures`: oldest first. `stderr`: of launcher and ranks. `code`: the launcher's exit
    code. `lost`: the watchdog's finding. `not_connected`: ranks that had not reached the watchdog,
    which can only have seen what followed. `out_of_memory`: the kernel has killed a process here.
    `signals`: that asked ranks to stop. `watched`: by a watchdog.
    """

    failures: Sequence[Failure]
    stderr: str
    code: int
    lost: Failure | None = None
    not_connected: Collection[int] = ()
    out_of_memory: bool = False
    limits: Limits | None = None
    signals: Mapping[int, str] = {}
    watched: bool = True


def explain_failure(evidence: Evidence) -> str:
    """One line: a rank's own reason, else the signal that killed one, else what the rest saw. In
    brackets what was short on this machine, where its limits show it."""
    detectors = (
        _launcher_killed,
        _reported,
        _said_at_start,
        _found_by_watchdog,
        _killed,
        _launcher_asked,
        _gone,
        _secondary,
        _refused,
    )
    # the last one always has an answer
    cause = next(filter(None, (detector(evidence) for detector in detectors)))
    if evidence.limits:
        cause = with_shortages(cause, evidence.stderr, evidence.limits)
    return str(cause)


def file_with_details(evidence: Evidence) -> str:
    """The name of the file that says most: a verdict of the watchdog is in that of its rank, and
    who it ended for that has words in stderr.log too."""
    failures = [*filter(None, [evidence.lost]), *evidence.failures]
    if failures and (_found_by_watchdog(evidence) or not evidence.stderr.strip()):
        return failures[0].file_name
    return "stderr.log"


def _reported(evidence: Evidence) -> Cause | None:
    """The first reason that a rank gave itself and that no other rank caused."""
    for failure in evidence.failures:
        reason = failure.reason
        if reason != PROCESS_EXITED and not any(
            error in reason for error in SECONDARY_ERRORS
        ):
            # which keeps the last words alone, not the peer
            details: tuple[str, ...] = ()
            if reason.startswith("MXNetError: "):
                details = crash_details(failure.rank, evidence.stderr)
            return Cause(str(failure), details=details)
    return None


def _said_at_start(evidence: Evidence) -> Cause | None:
    """What a rank printed that failed before it reached the watchdog, perhaps on a node without
    the folder where its reason would be."""
    for failure in failures_in(evidence.stderr):
        if not evidence.watched or failure.rank in evidence.not_connected:
            return Cause(str(failure))
    return None


def _launcher_killed(evidence: Evidence) -> Cause | None:
    """The launcher's own process ended by a signal, or stands still: what the ranks say followed
    from that."""
    if evidence.code >= 0:
        return None
    ended = ended_by(evidence.code)
    if evidence.code == -signal.SIGSTOP:
        ended = ended.replace("killed", "stopped")
    return Cause(f"the launcher's process, not a rank, {ended}", -evidence.code)


def _launcher_asked(evidence: Evidence) -> Cause | None:
    """The first rank that was gone had got a signal, and no launcher says how it ended: mpirun
    passes SIGTERM on, kills its ranks soon after, and ends without a word and with exit code 1. The
    others of a rank that ended by itself get one too, but later, or before that one was known."""
    lost = evidence.lost
    signals = evidence.signals
    if not signals or evidence.not_connected or (lost and lost.rank not in signals):
        return None
    names = ", ".join(sorted(set(signals.values())))
    return Cause(
        f"the launcher's process, not a rank, was asked to end: its ranks got {names}"
    )


def _found_by_watchdog(evidence: Evidence) -> Cause | None:
    """A rank that was silent or stood still before the launcher was stopped because of it."""
    if (lost := evidence.lost) and lost.reason != PROCESS_EXITED:
        return Cause(str(lost))
    return None


def _killed(evidence: Evidence) -> Cause | None:
    """A rank that a signal ended, in the words of its launcher. One that had not reached the
    watchdog yet took those along that had."""
    lost = evidence.lost
    away = evidence.not_connected
    ends = list(_ends(evidence.stderr, lost, evidence.signals))
    for rank, number in sorted(ends, key=lambda end: end[0] not in away):
        killed = ended_by(-number).removeprefix("was ")
        details: tuple[str, ...] = ()
        if evidence.out_of_memory and number == signal.SIGKILL:
            details = ("the kernel was out of memory",)
        if number == signal.SIGBUS:
            killed += f": {_CUT}"
        if lost and lost.rank == rank:
            # which leaves no time for words: those there are others'
            if number != signal.SIGKILL:
                details = crash_details(lost.rank, evidence.stderr)
            reason = str(replace(lost, reason=killed))
            return Cause(reason, number, details=details)
        if not lost or rank in away:
            named = "a rank" if rank is None else f"rank {rank}"
            return Cause(f"{named} was {killed}", number, details=details)
    return None


def _gone(evidence: Evidence) -> Cause | None:
    """A rank whose process ended, and what its runtime printed of that."""
    if (lost := evidence.lost) is None:
        return None
    reason = str(replace(lost, reason=PROCESS_EXITED))
    return Cause(
        reason, is_mute=True, details=crash_details(lost.rank, evidence.stderr)
    )


def _secondary(evidence: Evidence) -> Cause | None:
    failure = next(iter(evidence.failures), None)
    return Cause(str(failure)) if failure else None


def _refused(evidence: Evidence) -> Cause:
    """The launcher started no rank: its Python exception, else the beginning and the end of what it
    wrote."""
    printed = _RULER.sub("", evidence.stderr)
    if exception := _EXCEPTION.search(evidence.stderr):
        printed = exception[0]
    excerpt = " ".join(printed.split())
    if len(excerpt) > _LONGEST:
        excerpt = f"{excerpt[: _LONGEST // 2]} ... {excerpt[-_LONGEST // 2 :]}"
    ended = (
        f"the launcher ended with exit code {evidence.code} before any rank reported"
    )
    return Cause(": ".join(filter(None, (ended, excerpt))), is_mute=True)


def _ends(
    stderr: str, lost: Failure | None, signals: Collection[int]
) -> Iterator[tuple[int | None, int]]:
    """(rank, signal) of each rank of which a launcher says so. Hydra before 4.1 names only its
    process: then that is the first one which the watchdog found gone. A rank of `signals` has been
    asked to end: horovodrun kills it 5 s later."""
    for match in chain(*(pattern.finditer(stderr) for pattern in _KILLED)):
        end = match.groupdict()
        if "word" in end:
            number = int(_SIGNALS[end["word"]])
        elif "signal" in end:
            number = int(end["signal"])
        elif int(end["rank"]) in signals:
            continue
        else:
            number = int(end["code"]) - 128
        rank = lost.rank if lost else None
        if end["rank"]:
            rank = int(end["rank"])
        yield rank, number


def crash_details(rank: int, stderr: str) -> tuple[str, ...]:
    """What a rank's runtime printed of a crash, and whether memory was short."""
    lines = []
    for line in stderr.splitlines():
        label = LABEL.match(line)
        if not label or int(label["rank"]) == rank:
            lines.append(LABEL.sub("", line))
    stderr = "\n".join(lines)
    details = []
    search_end = len(stderr)
    if crash := _CRASH.search(stderr):
        message = " ".join(crash[0].split())
        details.append(_SOURCE.sub("", message)[:200])
        search_end = crash.start()
    if memory := NO_MEMORY.search(stderr, 0, search_end):
        details.append(f"memory was short: {memory[0]}")
    return tuple(details)
