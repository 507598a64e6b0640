"""What a launcher that did not start the ranks said: its own sentence out of its page of words."""

from __future__ import annotations

import re
from collections.abc import Iterator

_DASHES = re.compile(r"^-{60,}$", re.M)
_MOST = 300
# Blocks of mpirun that only report that something else has ended the job.
_ECHOES = (
    "Primary job  terminated",
    *(
        f"{name} {words}"
        for name in ("mpirun", "prterun")
        for words in ("detected that one or more", "noticed that")
    ),
)
# Where a block stops saying what is wrong and gives general advice.
_ADVICE = re.compile(
    r'\n\s*(A "slot" is|This usually is caused by|You can override this|We strongly suggest'
    r"|Running as root is|Please revise|This is usually an internal|This is something that"
    r"|Check to make sure|Please use the)"
)
_SORRY = "You were supposed to get help about:"
_STEP = r"error: (?:execve\(\): .*|\*\*\* (?:STEP|JOB) .* \*\*\*)"
# In this order: a line that names the cause itself comes before one that reports what came of it.
_LINES = (
    re.compile(
        r"^ssh: .*|^.*Permission denied \(publickey.*|^Host key verification failed.*", re.M
    ),
    re.compile(rf"^slurmstepd\S*: (?P<said>{_STEP})", re.M),
    re.compile(r"^(?:srun|salloc|jsrun): (?P<said>(?:error|fatal): (?!\S+: tasks? \d).*)", re.M),
    re.compile(r"^(?:mpirun|horovodrun|jsrun|srun): .*(?:rror|option).*", re.M),
    # Open MPI 5 (prterun) puts its row of dashes behind this one, not around it.
    re.compile(r"^(?:mpirun|prterun) has detected an attempt to run as root\.", re.M),
    # Hydra's first line: the others are its functions, from the innermost on.
    re.compile(r"^\[(?:mpiexec|proxy)[^]]*\] \w+ \([^()]*\): (?P<said>.*)", re.M),
    re.compile(r"^PMIX ERROR: .*|(?<=\] )PMIX ERROR: OUT-OF-RESOURCE", re.M),
)
_FIRST = re.compile(r"Process name: (?:\[\S+,)?(?P<rank>\d+)\]?\s+Exit code: (?P<code>\d+)")
_SHELL = {126: "cannot be executed", 127: "no such program"}
_RAISED = re.compile(r"^(?:[\w.]*(?:Error|Exception)|_queue\.Empty)\b.*", re.M)


def quote_refusal(stderr: str) -> str:
    """The sentence in which a launcher said why it ended; empty where it said nothing. `stderr`: of
    mpirun, mpiexec.hydra, srun, jsrun or horovodrun."""
    for said in _sentences(stderr):
        if text := " ".join(said.split()):
            return (
                text
                if len(text) <= _MOST
                else f"{text[:_MOST].rpartition(' ')[0] or text[:_MOST]} ..."
            )
    return ""


def _sentences(stderr: str) -> Iterator[str]:
    for pattern in _LINES:
        if found := pattern.search(stderr):
            yield found.groupdict().get("said") or found[0]
    for block in _DASHES.split(stderr)[1::2]:
        if _SORRY in block:
            yield block.partition(_SORRY)[2].partition("Sorry!")[0]
        elif block.strip() and not block.strip().startswith(_ECHOES):
            yield _ADVICE.split(block, maxsplit=1)[0]
    if found := _FIRST.search(stderr):
        code = int(found["code"])
        meaning = f" ({_SHELL[code]})" if code in _SHELL else ""
        yield f"rank {found['rank']} ended with exit code {code}{meaning}"
    yield from reversed(_RAISED.findall(stderr))
    lines = [line for line in stderr.splitlines() if line.strip(" -=")]
    yield lines[-1] if lines else ""
