"""MLPerf log files to events: every published ResNet format, streamed, nothing trusted.

v0.6 writes `:::MLL <seconds> <key>: {json}`, v0.7 to v4.0 `:::MLLOG {json}` with milliseconds. The
token may stand anywhere on a line; text before it belongs to somebody else. Content is only ever
read: no evaluation, no path, format or module from a value. What cannot be read becomes a
`Problem` with its line; it never raises.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .events import MLL, MLLOG, CannotRead, Event, JoinedLines, Log, Problem, StepBack, type_name
from .rounds import guess_ruleset

__all__ = ["CannotRead", "Event", "Log", "Problem", "StepBack", "read_events", "read_log"]

_ANY_TOKEN = b":::ML"
_MLLOG_TOKEN = b":::MLLOG "
_MLL_TOKEN = b":::MLL "
_OLD_TOKEN = b":::MLPv0.5"
_MLL_RECORD = re.compile(r":::MLL ([\d.]+) ([A-Za-z0-9_]+) ?:\s+")
_SALVAGED_KEY = re.compile(r'"key": ?"([^"]{1,100})"|:::MLL [\d.]+ ([A-Za-z0-9_]{1,100}) ?:')
_DECODER = json.JSONDecoder()

# A whole line as mllog writes it, from the token on: what a record that nobody wants is recognised
# by, three times as fast as by reading its JSON. Anything else about a line, such as an escape in a
# text, takes the long way.
_TEXT = rb'"[^"\\:\x00-\x1f]*"'
_SCALAR = rb"(?:-?(?:0|[1-9]\d{0,14})(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?|null|true|false|%b)" % _TEXT
_PLAIN = re.compile(
    rb':::MLLOG \{"namespace": %b, "time_ms": (\d{10,14}), "event_type": "[A-Z_]{1,30}", '
    rb'"key": "([a-z_0-9]{1,60})", "value": (?:%b|\{"[a-z_0-9]{1,60}": %b\}), '
    rb'"metadata": \{"file": %b, "lineno": (?:0|[1-9]\d{0,8})(?:, "[a-z_]{1,60}": %b)*\}\}\r?\n'
    % (_TEXT, _SCALAR, _SCALAR, _TEXT, _SCALAR)
)

_CHUNK_BYTES = 1 << 20
_LINE_BYTES = 1 << 20
_LATEST_MS = 10**15
_LARGEST_INTEGER = 10**18  # beyond it arithmetic with floats can overflow
_KEPT_PER_KEY = 500  # records of one key that are always kept; published logs have up to 161
_KEPT = 50_000  # and of all keys together, about 35 MB
_KEPT_PROBLEMS = 50
_WHOLE_LINES = 100


def read_log(path: Path, keys: Collection[str] | None = None) -> Log:
    """Read a log once, in memory that does not grow with the file.

    Args:
        path: the log.
        keys: keep the records of these keys alone; the others are read and counted.

    Raises:
        CannotRead: no such file, or nothing in it that has rules: empty, another format, v0.5.
    """
    try:
        if path.is_char_device() or path.is_block_device():
            raise CannotRead(path, "cannot read: a device, which may have no end")
        with path.open("rb") as file:
            reader = _Reader(keys)
            reader.read(file)
            head = reader.head
    except OSError as error:
        raise CannotRead(path, f"cannot read: {error.strerror}") from None
    except ValueError:  # a name with a zero byte
        raise CannotRead(path, "cannot read: no such file name") from None
    if not reader.counts:
        raise CannotRead(path, _what_else(reader, head))
    return reader.log(path)


def read_events(path: Path) -> list[Event]:
    """All events of a log in file order. Raises UserError: unreadable, or none in it."""
    return read_log(path).events


class _Reader:
    """One pass over a file."""

    def __init__(self, keys: Collection[str] | None) -> None:
        self.keys = keys
        self.head = b""
        self.size = 0
        self.lines = 0
        self.old_records = 0
        self.events: dict[str, list[Event]] = {MLLOG: [], MLL: []}
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.counts: dict[str, int] = {}
        self.dialects = {MLLOG: 0, MLL: 0}
        self.unkept: dict[str, int] = {}
        self.seen: dict[str, set[int]] = {}
        self.seen_lines: dict[str, set[int]] = {}
        self.steps_back: list[StepBack] = []
        self.step_back_count = 0
        self.whole_lines = 0
        self.joined_count = self.joined_line = self.first_joined = 0
        self.wanted: dict[bytes, str] = {}
        """Keys of plain lines: "" if the key is wanted, else its name."""
        self.latest_ms = 0.0

    def read(self, file: BinaryIO) -> None:
        for number, raw, ended in self._marked_lines(file):
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
                elif raw.startswith(b":::MLLOG", start) and (
                    not ended or raw[start + 8 :][:1] == b"{"
                ):
                    self._problem(
                        number, "torn", None, 'the token ":::MLLOG" needs a blank after it', True
                    )
                start = after

    def _marked_lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
        """(number, bytes from the first token on, does a newline end it) of lines with tokens."""
        number, carry = 1, b""
        while chunk := file.read(_CHUNK_BYTES):
            self.head = self.head or chunk[:64]
            self.size += len(chunk)
            data = carry + chunk
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) > _LINE_BYTES:
                carry = yield from self._part_of_a_long_line(number, data)
                continue
            position = 0
            while (token := data.find(_ANY_TOKEN, position, end)) != -1:
                number += data.count(b"\n", position, token)
                if self.keys is not None:
                    plain = _PLAIN.match(data, token, end)
                    if plain is not None and self._pass_over(number, plain):
                        position = plain.end()
                        number += 1
                        continue
                position = data.find(b"\n", token, end) + 1
                yield number, data[token : position - 1], True
                number += 1
            number += data.count(b"\n", position, end)
            carry = data[end:]
        self.lines = number - (not carry)
        token = carry.find(_ANY_TOKEN)
        if token != -1:
            yield number, carry[token:], False

    def _pass_over(self, number: int, plain: re.Match[bytes]) -> bool:
        """Count a plain record that nobody wants, or one copy too many; False: it must be read."""
        stamp, raw_key = plain.groups()
        key = self.wanted.get(raw_key)
        if key is None:
            key = raw_key.decode()
            if self.keys is None or key in self.keys or len(self.wanted) >= _KEPT:
                key = ""
            if len(self.wanted) < _KEPT:
                self.wanted[raw_key] = key
        if not key:
            key = raw_key.decode()
            if self.counts.get(key, 0) < _KEPT_PER_KEY or not self._is_copy(key, plain):
                return False
        self.dialects[MLLOG] += 1
        self._clock(number, key, int(stamp))
        self.counts[key] = self.counts.get(key, 0) + 1
        self.unkept[key] = self.unkept.get(key, 0) + 1
        return True

    def _is_copy(self, key: str, plain: re.Match[bytes]) -> bool:
        """Has a record with the same value and metadata been seen here before?"""
        seen = self.seen_lines.setdefault(key, set())
        print_ = hash(plain.string[plain.end(2) : plain.end()])
        if print_ in seen:
            return True
        if len(seen) < _KEPT:
            seen.add(print_)
        return False

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
        key = _salvage(data[last : last + 1000].decode("latin-1"))
        self._problem(
            number, "long", key, f"a record of more than {_LINE_BYTES} bytes was skipped", True
        )
        return data[1 - len(_MLLOG_TOKEN) :]

    def _record(
        self, number: int, raw: bytes, start: int, after: int, stop: int, ended: bool, dialect: str
    ) -> int:
        """Read the record at `start`; returns where the next token of the line stands, or -1."""
        parts = [part for part in (after, stop) if part != -1]
        text = _decode(raw[start : min(parts, default=None)])
        key, seconds, head = None, None, len(_MLLOG_TOKEN)
        if dialect == MLL:
            match = _MLL_RECORD.match(text)
            if match is None:  # prose about the format
                return after
            seconds, key, head = match[1], match[2], match.end()
        head += len(text) - head - len(text[head:].lstrip(" \t"))
        try:
            content, end = _DECODER.raw_decode(text, head)
        except RecursionError:
            self._problem(number, "type", None, "values nested too deeply", True)
            return after
        except ValueError as error:
            whole = self._whole_line(raw, start, after, head)
            if whole is None:
                closed = ended or stop != -1 or after != -1
                self._torn(number, text, closed, error)
                return after
            content, text, end = whole
            after = raw.find(_ANY_TOKEN, start + len(text[:end].encode()))
        foreign = text[end:].strip()
        if foreign:
            self._problem(
                number,
                "trailing",
                key or _key_of(content),
                f"text that does not belong there after the record: {foreign[:60]!r}",
                False,
            )
        elif after != -1 and stop == -1 and number != self.joined_line:
            self.joined_count += 1
            self.joined_line = number
            self.first_joined = self.first_joined or number
        self._content(number, content, key, seconds, dialect)
        return after

    def _whole_line(
        self, raw: bytes, start: int, after: int, head: int
    ) -> tuple[Any, str, int] | None:
        """(content, text, end) of a record with a token inside one of its texts.

        At most a few such lines are tried: each costs the whole line.
        """
        if after == -1 or self.whole_lines >= _WHOLE_LINES:
            return None
        self.whole_lines += 1
        text = _decode(raw[start:])
        try:
            content, end = _DECODER.raw_decode(text, head)
        except (ValueError, RecursionError):
            return None
        return content, text, end

    def _torn(self, number: int, text: str, ended: bool, error: ValueError) -> None:
        if ended and self.problem_count >= _KEPT_PROBLEMS:
            self.problem_count += 1
            return
        key = _salvage(text)
        name = f" ({key})" if key else ""
        torn = isinstance(error, json.JSONDecodeError)
        if torn and not ended:
            self._problem(number, "truncated", key, f"the file ends inside a record{name}", True)
        elif isinstance(error, json.JSONDecodeError):
            message = f"record{name} cannot be read: {error.msg} at character {error.pos + 1}"
            self._problem(number, "torn", key, message, True)
        else:  # Python's limit on the digits of an integer
            self._problem(number, "torn", key, f"record{name} has a number too long", True)

    def _content(
        self, number: int, content: Any, key: str | None, seconds: str | None, dialect: str
    ) -> None:
        """From a record's JSON to an event; what is missing or mistyped is a problem."""
        if not isinstance(content, dict):
            self._problem(
                number, "shape", key, f"a record is a JSON object, found {type_name(content)}", True
            )
            return
        if key is None:
            key = content.get("key")
            if not isinstance(key, str):
                kind, found = ("type", type_name(key)) if "key" in content else ("missing", "none")
                self._problem(number, kind, None, f'record needs a text "key", found {found}', True)
                return
        time_ms = self._time(number, content, key, seconds)
        for name in ("value", "metadata"):
            if name not in content:
                self._problem(number, "missing", key, f'record ({key}) has no "{name}"', False)
        if time_ms is None:
            return
        self.dialects[dialect] += 1
        self._clock(number, key, time_ms)
        self._keep(number, time_ms, key, content, dialect)

    def _time(
        self, number: int, content: dict[str, Any], key: str, seconds: str | None
    ) -> float | None:
        """Milliseconds; None, and a problem, where there is no usable stamp."""
        if seconds is not None:
            try:
                return round(float(seconds) * 1000, 3)
            except ValueError:
                self._problem(number, "type", key, f"time {seconds[:40]} is no number", True)
                return None
        if "time_ms" not in content:
            found = 'found "time_s"' if "time_s" in content else "found none"
            message = f'record ({key}) has no "time_ms", {found}'
            self._problem(number, "missing", key, message, True)
            return None
        stamp = content["time_ms"]
        if isinstance(stamp, str):  # the official parser reads these too
            with contextlib.suppress(ValueError):
                stamp = float(stamp)
        if isinstance(stamp, bool) or not isinstance(stamp, int | float):
            message = f"time_ms of {key} is {type_name(stamp)}, expected a number"
            self._problem(number, "type", key, message, True)
            return None
        if not -_LATEST_MS < stamp < _LATEST_MS:
            found = f"{stamp:g}" if isinstance(stamp, float) else "a huge integer"
            message = f"time_ms of {key} is no time: {found}"
            self._problem(number, "type", key, message, True)
            return None
        return stamp

    def _clock(self, number: int, key: str, time_ms: float) -> None:
        """Stamps of 0 take no part in the order of time."""
        if time_ms <= 0:
            return
        if time_ms < self.latest_ms:
            self.step_back_count += 1
            step = StepBack(number, key, self.latest_ms - time_ms)
            if len(self.steps_back) < _KEPT_PROBLEMS:
                self.steps_back.append(step)
            elif step.by_ms > self.steps_back[-1].by_ms:
                self.steps_back[-1] = step
        self.latest_ms = time_ms

    def _keep(
        self, number: int, time_ms: float, key: str, content: dict[str, Any], dialect: str
    ) -> None:
        count = self.counts.get(key, 0)
        if count == 0 and len(self.counts) >= _KEPT:
            key = "..."  # tens of thousands of different keys: no log
        self.counts[key] = count + 1
        if self.keys is not None and key not in self.keys:
            self.unkept[key] = self.unkept.get(key, 0) + 1
            return
        value, metadata = content.get("value"), content.get("metadata")
        if count >= _KEPT_PER_KEY or len(self.counts) > _KEPT_PER_KEY:
            seen = self.seen.setdefault(key, set())
            print_ = hash((repr(value)[:2000], repr(metadata)[:2000]))
            kept = len(self.events[MLLOG]) + len(self.events[MLL])
            if print_ in seen or kept >= _KEPT:
                self.unkept[key] = self.unkept.get(key, 0) + 1
                return
            seen.add(print_)
        if type(value) is int and not -_LARGEST_INTEGER < value < _LARGEST_INTEGER:
            value = _as_float(value)
        self.events[dialect].append(
            Event(
                number,
                time_ms,
                key,
                value,
                _bounded(metadata) if isinstance(metadata, dict) else {},
                _text(content.get("event_type")),
                _text(content.get("namespace")),
                self.dialects[dialect],
            )
        )

    def _problem(self, line: int, kind: str, key: str | None, message: str, lost: bool) -> None:
        self.problem_count += 1
        if len(self.problems) < _KEPT_PROBLEMS:
            self.problems.append(Problem(line, kind, key, message, lost))

    def log(self, path: Path) -> Log:
        """What was read, in the dialect that most records have."""
        dialect = MLLOG if self.dialects[MLLOG] >= self.dialects[MLL] else MLL
        other = MLL if dialect == MLLOG else MLLOG
        events = self.events[dialect]
        if self.events[other]:
            first = self.events[other][0]
            message = f"a record of another format (:::{other}) among :::{dialect} records"
            self._problem(first.line, "mixed", first.key, message, False)
        by_key: dict[str, list[Event]] = {}
        for event in events:
            by_key.setdefault(event.key, []).append(event)
        return Log(
            path=path,
            dialect=dialect,
            events=events,
            problems=self.problems,
            problem_count=self.problem_count,
            joined=JoinedLines(self.joined_count, self.first_joined),
            counts=self.counts,
            unkept=self.unkept,
            steps_back=self.steps_back,
            step_back_count=self.step_back_count,
            lines=self.lines,
            bytes=self.size,
            ruleset=guess_ruleset(dialect, events),
            by_key=by_key,
        )


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _salvage(text: str) -> str | None:
    match = _SALVAGED_KEY.search(text[:4000])
    return re.sub(r"\W", "", match[1] or match[2]) or None if match else None


def _key_of(content: Any) -> str | None:
    found = content.get("key") if isinstance(content, dict) else None
    return found if isinstance(found, str) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)[:100]


def _bounded(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata without integers that overflow a float."""
    for name, value in metadata.items():
        if type(value) is int and not -_LARGEST_INTEGER < value < _LARGEST_INTEGER:
            metadata[name] = _as_float(value)
    return metadata


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _what_else(reader: _Reader, head: bytes) -> str:
    """What a file without records is."""
    if reader.size == 0:
        return "an MLPerf log (:::MLLOG records) expected, found an empty file (0 bytes)"
    if head.startswith(b"\x1f\x8b"):
        found = "what looks like gzip: unpack it first"
    elif head.startswith((b"\xff\xfe", b"\xfe\xff")) or head.count(0) * 3 > len(head):
        found = "what looks like UTF-16: convert it with iconv"
    elif reader.old_records:
        found = "the v0.5 format (:::MLPv0.5.0), which has no rules for ResNet"
    elif reader.problems:
        first = reader.problems[0]
        found = f"none that can be read (first: line {first.line}: {first.message})"
    else:
        found = f"none in {reader.lines} lines"
    return f"an MLPerf log (:::MLLOG records) expected, found {found}"
