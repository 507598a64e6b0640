"""MLPerf log files to events: every published ResNet format, streamed, nothing trusted.

v0.6 writes `:::MLL <seconds> <key>: {json}`, v0.7 to v4.0 `:::MLLOG {json}` with milliseconds. The
token may stand anywhere on a line; text before it belongs to somebody else. Content is only ever
read: no evaluation, no path, format or module from a value. What cannot be read becomes a
`Problem` with its line; it never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .checked_keys import RUN_KEYS, RUN_KEYS_ALONE, CheckedKeys
from .events import (
    MLL,
    MLLOG,
    CannotRead,
    Event,
    JoinedLines,
    Log,
    LookAlike,
    OddBytes,
    Problem,
    StepBack,
    cut,
    type_name,
)
from .keeping import Keeper
from .opening import MOST_BYTES, open_log
from .record_text import decode, key_of, stripped, word
from .repeats import look_for_repeats
from .rounds import guess_ruleset, stamped_before_mlperf
from .stamps import Stamps
from .troubles import Troubles, salvaged_key

__all__ = ["CannotRead", "Event", "Log", "Problem", "StepBack", "read_events", "read_log"]

_ANY_TOKEN = b":::ML"
_MLLOG_TOKEN = b":::MLLOG "
_MLL_TOKEN = b":::MLL "
_OLD_TOKEN = b":::MLPv0.5"
_CUT_TOKENS = (_ANY_TOKEN, b":::MLL", b":::MLLO", b":::MLLOG")
# Patterns are compiled where they are needed first (0.1 ms each): most logs need none of them.
_MLL_RECORD = r":::MLL (-?[0-9.]+) ([A-Za-z0-9_]+) ?:\s+"
_ODD_MLLOG = r':::MLLOG([^\w{\["]{0,200})(?=\{\s*")'

# What no text has: control characters other than those of terminals and line ends, and DEL.
_TEXTUAL = bytes(
    b for b in range(256) if (b >= 32 and b != 127) or b in b"\a\b\t\n\v\f\r\x0e\x0f\x1b"
)
_NOT_TEXTUAL = rb"[^%b]" % re.escape(_TEXTUAL)

_DECODER = json.JSONDecoder()
_CHUNK_BYTES = 1 << 20
_LINE_BYTES = 1 << 20
_WHOLE_LINES = 100
_LOOK_ALIKES = 20


def read_log(path: Path, checked: CheckedKeys = RUN_KEYS_ALONE, *, others: bool = True) -> Log:
    """Read a log once, in memory that does not grow with the file.

    Raises CannotRead: no such file, or nothing in it that has rules: empty, another format, v0.5.

    Args:
        path: the log, or an open descriptor as the system names it (/dev/stdin, /dev/fd/63).
        checked: the keys that somebody looks at: none of their records is lost unseen.
        others: keep records of other keys too, as far as there is room; they are counted anyway.
    """
    try:
        with open_log(path) as file:
            reader = _Reader(checked, others)
            reader.read(file)
    except OSError as error:
        raise CannotRead(path, f"cannot read: {error.strerror}") from None
    except ValueError:  # a name with a zero byte
        raise CannotRead(path, "cannot read: no such file name") from None
    if reader.size > MOST_BYTES:
        raise CannotRead(path, f"cannot read: more than {MOST_BYTES:,} bytes, which no log has")
    if not reader.keeper.counts:
        records = reader.troubles.first() is not None or bool(reader.troubles.notes)
        raise CannotRead(path, _what_else(reader, reader.head), records=records)
    return reader.log(path)


def read_events(path: Path) -> list[Event]:
    """All events of a log in file order. Raises UserError: unreadable, or none in it."""
    return read_log(path).events


class _Reader:
    """One pass over a file."""

    def __init__(self, checked: CheckedKeys, others: bool) -> None:
        self.keeper = Keeper(checked)
        self.checked = checked
        self.others = others
        self.head = b""
        self.size = 0
        self.lines = 0
        self.old_records = 0
        self.troubles = Troubles()
        self.stamps = Stamps(self.troubles, checked)
        self.dialects = {MLLOG: 0, MLL: 0}
        self.known: dict[str, set[str]] = {MLLOG: set(), MLL: set()}
        """Checked keys of each dialect."""
        self.first: dict[str, Event] = {}
        self.first_run: dict[str, Event] = {}
        self.odd_bytes = OddBytes(0, 0, 0)
        self.look_alikes: list[LookAlike] = []
        self.whole_lines = 0
        self.joined_count = self.joined_line = self.first_joined = 0
        self.longest = 0

    def read(self, file: BinaryIO) -> None:
        for number, raw, ended in self._marked_lines(file):
            if len(raw) > self.longest:
                self.longest = len(raw)
            start = raw.find(_ANY_TOKEN)
            carriage_return = raw.find(b"\r")  # a progress bar goes on after it
            while start != -1:
                after = raw.find(_ANY_TOKEN, start + 5)
                if -1 < carriage_return < start:
                    carriage_return = raw.find(b"\r", start)
                if raw.startswith(_MLLOG_TOKEN, start):
                    after = self._record(number, raw, start, after, carriage_return, ended, MLLOG)
                elif raw.startswith(_MLL_TOKEN, start):
                    after = self._record(number, raw, start, after, carriage_return, ended, MLL)
                elif raw.startswith(_OLD_TOKEN, start):
                    self.old_records += 1
                elif not ended and raw[start:] in _CUT_TOKENS:
                    self.troubles.problem(
                        number, "truncated", None, "the file ends inside a token", True
                    )
                elif raw.startswith(b":::MLL", start):
                    stops = [part for part in (after, carriage_return) if part != -1]
                    self._odd_token(number, decode(raw[start : min(stops, default=None)]))
                start = after

    def _marked_lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
        """(number, bytes from the first token on, does a newline end it) of lines with tokens."""
        number, carry = 1, b""
        while chunk := file.read(_CHUNK_BYTES):
            self.head = self.head or chunk[:64]
            self.size += len(chunk)
            if self.size > MOST_BYTES:
                return
            if odd := chunk.translate(None, _TEXTUAL):
                self._odd_bytes(number, chunk, odd)
            data = carry + chunk
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) > _LINE_BYTES:
                carry = yield from self._part_of_a_long_line(number, data)
                continue
            position = 0
            while (token := data.find(_ANY_TOKEN, position, end)) != -1:
                number += data.count(b"\n", position, token)
                position = data.find(b"\n", token, end) + 1
                yield number, data[token : position - 1], True
                number += 1
            number += data.count(b"\n", position, end)
            carry = data[end:]
        self.lines = number - (not carry)
        token = carry.find(_ANY_TOKEN)
        if token != -1:
            yield number, carry[token:], False

    def _odd_bytes(self, number: int, chunk: bytes, odd: bytes) -> None:
        line = self.odd_bytes.line
        if not line and (first := re.search(_NOT_TEXTUAL, chunk)):
            line = number + chunk.count(b"\n", 0, first.start())
        count, nul, _ = self.odd_bytes
        self.odd_bytes = OddBytes(count + len(odd), nul + odd.count(0), line)

    def _part_of_a_long_line(
        self, number: int, data: bytes
    ) -> Generator[tuple[int, bytes, bool], None, bytes]:
        """Give the whole records of a line without end; returns what must wait for more bytes."""
        first, last = data.find(_ANY_TOKEN), data.rfind(_ANY_TOKEN)
        if first == -1:
            return data[1 - len(_MLLOG_TOKEN) :]
        if first < last:
            yield number, data[first:last], True
        if len(data) - last <= _LINE_BYTES:
            return data[last:]
        self.longest = max(self.longest, len(data) - last)
        self._too_long(number, salvaged_key(data[last : last + 1000].decode("latin-1")))
        return data[1 - len(_MLLOG_TOKEN) :]

    def _too_long(self, number: int, key: str | None) -> None:
        message = f"a record of more than {_LINE_BYTES} bytes was skipped"
        self.troubles.problem(number, "long", key, message, True)

    def _odd_token(self, number: int, text: str) -> None:
        """A token that is not followed by one blank: the official parsers do not see a record."""
        match = re.match(_ODD_MLLOG, text)
        if match is None:
            self.troubles.form(number, text)
            return
        found = {"": "nothing", "\t": "a tab"}.get(match[1], repr(match[1]))
        why = f'one blank expected after ":::MLLOG", found {found}'
        content, _ = self._decoded(text, match.end())
        key = key_of(content)
        if key is not None and key not in self.checked:
            message = f"{why}: the official parser does not see this record ({cut(key)})"
            self.troubles.note(number, "token", key, message)
            return
        key = key or salvaged_key(text)
        named = f" ({cut(key)})" if key else ""
        message = f"{why}: the official parser does not see this record{named}"
        self.troubles.problem(number, "token", key, message, True)

    def _decoded(self, text: str, head: int) -> tuple[Any, int]:
        """(content, end) of the JSON at `head`; (None, -1) where there is none."""
        try:
            return _DECODER.raw_decode(text, head)
        except (ValueError, RecursionError):
            return None, -1

    def _record(
        self, number: int, raw: bytes, start: int, after: int, stop: int, ended: bool, dialect: str
    ) -> int:
        """Read the record at `start`; returns where the next token of the line stands, or -1."""
        parts = [part for part in (after, stop) if part != -1]
        part = raw[start : min(parts, default=None)]
        text = decode(part)
        key, seconds, head = None, None, len(_MLLOG_TOKEN)
        if dialect == MLL:
            match = re.match(_MLL_RECORD, text)
            if match is None:
                self.troubles.form(number, text)
                return after
            seconds, key, head = match[1], match[2], match.end()
            if seconds.startswith("-"):  # read, to say more than that; the official parser does not
                self.troubles.form(number, text)
        head += len(text) - head - len(text[head:].lstrip(" \t"))
        try:
            content, end = _DECODER.raw_decode(text, head)
        except RecursionError:
            self.troubles.problem(number, "type", None, "values nested too deeply", True)
            return after
        except ValueError as error:
            whole = self._whole_line(raw, start, after, head)
            if whole is None:
                closed = ended or stop != -1 or after != -1
                self._torn(number, text, closed, error)
                return after
            content, text, end = whole
            part = raw[start:]
            after = raw.find(_ANY_TOKEN, start + len(text[:end].encode()))
            if f":::{dialect}{' ' if dialect == MLLOG else ''}" in text[1:end]:
                message = "a token inside a text: the official parser takes it for a record"
                self.troubles.problem(number, "token", key or key_of(content), message, False)
        if end > _LINE_BYTES:
            self._too_long(number, key or key_of(content))
            return after
        foreign = stripped(text[end:], part)
        if foreign:
            self.troubles.problem(
                number,
                "trailing",
                key or key_of(content),
                f"text that does not belong there after the record: {foreign[:60]!r}",
                False,
            )
        elif after != -1 and stop == -1 and number != self.joined_line:
            self.joined_count += 1
            self.joined_line = number
            self.first_joined = self.first_joined or number
        self._content(number, content, key, seconds, dialect, text[head:end])
        return after

    def _whole_line(
        self, raw: bytes, start: int, after: int, head: int
    ) -> tuple[Any, str, int] | None:
        """(content, text, end) of a record with a token inside one of its texts. At most a few such
        lines are tried: each costs the whole line."""
        if after == -1 or self.whole_lines >= _WHOLE_LINES:
            return None
        self.whole_lines += 1
        text = decode(raw[start:])
        content, end = self._decoded(text, head)
        return None if end == -1 else (content, text, end)

    def _torn(self, number: int, text: str, ended: bool, error: ValueError) -> None:
        if ended and self.troubles.full:
            self.troubles.problem_count += 1
            return
        key = salvaged_key(text)
        name = f" ({key})" if key else ""
        torn = isinstance(error, json.JSONDecodeError)
        if torn and not ended:
            self.troubles.problem(
                number, "truncated", key, f"the file ends inside a record{name}", True
            )
        elif isinstance(error, json.JSONDecodeError):
            zeros = ", with zero bytes in it: a page that the disk lost?" if "\0" in text else ""
            message = f"record{name} cannot be read: {error.msg} at character {error.pos + 1}"
            self.troubles.problem(number, "torn", key, message + zeros, True)
        else:  # Python's limit on the digits of an integer
            self.troubles.problem(number, "torn", key, f"record{name} has a number too long", True)

    def _content(
        self,
        number: int,
        content: Any,
        key: str | None,
        seconds: str | None,
        dialect: str,
        text: str,
    ) -> None:
        """From a record's JSON to an event; what is missing or mistyped is a problem."""
        if not isinstance(content, dict):
            self.troubles.problem(
                number, "shape", key, f"a record is a JSON object, found {type_name(content)}", True
            )
            return
        if key is None:
            key = content.get("key")
            if not isinstance(key, str):
                kind, found = ("type", type_name(key)) if "key" in content else ("missing", "none")
                self.troubles.problem(
                    number, kind, None, f'record needs a text "key", found {found}', True
                )
                return
        value, metadata = content.get("value"), content.get("metadata")
        names = len(content) + (len(value) if isinstance(value, dict) else 0)
        names += len(metadata) if isinstance(metadata, dict) else 0
        if text.count(":") != names:  # every name has one
            look_for_repeats(self.troubles, self.checked, number, key, text)
        time_ms = self.stamps.read(number, key, content, seconds)
        if "value" not in content or "metadata" not in content:
            for name in ("value", "metadata"):
                if name not in content:
                    message = f'record ({cut(key)}) has no "{name}"'
                    if dialect == MLL and name == "metadata":  # its checker does without
                        self.troubles.note(number, "missing", key, message)
                    else:
                        self.troubles.problem(number, "missing", key, message, False)
        if time_ms is None:
            return
        order = self.dialects[dialect] = self.dialects[dialect] + 1
        self.stamps.clocks[dialect].pass_by(number, key, time_ms)
        name = self.keeper.count(key)
        wanted = self.others or key in self.checked
        if not wanted:
            self.keeper.pass_over(name)
            new = self.keeper.is_new(name) and len(self.look_alikes) < _LOOK_ALIKES
            if new and (meant := self.checked.meant_by(key)) is not None:
                self.look_alikes.append(LookAlike(number, cut(key), meant))
            if dialect in self.first:
                return
        event = Event(
            number,
            time_ms,
            key,
            value,
            metadata if isinstance(metadata, dict) else {},
            word(content.get("event_type")),
            word(content.get("namespace")),
            order,
        )
        if dialect not in self.first:
            self.first[dialect] = event
        if key in self.checked.named:
            self.known[dialect].add(key)
            if key in RUN_KEYS and dialect not in self.first_run:
                self.first_run[dialect] = event
        if wanted:
            self.keeper.keep(event, name, dialect, text)

    def log(self, path: Path) -> Log:
        """What was read, in the dialect that has more of the checked keys."""
        weight = {d: (len(self.known[d]), self.dialects[d]) for d in (MLLOG, MLL)}
        dialect = MLLOG if weight[MLLOG] >= weight[MLL] else MLL
        other = MLL if dialect == MLLOG else MLLOG
        self.troubles.settle(mll=dialect == MLL)
        events = self.keeper.events(dialect)
        by_key: dict[str, list[Event]] = {}
        for event in events:
            by_key.setdefault(event.key, []).append(event)
        return Log(
            path=path,
            dialect=dialect,
            events=events,
            problems=self.troubles.problems,
            problem_count=self.troubles.problem_count,
            notes=self.troubles.notes,
            lost_keys=frozenset(self.troubles.lost_keys),
            truncated=self.troubles.truncated,
            other_dialect=self.first.get(other),
            other_run=self.first_run.get(other),
            overflow=self.keeper.overflow,
            odd_stamps=[*self.stamps.odd.values(), *stamped_before_mlperf(events, self.checked)],
            odd_bytes=self.odd_bytes,
            look_alikes=self.look_alikes,
            joined=JoinedLines(self.joined_count, self.first_joined),
            counts=self.keeper.counts,
            unkept=self.keeper.unkept,
            steps_back=self.stamps.clocks[dialect].steps_back,
            step_back_count=self.stamps.clocks[dialect].step_back_count,
            lines=self.lines,
            bytes=self.size,
            longest_bytes=self.longest,
            ruleset=guess_ruleset(dialect, events),
            by_key=by_key,
        )


def _what_else(reader: _Reader, head: bytes) -> str:
    """What a file without records is."""
    if reader.size == 0:
        return "an MLPerf log (:::MLLOG records) expected, found an empty file (0 bytes)"
    if reader.size == reader.odd_bytes.zeros:
        found = "zero bytes alone"
    elif head.startswith(b"\x1f\x8b"):
        found = "what looks like gzip: unpack it first"
    elif head.startswith((b"\xff\xfe", b"\xfe\xff")) or head.count(0) * 3 > len(head):
        found = "what looks like UTF-16: convert it with iconv"
    elif reader.old_records:
        found = "the v0.5 format (:::MLPv0.5.0), which has no rules for ResNet"
    elif first := reader.troubles.first():
        found = f"none that can be read (first: line {first.line}: {first.message})"
    else:
        found = f"none in {reader.lines} lines"
    return f"an MLPerf log (:::MLLOG records) expected, found {found}"
