"""Rules on records: can they be read, and do they belong to one run."""

from __future__ import annotations

from collections.abc import Iterator

from ..config.finding import number, plain, printable
from .rule import CHECKER, ERROR, NOTE, Case, Found, rule


@rule("RECORDS", ERROR, f"{CHECKER}, mlp_parser")
def records(case: Case) -> Iterator[Found]:
    """Every record is whole: JSON with key, value, metadata and time, and nothing after it."""
    for problem in case.log.problems:
        if problem.kind == "truncated":
            yield Found(
                _truncated(case, problem.line, problem.key),
                problem.line,
                "a whole record",
                "the end of the file",
                "the job was killed or the disk was full: run again",
            )
        else:
            yield Found(
                f"line {problem.line}: {printable(problem.message)}",
                problem.line,
                "a whole record",
                printable(problem.message),
                "write from rank 0 alone, one record a line, nothing else on that line",
                NOTE if problem.kind == "mixed" and case.ruleset != "0.6.0" else None,
            )
    more = case.log.problem_count - len(case.log.problems)
    if more > 0:
        yield Found(f"{more} more records cannot be read", found=str(more), expected="0")


def _truncated(case: Case, line: int, key: str | None) -> str:
    parts = [f"truncated: line {line} ends inside a record" + (f" ({key})" if key else "")]
    if case.log.events:
        last = case.log.events[-1]
        epoch = number(last.metadata.get("epoch_num"))
        at = f" epoch {plain(epoch)}" if epoch is not None else ""
        parts.append(f"last complete record {printable(last.key)}{at}")
    if not case.all("run_stop"):
        parts.append("no run_stop")
    return "; ".join(parts)


@rule("JOINED", NOTE, "a newline that was lost between two writers")
def joined(case: Case) -> Iterator[Found]:
    """One record a line. (The official checker reads the last record of a line alone.)"""
    joined = case.log.joined
    if joined.lines:
        more = f" and {joined.lines - 1} more lines hold" if joined.lines > 1 else " holds"
        yield Found(
            f"line {joined.first}{more} two records (newline lost); the official checker sees the "
            "last alone",
            joined.first,
            "one record a line",
            f"{joined.lines} lines with more",
            "write every record with its newline in one call",
        )


@rule("TWO_RUNS", ERROR, f"{CHECKER}, init_start before init_stop")
def two_runs(case: Case) -> Iterator[Found]:
    """A file holds one run."""
    second = case.second_run_line
    if second is None:
        return
    lines = [event.line for event in case.log.events]
    before = max((line for line in lines if line < second), default=second)
    yield Found(
        f"two runs in one file: lines {lines[0]}-{before} and {second}-{lines[-1]}",
        second,
        "one run",
        "another one starts here",
        "give each run its own result_N.txt; the first one is judged here",
    )


RULES = (
    records,
    joined,
    two_runs,
)
