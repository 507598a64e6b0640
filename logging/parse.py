"""MLPerf log files to events: every published ResNet format, in one pass.

v0.6 writes `:::MLL <seconds> <key>: {json}`, v0.7 to v4.0 `:::MLLOG {json}` with milliseconds. The
token may stand anywhere on a line, text before it is another program's, and a carriage return ends
a record as a newline does. What cannot be read becomes a `Problem` with its line.
"""

import contextlib
import json
import os
import re
import shlex
import stat
from pathlib import Path
from typing import Any, BinaryIO

from ..host.reading import named_descriptor, open_file
from .events import (
    MLL,
    MLLOG,
    PLAIN_KEY,
    RUN_KEYS,
    CannotRead,
    Event,
    Log,
    Problem,
    cut,
    type_name,
)

MOST_BYTES = 1 << 30
"""No log is larger: the largest published one has 3.4 MB."""
MOST_LINES = 10_000_000
"""Lines of a file: so many empty ones take 21 s to read, and the published logs are far below."""
MOST_RECORDS = 100_000
"""Records that are kept of a file, some 100 MB: published logs have up to 2,000."""
MOST_ODD_KEYS = 1000
"""Keys with other characters than letters, digits and _ that are kept: no program logs one."""
_LINE_BYTES = 16 << 20
"""A progress bar of a whole run on one line has 2 MB."""
_RECORD_CHARACTERS = 1 << 20
_KEPT_PROBLEMS = 50
_NO_STAMP = 1e21

_TOKEN = b":::ML"
_MLLOG_TOKEN = ":::MLLOG "
# `:::MLL 1559852000.123 eval_stop: {...}`: seconds and key
_MLL_RECORD = re.compile(r":::MLL (-?[0-9.]+) ([A-Za-z0-9_]+) ?:\s+")
# a token and a number behind it: a record that was meant, though not as the form has it
_LIKE_MLL_RECORD = re.compile(r":::MLL\s*[-+]?[\d.]+\D")
# the token, what is there in place of one blank, and an object with a name
_ODD_MLLOG = re.compile(r':::MLLOG([^\w{\["]{0,200})(?=\{\s*")')
_SALVAGED_KEY = re.compile(
    r'"key": ?"([^"]{1,100})"|:::MLL\s+[\d.+-]+\s+([A-Za-z0-9_]{1,100}) ?:'
)
# how gzip, xz and zstd data begin, and a token in UTF-16
_BINARY = re.compile(rb"\x1f\x8b\x08|\xfd7zXZ\0|\(\xb5/\xfd|:\0:\0:\0M\0L")
_TO_TEXT = {
    b"\x1f\x8b": ("gzip", "zcat"),
    b"\xfd7zXZ\0": ("xz", "xzcat"),
    b"(\xb5/\xfd": ("zstd", "zstdcat"),
    b"\xff\xfe": ("UTF-16", "iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16", "iconv -f UTF-16 -t UTF-8"),
}
"""How files of other forms begin: the form, and what prints their text."""


def open_pipe(path: Path) -> int | None:
    """The open descriptor that a path means, where it is a pipe: it can be read once."""
    descriptor = named_descriptor(path)
    if descriptor is None:
        return None
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return None
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


def read_log(path: Path, keys: frozenset[str] | None = None) -> Log:
    """Read a log in one pass. A FIFO by its name is refused, because nothing may ever write to it;
    one that is open already, as in `rn50 log check <(zcat result_0.txt.gz)`, is read.

    Raises CannotRead: there is no such file, it has more records than a log of one run, or nothing
    in it has rules (it is empty, of another format, or of v0.5).

    Args:
        path: the log, or an open descriptor as the system names it (/dev/stdin, /dev/fd/63).
        keys: keep the records of these keys alone; None: of all.
    """
    if "\0" in str(path):
        raise CannotRead(path, "cannot read: no such file name")
    reader = _Reader(path, keys)
    descriptor = open_pipe(path)
    try:
        if descriptor is None:
            log_file = open_file(path, MOST_BYTES)
        else:
            log_file = os.fdopen(os.dup(descriptor), "rb")
        with log_file:
            reader.read(log_file)
    except OSError as error:
        raise CannotRead(path, f"cannot read: {error.strerror}") from None
    return reader.close()


def read_events(path: Path) -> list[Event]:
    """All events of a log in file order. Raises UserError: unreadable, or none in it."""
    return read_log(path).events


class _Reader:
    """One pass over a file."""

    def __init__(self, path: Path, keys: frozenset[str] | None) -> None:
        self.keys = keys
        self.log = Log(path)
        """Its `lines` counts up to the line that is being read."""
        self.decoder = json.JSONDecoder(object_pairs_hook=self._object)
        self.is_ambiguous = False
        """Whether the record has a name twice, of which Python would take the last in silence."""
        self.head = b""
        self.size = 0
        self.records = 0
        self.events: dict[str, list[Event]] = {MLLOG: [], MLL: []}
        self.first: dict[str, Event] = {}
        """The first record of a dialect, of whatever key."""
        self.forms: list[Problem] = []
        """Lines that the parser of :::MLL refuses: problems only where the log is one of those."""

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        self.is_ambiguous |= len(content) < len(pairs)
        return content

    def read(self, file: BinaryIO) -> None:
        """Read all lines. Raises CannotRead: there are too many bytes, lines or records."""
        goes_on = False
        while raw := file.readline(_LINE_BYTES):
            self.head = self.head or raw[:64]
            self.size += len(raw)
            if self.size > MOST_BYTES:
                raise CannotRead(
                    self.log.path,
                    f"cannot read: more than {MOST_BYTES:,} bytes, which no log has",
                )
            self.log.lines += not goes_on
            if self.log.lines > MOST_LINES:
                raise CannotRead(
                    self.log.path,
                    f"cannot read: more than {MOST_LINES:,} lines, which no log has",
                )
            if _BINARY.search(raw):
                self._problem(
                    "binary",
                    None,
                    "gzip, UTF-16 or other binary data, which may hold records",
                    lost=False,
                )
            ended = raw.endswith(b"\n")
            # else the rest of a line that is too long, which was named as such
            if not goes_on:
                self._line(raw, ended=ended)
            goes_on = not ended

    def _line(self, raw: bytes, *, ended: bool) -> None:
        """Read the records of a line; `ended`: by a newline. A carriage return ends what two
        records are joined in."""
        start = raw.find(_TOKEN)
        if start == -1:
            return
        self.log.longest_bytes = max(self.log.longest_bytes, len(raw))
        if len(raw) == _LINE_BYTES:
            self._problem(
                "long", None, f"a line of more than {_LINE_BYTES:,} bytes was skipped"
            )
            return
        whole_records = 0
        while start != -1:
            following = raw.find(_TOKEN, start + 1)
            end = following if following != -1 else len(raw)
            returned = raw.find(b"\r", start, end)
            stop = end if returned == -1 else returned
            whole_records += self._record(
                raw[start:stop], closed=ended or stop < len(raw)
            )
            if returned != -1 or following == -1:
                if whole_records > 1:
                    count, first = self.log.joined
                    self.log.joined = count + 1, first or self.log.lines
                whole_records = 0
            start = following

    def _record(self, raw: bytes, *, closed: bool) -> bool:
        """Read what begins with a token; `closed`: something follows it. Returns whether it is a
        whole record with nothing else behind it."""
        try:
            record = raw.decode()
        except UnicodeDecodeError:
            record = raw.decode("latin-1")  # as the official parser does
        key = None
        seconds = None
        head = len(_MLLOG_TOKEN)
        dialect = MLLOG
        if not record.startswith(_MLLOG_TOKEN):
            match = _MLL_RECORD.match(record)
            if not match:
                self._odd_token(record, closed=closed)
                return False
            seconds = match[1]
            key = match[2]
            head = match.end()
            dialect = MLL
        # `raw_decode` steps over no blanks
        head = len(record) - len(record[head:].lstrip(" \t"))
        seen_key = key or _salvaged_key(record)
        self.is_ambiguous = False
        try:
            content, end = self.decoder.raw_decode(record, head)
        except RecursionError:
            self._problem("type", None, "values nested too deeply")
            return False
        except ValueError as error:
            self._torn(seen_key, error, closed=closed)
            return False
        if self.is_ambiguous:
            self._problem(
                "twice", seen_key, "a name twice in a record: which value counts?"
            )
            return False
        if end > _RECORD_CHARACTERS:
            self._problem("long", seen_key, "a record of more than 1 MB")
            return False
        foreign = record[end:].strip()
        if foreign:
            self._problem(
                "trailing",
                seen_key,
                f"text that does not belong there after the record: {foreign[:60]!r}",
                lost=False,
            )
        self._content(content, key, seconds, dialect)
        return not foreign

    def _odd_token(self, record: str, *, closed: bool) -> None:
        """A token that is not followed by one blank: the official parsers do not see a record."""
        if not closed and _MLLOG_TOKEN.startswith(record):
            self._problem("truncated", None, "the file ends inside a token")
        elif match := _ODD_MLLOG.match(record):
            key = _salvaged_key(record)
            if key is None or self.keys is None or key in self.keys:
                self._problem(
                    "token",
                    key,
                    f'record ({key}): one blank expected after ":::MLLOG", found {match[1]!r}',
                )
        elif record.startswith(":::MLL") and len(self.forms) < _KEPT_PROBLEMS:
            form = ":::MLL SECONDS KEY: {json}"
            what = f'"{form}" expected, found {record[:60].rstrip()!r}'
            lost = _LIKE_MLL_RECORD.match(record) is not None
            self.forms.append(
                Problem(self.log.lines, "form", _salvaged_key(record), what, lost)
            )

    def _torn(self, key: str | None, error: ValueError, *, closed: bool) -> None:
        name = f" ({key})" if key else ""
        # Other errors than of JSON: Python's limit on the digits of an integer.
        if closed or not isinstance(error, json.JSONDecodeError):
            self._problem("torn", key, f"record{name} cannot be read as JSON")
        else:
            self._problem("truncated", key, f"the file ends inside a record{name}")

    def _problem(
        self, fault: str, key: str | None, message: str, *, lost: bool = True
    ) -> None:
        """Note what is wrong with a record of the current line."""
        log = self.log
        log.problem_count += 1
        log.truncated = log.truncated or fault == "truncated"
        if len(log.problems) < _KEPT_PROBLEMS:
            log.problems.append(
                Problem(log.lines, fault, key and cut(key), message, lost)
            )
            if lost and key is not None:
                log.lost_keys.add(key)

    def _content(
        self, content: Any, key: str | None, seconds: str | None, dialect: str
    ) -> None:
        """Make an event of a record's JSON, or a problem of what is missing or mistyped.

        Args:
            content: the JSON.
            key: of a :::MLL record, which has it before the JSON.
            seconds: the stamp of a :::MLL record.
            dialect: MLLOG or MLL.
        """
        if not isinstance(content, dict):
            what = f"a record is a JSON object, found {type_name(content)}"
            self._problem("shape", key, what)
            return
        if key is None:
            key = content.get("key")
        if not isinstance(key, str):
            fault = "missing"
            what = 'record needs a text "key", found none'
            if "key" in content:
                fault = "type"
                what = f'record needs a text "key", found {type_name(key)}'
            self._problem(fault, None, what)
            return
        time_ms = self._stamp(key, content, seconds)
        for name in ("value", "metadata"):
            may_lack = name == "metadata" and dialect == MLL  # v0.6 does without
            if name not in content and not may_lack:
                what = f'record ({cut(key)}) has no "{name}"'
                self._problem("missing", key, what, lost=False)
        if time_ms is not None:
            self._keep(key, time_ms, content, dialect)

    def _keep(
        self, key: str, time_ms: float, content: dict[str, Any], dialect: str
    ) -> None:
        """Count a record, and keep it as an event where somebody reads its key."""
        self.records += 1
        odd_keys = self.log.odd_keys
        is_read = self.keys is None or key in self.keys
        is_odd = PLAIN_KEY.fullmatch(key) is None and len(odd_keys) < MOST_ODD_KEYS
        if not is_read and not is_odd and dialect in self.first:
            return
        metadata = content.get("metadata")
        event = Event(
            self.log.lines,
            time_ms,
            key,
            content.get("value"),
            metadata if isinstance(metadata, dict) else {},
            self.records,
        )
        # even where nobody reads its key: that the log has this dialect is known by it
        self.first.setdefault(dialect, event)
        if is_odd:
            odd_keys.setdefault(key, event)
        if is_read:
            self.events[dialect].append(event)
            if sum(map(len, self.events.values())) > MOST_RECORDS:
                what = f"more than {MOST_RECORDS:,} records of keys that are read"
                where = f"line {event.line} has one more ({cut(key)})"
                raise CannotRead(
                    self.log.path, f"{what}, which no log of one run has: {where}"
                )

    def _stamp(
        self, key: str, content: dict[str, Any], seconds: str | None
    ) -> float | None:
        """The stamp of a record in milliseconds; None, and a problem, where there is none."""
        if seconds is None and "time_ms" not in content:
            self._problem("missing", key, f'record ({cut(key)}) has no "time_ms"')
            return None
        stamp: Any = content["time_ms"] if seconds is None else seconds
        # in v0.6 it is one; elsewhere the official parser reads it too
        if isinstance(stamp, str):
            with contextlib.suppress(ValueError):
                stamp = float(stamp)
                if seconds is not None:
                    stamp = round(stamp * 1000, 3)
        # by its type: a boolean is an int to isinstance
        is_number = type(stamp) in (int, float)
        if is_number and -_NO_STAMP < stamp < _NO_STAMP:
            return stamp
        if not is_number or self.keys is None or key in self.keys:
            self._problem(
                "type", key, f"time_ms of {cut(key)} is no time: {type_name(stamp)}"
            )
        return None

    def close(self) -> Log:
        """What was read, in the dialect that has more of the keys.

        Raises CannotRead: there is no record.
        """
        log = self.log
        if not self.first:
            records = any(problem.lost for problem in (*log.problems, *self.forms))
            raise CannotRead(log.path, self._what_else(), records=records)
        log.dialect, other_dialect = sorted(
            (MLLOG, MLL), key=self._weight, reverse=True
        )
        # what else begins with :::MLL is noise in a log of the other dialect
        if log.dialect == MLL:
            log.problems += self.forms
            log.problems.sort(key=lambda problem: problem.line)
            log.problem_count += len(self.forms)
            log.lost_keys.update(form.key for form in self.forms if form.key)
        log.events = self.events[log.dialect]
        for event in log.events:
            log.by_key.setdefault(event.key, []).append(event)
        of_a_run = (
            event for event in self.events[other_dialect] if event.key in RUN_KEYS
        )
        log.other_dialect = next(of_a_run, self.first.get(other_dialect))
        return log

    def _weight(self, dialect: str) -> tuple[int, int, bool]:
        events = self.events[dialect]
        keys = {event.key for event in events}
        return len(keys), len(events), dialect in self.first

    def _what_else(self) -> str:
        """What a file without records is."""
        log = self.log
        problem = min(
            (*log.problems, *self.forms), key=lambda problem: problem.line, default=None
        )
        forms = [
            form for start, form in _TO_TEXT.items() if self.head.startswith(start)
        ]
        if self.size == 0:
            content = "an empty file (0 bytes)"
        elif forms:
            ((name, program),) = forms
            command = f"{program} {shlex.quote(str(log.path))}"
            content = f"{name} data; as text: {command} >log.txt"
        elif b"\0" in self.head:
            content = "binary data"
        elif problem:
            first = f"line {problem.line}: {problem.message}"
            content = f"none that can be read (first: {first})"
        else:
            content = f"none in {log.lines} lines"
        return f"an MLPerf log (:::MLLOG records) expected, found {content}"


def _salvaged_key(record: str) -> str | None:
    """The key of a record that cannot be read, where it can be seen."""
    # keys stand in front; a torn record may have a megabyte
    match = _SALVAGED_KEY.search(record[:4000])
    return re.sub(r"\W", "", match[1] or match[2]) or None if match else None
