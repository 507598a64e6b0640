"""Rules on keys that may come once: copies of ranks, contradictions, hidden second values."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import plain, printable, shown
from ...logging.events import Event
from ..logged_run import SAME_MS, LoggedRun, spread_ms
from ..rule import CHECKER, ERROR, NOTE, RULES_TEXT, Violation, rule
from . import round_060
from .events import LOG_IT

_ONCE = (
    *benchmark.submission_keys("0.6.0"),
    "init_stop",
    "run_start",
    "run_stop",
    "train_samples",
    "eval_samples",
)
_ONCE_CLOSED = ("global_batch_size", "opt_name", "gradient_accumulation_steps")


_ONCE_KEYS = (*_ONCE, *round_060.ONCE, *_ONCE_CLOSED, *benchmark.LARS_KEYS, *benchmark.SGD_KEYS)


def once_keys(run: LoggedRun) -> list[str]:
    """Keys that the checker wants exactly once in this run."""
    keys = [key for key in _ONCE if key not in ("submission_poc_name", "submission_entry")]
    if run.ruleset == "0.6.0":
        keys = [key for key in _ONCE if not key.endswith("_samples")]
        return [*keys, *round_060.ONCE]
    if run.division != "open":
        keys += [key for key in _ONCE_CLOSED if run.at_least("1.0.0") or "gradient" not in key]
        keys += {"lars": benchmark.LARS_KEYS, "sgd": benchmark.SGD_KEYS}.get(
            run.optimizer or "", ()
        )
    return keys


@rule("MLP202", "different-values", ERROR, f"{CHECKER}, EXACTLY_ONE", keys=_ONCE_KEYS)
def different_values(run: LoggedRun) -> Iterator[Violation]:
    """A key that may come once does not come again with another value."""
    for key in once_keys(run):
        events = run.all(key)
        if len(events) < 2:
            continue
        other = next((e for e in events if e.value != events[0].value), None)
        if other is not None:
            text = (
                f"{key} is {shown(events[0].value)} in line {events[0].line} "
                f"and {shown(other.value)} in line {other.line}"
            )
            actual = f"{shown(events[0].value)} and {shown(other.value)}"
            advice = "the ranks disagree, or two runs were mixed"
            yield Violation(text, other.line, "one value", actual, advice)


@rule("MLP203", "copied-records", NOTE, f"{CHECKER}, warnings of EXACTLY_ONE", keys=_ONCE_KEYS)
def copies(run: LoggedRun) -> Iterator[Violation]:
    """Records that may come once do so; copies with the same value are the ranks' or nodes'."""
    if run.second_run_line is not None:
        return
    repeated = [
        key
        for key in once_keys(run)
        if len(run.all(key)) > 1 and (key not in _CLOCK or _alike(run.all(key)))
    ]
    if not repeated:
        return
    count = max(run.log.counts[key] for key in repeated)
    spread = max(spread_ms(run.all(key)) for key in repeated)
    first = run.all(repeated[0])[1]
    what = f"{len(repeated)} keys" if len(repeated) > 3 else ", ".join(repeated)
    who = f"{count} ranks wrote" if run.duplicate_writers > 1 else f"{count} writers logged"
    text = f"{who} the same records ({what}; spread {plain(spread)} ms)"
    yield Violation(text, first.line, "one record of each", f"up to {count}", LOG_IT)


@rule("MLP204", "unkept-records", NOTE, "bounded memory of this checker")
def unkept(run: LoggedRun) -> Iterator[Violation]:
    """The log is short enough for every record to be kept."""
    from . import checked_keys  # all rules are known once one runs

    checked = checked_keys()
    more = {key: n for key, n in run.log.unkept.items() if key in checked}
    if more:
        total = sum(more.values())
        names = ", ".join(sorted(more)[:4])
        text = f"{total:,} repeated records were counted, not kept ({names} ...)"
        yield Violation(text, actual=f"{total:,}")


_CLOCK = ("run_start", "run_stop")


def _alike(events: list[Event]) -> bool:
    """One status, and stamps within a second."""
    states = {str(event.metadata.get("status")) for event in events}
    return len(states) == 1 and spread_ms(events) <= SAME_MS


@rule("MLP201", "several-clocks", ERROR, f"{RULES_TEXT} lines 487-491: one clock")
def one_clock(run: LoggedRun) -> Iterator[Violation]:
    """run_start and run_stop come once; copies agree in status and lie within a second."""
    for key in _CLOCK:
        events = run.all(key)
        if len(events) < 2:
            continue
        first = events[0]
        states = {str(e.metadata.get("status")) for e in events}
        spread = spread_ms(events)
        if len(states) > 1:
            said = " and ".join(
                f"{printable(str(e.metadata.get('status')))[:40]} (line {e.line})"
                for e in events[:3]
            )
            text = f"{len(events)} {key}: {said}; an official score would use the first"
            advice = "the log must say once how the run ended"
            yield Violation(text, events[1].line, "one status", said, advice)
        elif spread > SAME_MS:
            yield Violation(
                f"{len(events)} {key}, {spread / 1000:.3f} s apart (lines {first.line} and "
                f"{events[-1].line}): an official score would use the first",
                events[1].line,
                "one, or copies within 1 s",
                f"{spread / 1000:.3f} s apart",
                "write it from rank 0 alone",
            )


@rule("MLP205", "hidden-value", NOTE, "v1.0 Intel logs", keys=("duplicate_*",))
def hidden(run: LoggedRun) -> Iterator[Violation]:
    """No value hides under a renamed key (duplicate_...)."""
    keys = [key for key in run.logged_keys() if key.startswith("duplicate_")]
    if keys:
        event = run.all(keys[0])[0]
        names = ", ".join(printable(key)[:60] for key in keys[:4])
        more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
        text = f"{names}{more} (from line {event.line} on) hide second values"
        yield Violation(text, event.line, "one value under its own key", shown(event.value))
