"""Rules on records: can they be read, and do they belong to one run."""

from __future__ import annotations

from collections.abc import Iterator

from ...config.finding import number, plain, printable
from ...logging.checked_keys import READ_METADATA
from ...logging.events import MLL, cut
from ...logging.look_alike import looks_like, spelled_out
from ..logged_run import SAME_MS, LoggedRun, spread_ms
from ..rule import ANY_KEY, CHECKER, ERROR, NOTE, POLICY, Violation, rule


@rule("MLP001", "broken-record", ERROR, f"{CHECKER}, mlp_parser")
def records(run: LoggedRun) -> Iterator[Violation]:
    """Every record is complete: one blank after its token, JSON with one key, value, metadata and
    time, nothing after it. Two values under one name break it, because readers differ in which they
    take. (The official parser takes the last, and skips what follows a token with a tab.)"""
    for problem in run.log.problems:
        if problem.kind == "truncated":
            text = _truncated(run, problem.line, problem.key)
            advice = "the job was killed or the disk was full: run again"
            yield Violation(text, problem.line, "a whole record", "the end of the file", advice)
        else:
            text = f"line {problem.line}: {printable(problem.message)}"
            advice = "write from rank 0 alone, one record a line, nothing else on that line"
            yield Violation(
                text, problem.line, "a whole record", printable(problem.message), advice
            )
    more = run.log.problem_count - len(run.log.problems)
    if more > 0:
        yield Violation(f"{more} more records cannot be read", actual=str(more), expected="0")


@rule("MLP003", "odd-record", NOTE, f"{CHECKER}, mlp_parser")
def odd_records(run: LoggedRun) -> Iterator[Violation]:
    """No record has a harmless oddity: a name twice with one value, another format, or a token with
    a tab before a key that no rule reads. (A 0.6.0 log with records of another format fails: its
    parser cannot read them.)"""
    for note in run.log.notes:
        yield Violation(f"line {note.line}: {printable(note.message)}", note.line)
    other = run.log.other_dialect
    if other is not None:
        mine = run.log.dialect
        text = (
            f"line {other.line}: a record of another format ({printable(cut(other.key))}) among "
            f":::{mine} records"
        )
        yield Violation(
            text, other.line, "one format", "two", "", ERROR if run.ruleset == "0.6.0" else None
        )


_HOW_BAD = {"text": NOTE, "early": POLICY}
_LATE = ((1e17, "nanoseconds?"), (1e14, "microseconds?"), (0.0, "a time after 2099"))


@rule("MLP002", "impossible-stamp", ERROR, "a clock that cannot be right")
def stamps(run: LoggedRun) -> Iterator[Violation]:
    """Stamps are milliseconds since 1970 (0.6.0: seconds), not negative, not of the next century:
    with microseconds or an impossible time there is no result. If none is of 2018 or later, when
    MLPerf began, that is policy. On keys that no rule reads, and for a number written as text (the
    official parser reads it), it is a note. zero-stamp has stamps of 0."""
    unit = "seconds" if run.log.dialect == MLL else "milliseconds"
    for odd in run.log.odd_stamps:
        some = f"{odd.records} records, the first" if odd.records > 1 else "record"
        stamp = printable(odd.stamp)
        what = f"is text {stamp}"
        if odd.kind == "negative":
            what = f"is {stamp}, before 1970"
        elif odd.kind == "early":
            what = f"is {stamp}, before MLPerf began (2018), and no record has a later date"
        elif odd.kind == "late":
            size = float(odd.stamp)
            what = f"is {stamp}: " + next(name for least, name in _LATE if size >= least)
        text = f"the stamp of {some} in line {odd.line} ({printable(odd.key)}) {what}"
        advice = "" if odd.kind == "text" else f"stamp every record with Unix {unit}"
        severity = _HOW_BAD.get(odd.kind, ERROR) if odd.checked else NOTE
        yield Violation(text, odd.line, f"{unit} since 1970, a number", stamp, advice, severity)


@rule("MLP004", "odd-bytes", NOTE, "a page that a file system lost; a file that was written over")
def odd_bytes(run: LoggedRun) -> Iterator[Violation]:
    """The file is text: no zero bytes, no control characters but those of terminals."""
    odd = run.log.odd_bytes
    if odd.bytes:
        zeros = (
            f"{odd.zeros:,} of them zero: a page that the disk lost?" if odd.zeros else "no text"
        )
        text = f"{odd.bytes:,} bytes that no text has, from line {odd.line} on ({zeros})"
        advice = "records may be missing there"
        yield Violation(text, odd.line, "text", f"{odd.bytes:,} other bytes", advice)


def _truncated(run: LoggedRun, line: int, key: str | None) -> str:
    parts = [f"truncated: line {line} ends inside a record" + (f" ({key})" if key else "")]
    if run.log.events:
        last = run.log.events[-1]
        epoch = number(last.metadata.get("epoch_num"))
        at = f" epoch {plain(epoch)}" if epoch is not None else ""
        parts.append(f"last complete record {printable(last.key)}{at}")
    if not run.all("run_stop"):
        parts.append("no run_stop")
    return "; ".join(parts)


@rule("MLP005", "ruleset-contradicted", POLICY, "a log is held to the rules of its round")
def ruleset(run: LoggedRun) -> Iterator[Violation]:
    """Nothing beside the log contradicts the round whose rules apply: not the folder of an earlier
    round than its dates or format. A config.yaml beside it that does is a note, because it decides
    nothing. (`--ruleset` decides alone; dates before the folder's round are usual.)"""
    yield from run.doubts


@rule("MLP006", "joined-records", NOTE, "a newline that was lost between two writers")
def joined(run: LoggedRun) -> Iterator[Violation]:
    """One record a line. (The official checker reads the last record of a line alone.)"""
    joined = run.log.joined
    if joined.lines:
        more = f" and {joined.lines - 1} more lines hold" if joined.lines > 1 else " holds"
        text = (
            f"line {joined.first}{more} two records (newline lost); the official checker sees the "
            "last alone"
        )
        expected = "one record a line"
        advice = "write every record with its newline in one call"
        yield Violation(text, joined.first, expected, f"{joined.lines} lines with more", advice)


def _mixed_runs(run: LoggedRun) -> Iterator[Violation]:
    """That two runs write to one file at one time: both initialise and start, more than a second
    apart."""
    starts = run.all("run_start")
    if min(spread_ms(starts), spread_ms(run.all("init_stop"))) > SAME_MS:
        yield Violation(
            message=f"two runs in one file, their records mixed: run_start in lines "
            f"{starts[0].line} and {starts[-1].line}",
            line=starts[-1].line,
            expected="one run",
            actual="two that initialise and start at other times",
            advice="give each run its own result_N.txt",
        )


@rule("MLP007", "two-runs", ERROR, f"{CHECKER}, init_start before init_stop")
def two_runs(run: LoggedRun) -> Iterator[Violation]:
    """A file holds one run: no second one after it or mixed with it, and none in the records of the
    other format (:::MLL, :::MLLOG)."""
    log, other = run.log, run.log.other_run
    if other is not None:
        text = (
            f"two runs in one file: one in :::{log.dialect} records, one in records of the other "
            f"format ({other.key}, line {other.line})"
        )
        advice = "give each run its own result_N.txt"
        yield Violation(text, other.line, "one run", "another one in another format", advice)
    second = run.second_run_line
    if second is None:
        yield from _mixed_runs(run)
        return
    lines = [event.line for event in run.log.events]
    before = max((line for line in lines if line < second), default=second)
    text = f"two runs in one file: lines {lines[0]}-{before} and {second}-{lines[-1]}"
    advice = "give each run its own result_N.txt; the first one is judged here"
    yield Violation(text, second, "one run", "another one starts here", advice)


@rule(
    *("MLP009", "look-alike-name", POLICY),
    "no reader finds what another name hides",
    keys=(ANY_KEY,),
)
def look_alikes(run: LoggedRun) -> Iterator[Violation]:
    """No key, and no name of metadata, looks like one that a rule reads and is another: by
    invisible characters, letters of other scripts, case or punctuation."""
    events = run.log.events
    names = [
        (next(e.line for e in events if name in e.metadata), "metadata", name, meant)
        for name in sorted(set().union(*(e.metadata for e in events)) - READ_METADATA)
        if (meant := looks_like(name, READ_METADATA)) is not None
    ]
    keys = [(one.line, "key", one.key, one.meant) for one in run.log.look_alikes]
    for line, kind, name, meant in [*keys, *names][:20]:
        yield Violation(
            message=f"line {line}: {kind} {spelled_out(name)} looks like {meant} and is another",
            line=line,
            expected=meant,
            actual=spelled_out(name),
            advice="write the name in plain letters",
        )
