"""Which records of a log are kept: all that can make a difference to a rule, in bounded memory.

The first records of a key are kept as they are. Beyond them one that says something new, in value
or metadata, is kept too; of those that say the same the first, the last, the earliest and the
latest stay, as only their place and time can matter. So no flood of records, of whatever key, can
push another one out. Where a record that says something new finds no room, the log carries that
(`Overflow`), and there is no verdict on it.
"""

from __future__ import annotations

import math
from typing import Any

from .checked_keys import READ_METADATA, CheckedKeys
from .events import MLL, MLLOG, Event, Overflow

FIRST = 500
"""Records of one key that are kept, whatever they say; published logs have up to 161."""
_OWN_ROOM = 256_000
"""Bytes for the first records of each key that rules read: 14 MB for all of them together."""
_ROOM = {True: 32_000_000, False: 20_000_000}
"""Bytes for more records of keys that rules read, and for those of others."""
_RECORD_BYTES, _CHARACTER_BYTES, _ENTRY_BYTES, _USUAL_ENTRIES = 600, 2, 150, 8
"""Memory of a kept record, measured: its objects, each character of its text and of the key by
which copies are found, and each entry beyond those that mllog writes."""
_NAMES = 1000
"""Names that no rule knows and that are counted one by one; all others together are "..."."""
_OTHERS = "..."
_FAMILY_NAMES = 200
_SAMPLED = 10
"""Records that are kept of a key that is known by its beginning alone: rules read the first."""
_NAME_CHARACTERS = 100
_LARGE_CHARACTERS, _LARGE_BRACKETS, _LARGE_ENTRIES = 8192, 40, 60
_SHALLOW_CHARACTERS = 300
"""Shorter records cannot be nested deeper than any code can go."""
_SHORT_CHARACTERS, _SHORT_ENTRIES = 200, 20
_LARGEST_INTEGER = 10**18  # beyond it arithmetic with floats can overflow


class _Alike:
    """Records of one key with one value and one metadata: the first, and where others stand."""

    __slots__ = ("count", "earliest", "event", "last", "latest")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.count = 1
        self.last = self.earliest = self.latest = (event.line, event.time_ms, event.order)

    def again(self, line: int, time_ms: float, order: int) -> None:
        """One more of them."""
        self.count += 1
        self.last = place = (line, time_ms, order)
        if time_ms < self.earliest[1]:
            self.earliest = place
        if time_ms > self.latest[1]:
            self.latest = place

    def others(self) -> list[Event]:
        """The last, the earliest and the latest, where they are not the first."""
        places = {self.last, self.earliest, self.latest}
        return [
            self.event._replace(line=line, time_ms=time_ms, order=order)
            for line, time_ms, order in places
            if order != self.event.order
        ]


class Keeper:
    """The records of one log, as far as they are kept. `checked`: the keys of which no record may
    be lost unseen."""

    def __init__(self, checked: CheckedKeys) -> None:
        self._checked = checked
        self.counts: dict[str, int] = {}
        self.unkept: dict[str, int] = {}
        self.overflow: Overflow | None = None
        self._events: dict[str, list[Event]] = {MLLOG: [], MLL: []}
        self._alike: dict[tuple[str, str, str], _Alike] = {}
        self._own_bytes: dict[str, int] = {}
        self._bytes = {True: 0, False: 0}
        self._names = 0
        self._family_names = 0

    def count(self, key: str) -> str:
        """Count a record; returns the name under which it is counted."""
        if key not in self.counts:
            key = self._name(key)
        self.counts[key] = self.counts.get(key, 0) + 1
        return key

    def _name(self, key: str) -> str:
        if key in self._checked.named:
            return key
        if len(key) > _NAME_CHARACTERS:
            half = _NAME_CHARACTERS // 2
            key = f"{key[:half]}...{key[-half:]}"
            if key in self.counts:
                return key
        if key in self._checked:
            self._family_names += 1
            return key if self._family_names <= _FAMILY_NAMES else _OTHERS
        self._names += 1
        return key if self._names <= _NAMES else _OTHERS

    def is_new(self, name: str) -> bool:
        """Has this name, as `count` gave it, been counted once, or among all others?"""
        return self.counts[name] == 1 or name == _OTHERS

    def pass_over(self, name: str) -> None:
        """A counted record is not kept."""
        self.unkept[name] = self.unkept.get(name, 0) + 1

    def keep(self, event: Event, name: str, dialect: str, text: str) -> None:
        """Keep a counted record, or know it for a copy of one.

        `name`: as `count` gave it. `dialect`: MLLOG or MLL. `text`: its JSON.
        """
        checked = True
        if name not in self._checked.named:
            checked = event.key in self._checked
            sampled = self._checked.is_sampled(event.key)
            if name == _OTHERS or (sampled and self.counts[name] > _SAMPLED):
                self.pass_over(name)
                if checked and not sampled:
                    self._no_room(event)
                return
            event = event._replace(key=name)
        entries = text.count(",")
        event = _bounded(event, text, entries)
        if self.counts[name] > FIRST:
            print_ = (dialect, name, repr((event.value, event.metadata)))
            alike = self._alike.get(print_)
            if alike is not None:
                alike.again(event.line, event.time_ms, event.order)
                return
        size = _bytes_of(text, entries)
        if not self._own_room(name, size) and not self._room(checked, size):
            self.pass_over(name)
            if checked:
                self._no_room(event)
            return
        self._events[dialect].append(event)
        if self.counts[name] > FIRST:
            self._alike[print_] = _Alike(event)

    def _own_room(self, name: str, size: int) -> bool:
        """Is it one of a key's first records, for which no other key can take the room?"""
        if name not in self._checked.named or self.counts[name] > FIRST:
            return False
        taken = self._own_bytes.get(name, 0) + size
        if taken > _OWN_ROOM:
            return False
        self._own_bytes[name] = taken
        return True

    def _room(self, checked: bool, size: int) -> bool:
        if self._bytes[checked] + size > _ROOM[checked]:
            return False
        self._bytes[checked] += size
        return True

    def _no_room(self, event: Event) -> None:
        first = self.overflow or Overflow(event.key, event.line, 0)
        self.overflow = first._replace(records=first.records + 1)

    def events(self, dialect: str) -> list[Event]:
        """All kept records of a dialect, in file order. To be called once."""
        events = self._events[dialect]
        for (of, name, _), alike in self._alike.items():
            if of == dialect:
                others = alike.others()
                events.extend(others)
                dropped = alike.count - 1 - len(others)
                if dropped:
                    self.unkept[name] = self.unkept.get(name, 0) + dropped
        events.sort(key=lambda event: event.order)
        return events


def _bytes_of(text: str, entries: int) -> int:
    """What a kept record takes, about; of a large one less is kept."""
    characters = min(len(text), _LARGE_CHARACTERS)
    size = _RECORD_BYTES + _CHARACTER_BYTES * characters
    if entries > _USUAL_ENTRIES:
        size += _ENTRY_BYTES * (min(entries, _LARGE_ENTRIES) - _USUAL_ENTRIES)
    return size


def _bounded(event: Event, text: str, entries: int) -> Event:
    """A record whose parts are short and shallow, with numbers that floats can hold: what is cut
    is replaced by a digest of the whole record, so two different ones stay different."""
    value, metadata = event.value, event.metadata
    if (
        len(text) > _LARGE_CHARACTERS
        or entries > _LARGE_ENTRIES
        or (len(text) > _SHALLOW_CHARACTERS and text.count("[") + text.count("{") > _LARGE_BRACKETS)
    ):
        from hashlib import sha256  # 4 MB and 3 ms that a usual log need not pay

        digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        value = _short(value, digest)
        metadata = _short_object(metadata, digest)
        event = event._replace(value=value, metadata=metadata)
    if type(value) is int and not -_LARGEST_INTEGER < value < _LARGEST_INTEGER:
        event = event._replace(value=_as_float(value))
    for name, entry in metadata.items():
        if type(entry) is int and not -_LARGEST_INTEGER < entry < _LARGEST_INTEGER:
            metadata[name] = _as_float(entry)
    return event


def _short(value: Any, digest: str) -> Any:
    if isinstance(value, str) and len(value) > _SHORT_CHARACTERS:
        return f"{value[:_SHORT_CHARACTERS]}... ({len(value)} characters, {digest})"
    if isinstance(value, list):
        return [f"{len(value)} entries, {digest}"] if value else value
    return _short_object(value, digest) if isinstance(value, dict) else value


def _short_object(content: dict[str, Any], digest: str) -> dict[str, Any]:
    names = [name for name in content if len(name) <= _SHORT_CHARACTERS]
    names.sort(key=lambda name: name not in READ_METADATA)
    kept: dict[str, Any] = {}
    for name in names[:_SHORT_ENTRIES]:
        entry = content[name]
        kept[name] = digest if isinstance(entry, list | dict) else _short(entry, digest)
    return {**kept, _OTHERS: f"{len(content)} entries, {digest}"}


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
