"""Rules on keys that may come once: copies of ranks, contradictions, hidden second values."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import plain, printable, shown
from ...logging.events import Event
from ..logged_run import SAME_MS
from ..rule import CHECKER, ERROR, NOTE, RULES_TEXT, Case, Found, rule

_LOG_IT = "log it once, from rank 0"
_ONCE = (
    *benchmark.SUBMISSION_KEYS_060,
    "init_stop",
    "run_start",
    "run_stop",
    "train_samples",
    "eval_samples",
)
_ONCE_060 = (
    "global_batch_size",
    "opt_name",
    "model_bn_span",
    "opt_base_learning_rate",
    "opt_learning_rate_warmup_epochs",
)
_ONCE_CLOSED = ("global_batch_size", "opt_name", "gradient_accumulation_steps")


def once_keys(case: Case) -> list[str]:
    """Keys that the checker wants exactly once in this case."""
    keys = [key for key in _ONCE if key not in ("submission_poc_name", "submission_entry")]
    if case.ruleset == "0.6.0":
        keys = [key for key in _ONCE if not key.endswith("_samples")]
        return [*keys, *_ONCE_060]
    if case.division != "open":
        keys += [key for key in _ONCE_CLOSED if case.at_least("1.0.0") or "gradient" not in key]
        keys += {"lars": benchmark.LARS_KEYS, "sgd": benchmark.SGD_KEYS}.get(
            case.optimizer or "", ()
        )
    return keys


@rule("DIFFERENT_VALUES", ERROR, f"{CHECKER}, EXACTLY_ONE")
def different_values(case: Case) -> Iterator[Found]:
    """A key that may come once does not come again with another value."""
    for key in once_keys(case):
        events = case.all(key)
        if len(events) < 2:
            continue
        other = next((e for e in events if e.value != events[0].value), None)
        if other is not None:
            yield Found(
                f"{key} is {shown(events[0].value)} in line {events[0].line} "
                f"and {shown(other.value)} in line {other.line}",
                other.line,
                "one value",
                f"{shown(events[0].value)} and {shown(other.value)}",
                "the ranks disagree, or two runs were mixed",
            )


@rule("COPIES", NOTE, f"{CHECKER}, warnings of EXACTLY_ONE")
def copies(case: Case) -> Iterator[Found]:
    """Records that may come once do so; copies with the same value are the ranks' or nodes'."""
    if case.second_run_line is not None:
        return
    repeated = [
        key
        for key in once_keys(case)
        if len(case.all(key)) > 1 and (key not in _CLOCK or _alike(case.all(key)))
    ]
    if not repeated:
        return
    count = max(case.log.counts[key] for key in repeated)
    spread = max(_spread_ms(case.all(key)) for key in repeated)
    first = case.all(repeated[0])[1]
    what = f"{len(repeated)} keys" if len(repeated) > 3 else ", ".join(repeated)
    who = f"{count} ranks wrote" if case.copies > 1 else f"{count} writers logged"
    yield Found(
        f"{who} the same records ({what}; spread {plain(spread)} ms)",
        first.line,
        "one record of each",
        f"up to {count}",
        _LOG_IT,
    )


@rule("UNKEPT", NOTE, "bounded memory of this checker")
def unkept(case: Case) -> Iterator[Found]:
    """The log is short enough for every record to be kept."""
    from ...logging.wanted import CHECKED

    more = {key: n for key, n in case.log.unkept.items() if key in CHECKED}
    if more:
        total = sum(more.values())
        names = ", ".join(sorted(more)[:4])
        yield Found(
            f"{total:,} repeated records were counted, not kept ({names} ...)",
            found=f"{total:,}",
        )


_CLOCK = ("run_start", "run_stop")


def _alike(events: list[Event]) -> bool:
    """One status, and stamps within a second."""
    states = {str(event.metadata.get("status")) for event in events}
    return len(states) == 1 and _spread_ms(events) <= SAME_MS


def _spread_ms(events: list[Event]) -> float:
    return max(e.time_ms for e in events) - min(e.time_ms for e in events)


@rule("R17", ERROR, f"{RULES_TEXT} lines 487-491: one clock")
def one_clock(case: Case) -> Iterator[Found]:
    """run_start and run_stop come once; copies agree in status and lie within a second."""
    for key in _CLOCK:
        events = case.all(key)
        if len(events) < 2:
            continue
        first = events[0]
        states = {str(e.metadata.get("status")) for e in events}
        spread = _spread_ms(events)
        if len(states) > 1:
            said = " and ".join(
                f"{printable(str(e.metadata.get('status')))[:40]} (line {e.line})"
                for e in events[:3]
            )
            yield Found(
                f"{len(events)} {key}: {said}; an official score would use the first",
                events[1].line,
                "one status",
                said,
                "the log must say once how the run ended",
            )
        elif spread > SAME_MS:
            yield Found(
                f"{len(events)} {key}, {spread / 1000:.3f} s apart (lines {first.line} and "
                f"{events[-1].line}): an official score would use the first",
                events[1].line,
                "one, or copies within 1 s",
                f"{spread / 1000:.3f} s apart",
                "write it from rank 0 alone",
            )


@rule("HIDDEN", NOTE, "v1.0 Intel logs")
def hidden(case: Case) -> Iterator[Found]:
    """No value hides under a renamed key (duplicate_...)."""
    keys = [key for key in case.logged_keys() if key.startswith("duplicate_")]
    if keys:
        event = case.all(keys[0])[0]
        names = ", ".join(printable(key)[:60] for key in keys[:4])
        more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
        yield Found(
            f"{names}{more} (from line {event.line} on) hide second values",
            event.line,
            "one value under its own key",
            shown(event.value),
        )


RULES = (
    one_clock,
    different_values,
    copies,
    unkept,
    hidden,
)
