"""Why a job failed, in one line: the first cause, not what followed from it."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.reading import read_object
from .host_limits import NO_MEMORY, Limits, shortages
from .refusal import quote_refusal

PROCESS_EXITED = "its process is gone"
"""The reason of a rank whose process ended before it reported one."""
_WORDS = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
}
_WORD = f"(?P<word>{'|'.join(_WORDS)})"
# What launchers print of a rank that reported nothing itself.
_KILLED = (
    re.compile(r"process rank (?P<rank>\d+) .*exited on\s+signal (?P<signal>\d+)"),
    re.compile(rf"^\[(?P<rank>\d+)\]<stderr>:{_WORD}", re.M),
    re.compile(rf"^srun: error: \S+: tasks? (?P<rank>\d+).*: {_WORD}", re.M),
    re.compile(
        r"Process name: (?:\[\S+,)?(?P<rank>\d+)\]?\s+Exit code:\s+(?P<code>1[3-9]\d)"
    ),  # 128 + signal
)
_HYDRAS_END = "EXIT STRING: "
_KILLED_BY_HYDRA = re.compile(
    r"^=   (?:RANK (?P<rank>\d+) )?PID \d+ RUNNING AT (?:.*\n)+?"
    rf".*{_HYDRAS_END}.* \(signal (?P<signal>\d+)\)",
    re.M,
)
"""The rank only in newer ones."""
_CUT = "a file in use, such as a record file, was cut short, its disk failed, or /dev/shm is full"
"""What SIGBUS means here: record files, and what ranks of one machine share, are memory-mapped."""
_CRASH = re.compile(
    r"Fatal Python error: .*|terminate called .*(\n.*what\(\): .*)?|Segmentation fault: .*"
    r"|Signal: (Segmentation fault|Aborted|Bus error).*|MPI_INIT failed"
)
_BUILT_IN = re.compile(r"/tmp/pip-wheel-\w+/horovod_\w+/")
"""Where Horovod was compiled: 70 characters of each of its messages."""
LABEL = re.compile(r"^\[(?P<rank>\d+)\]<std(out|err)>:")
"""What horovodrun puts before a rank's line."""
# What the other ranks raise once one is gone.
SECONDARY_ERRORS = (
    "Horovod has been shut down",
    "Horovod has not been initialized",
    "Connection reset by peer",
    "Connection closed by peer",
    "Broken pipe",
    "Timed out waiting",
)


def read_failures(out: Path) -> list[dict[str, Any]]:
    """What failed ranks left in `out`/failure_*.json, oldest first. One of another shape is left
    out: a rank was killed while it wrote, or no rank wrote it; stderr.log still has its words."""
    paths = sorted(out.glob("failure_*.json"), key=lambda path: path.lstat().st_mtime_ns)
    found = map(read_object, paths)
    return [failure for failure in found if _is_failure(failure)]


def _is_failure(found: Mapping[str, Any]) -> bool:
    """Whether it says what every rank says that fails."""
    texts = (found.get(key) for key in ("host", "phase", "reason"))
    numbers = (found.get(key) for key in ("rank", "step"))
    return all(isinstance(text, str) for text in texts) and all(
        isinstance(number, int) for number in numbers
    )


def explain_failure(
    failures: Sequence[Mapping[str, Any]],
    stderr: str,
    code: int,
    *,
    lost: Mapping[str, Any] | None = None,
    not_connected: Collection[int] = (),
    out_of_memory: bool = False,
    limits: Limits | None = None,
) -> str:
    """One line: a rank's own reason, else the signal that killed one, else what the rest saw.

    In brackets what was short on this machine, where `limits` show it.

    Args:
        failures: of `read_failures`.
        stderr: what launcher and ranks wrote there.
        code: the launcher's exit code.
        lost: the rank that the watchdog found gone, silent or without progress, and where it was.
        not_connected: ranks that had not reached the watchdog: it can only have seen what followed.
        out_of_memory: the kernel has killed a process here meanwhile.
        limits: of this machine, as its ranks had them.
    """
    stderr = _BUILT_IN.sub("", stderr)
    why = _cause(failures, stderr, code, lost, not_connected, out_of_memory=out_of_memory)
    short = shortages(why, stderr, limits) if limits else ""
    if short and why.endswith(")"):
        return f"{why[:-1]}; {short})"
    return f"{why} ({short})" if short else why


def _cause(
    failures: Sequence[Mapping[str, Any]],
    stderr: str,
    code: int,
    lost: Mapping[str, Any] | None,
    not_connected: Collection[int],
    *,
    out_of_memory: bool,
) -> str:
    template = "rank {rank} on {host} failed in {phase} at step {step}: {reason}"
    for failure in failures:
        if failure["reason"] == PROCESS_EXITED:
            lost = lost or failure
        elif not any(text in failure["reason"] for text in SECONDARY_ERRORS):
            return template.format(**failure)
    if lost is not None and lost["reason"] != PROCESS_EXITED:
        return template.format(**lost)  # found before anybody was killed: we did that
    ends = [match for pattern in _KILLED for match in pattern.finditer(stderr)]
    # Not beyond its last end: each block there would be searched to the end of the text.
    last = stderr.rfind(_HYDRAS_END)
    if last >= 0:
        ends += _KILLED_BY_HYDRA.finditer(stderr, 0, (stderr + "\n").find("\n", last))
    # One that had not reached the watchdog yet took those along that had.
    for match in sorted(ends, key=lambda match: _rank_of(match, lost) not in not_connected):
        found, rank = match.groupdict(), _rank_of(match, lost)
        if "word" in found:
            number = int(_WORDS[found["word"]])
        else:
            number = int(found["signal"]) if "signal" in found else int(found["code"]) - 128
        killed = f"killed by {_signal_name(number)}"
        if out_of_memory and number == signal.SIGKILL:
            killed += " (the kernel was out of memory)"
        if number == signal.SIGBUS:
            killed += f": {_CUT}"
        if lost is not None and lost["rank"] == rank:
            if number != signal.SIGKILL:  # which leaves no time for words: those there are others'
                killed += crash_message(lost["rank"], stderr)
            return template.format(**{**lost, "reason": killed})
        if lost is None or rank in not_connected:
            return f"{'a rank' if rank is None else f'rank {rank}'} was {killed}"
    if lost is not None:
        exited = PROCESS_EXITED + crash_message(lost["rank"], stderr)
        return template.format(**{**lost, "reason": exited})
    if failures:
        return template.format(**failures[0])
    said = quote_refusal(stderr)
    return f"the launcher ended with exit code {code} before any rank reported" + (
        f": {said}" if said else ""
    )


def _rank_of(match: re.Match[str], lost: Mapping[str, Any] | None) -> int | None:
    """Which rank a launcher means. Hydra before 4.1 names only its process: then that is the first
    one which the watchdog found gone."""
    if match["rank"]:
        return int(match["rank"])
    return int(lost["rank"]) if lost is not None else None


def crash_message(rank: int, stderr: str) -> str:
    """What a rank's runtime said of a crash, and whether memory was short, in brackets."""
    lines = [(line, LABEL.match(line)) for line in stderr.splitlines()]
    stderr = "\n".join(
        line[label.end() :] if label else line
        for line, label in lines
        if label is None or int(label["rank"]) == rank
    )
    crash = _CRASH.search(stderr)
    memory = NO_MEMORY.search(stderr, 0, crash.start() if crash else len(stderr))
    words = [" ".join(crash[0].split())[:200]] if crash else []
    if memory:
        words.append(f"memory was short: {memory[0]}")
    return f" ({'; '.join(words)})" if words else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
