"""Rules on keys that may come once: copies of ranks, contradictions."""

from ...config import benchmark
from ...config.finding import ERROR, NOTE, plain, shown
from ...logging.events import Event
from ..logged_run import SAME_MS, LoggedRun, spread_ms
from ..rule import CHECKER, RULES_TEXT, Violations, against, rule
from . import round_060
from .events import LOG_IT

_CLOCK = ("run_start", "run_stop")
_SAMPLES = ("train_samples", "eval_samples")
_ONCE_CLOSED = ("global_batch_size", "opt_name", "gradient_accumulation_steps")


def once_keys(run: LoggedRun) -> list[str]:
    """Keys that the checker wants exactly once in this run."""
    keys = [*benchmark.submission_keys(run.ruleset), "init_stop", *_CLOCK]
    if run.ruleset == "0.6.0":
        return [*keys, *round_060.ONCE]
    keys += _SAMPLES
    if run.division != "open":
        keys += [
            key
            for key in _ONCE_CLOSED
            if run.at_least("1.0.0") or "gradient" not in key
        ]
        keys += benchmark.OPTIMIZER_KEYS.get(run.optimizer or "", ())
    return keys


def _status(event: Event) -> str:
    return shown(event.metadata.get("status"))


def _disagree(events: list[Event]) -> bool:
    """Whether several ends or starts of a run are no copies of one."""
    return len({_status(event) for event in events}) > 1 or spread_ms(events) > SAME_MS


@rule("MLP201", "several-clocks", ERROR, f"{RULES_TEXT} lines 487-491: one clock")
def one_clock(run: LoggedRun) -> Violations:
    """run_start and run_stop come once; copies agree in status and lie within a second."""
    why = "an official score would use the first"
    for key in _CLOCK:
        events = run.all(key)
        line = next((event.line for event in events[1:]), None)
        if len({_status(event) for event in events}) > 1:
            found = " and ".join(f"{_status(e)} (line {e.line})" for e in events[:3])
            yield against(f"{len(events)} {key}:", found, "one status", why, line=line)
        elif spread_ms(events) > SAME_MS:
            found = f"{spread_ms(events) / 1000:.3f} s apart"
            yield against(
                f"{len(events)} {key},",
                found,
                "one, or copies within 1 s",
                why,
                line=line,
            )


@rule("MLP202", "different-values", ERROR, f"{CHECKER}, EXACTLY_ONE")
def different_values(run: LoggedRun) -> Violations:
    """A key that may come once does not come again with another value."""
    for key in once_keys(run):
        events = run.all(key)
        other = next(
            (event for event in events[1:] if event.value != events[0].value), None
        )
        if other is not None:
            found = f"{shown(events[0].value)} in line {events[0].line}"
            found += f" and {shown(other.value)} in line {other.line}"
            why = "the ranks disagree, or two runs were mixed"
            yield against(f"{key} is", found, "one value", why, line=other.line)


@rule("MLP203", "copied-records", NOTE, f"{CHECKER}, warnings of EXACTLY_ONE")
def copies(run: LoggedRun) -> Violations:
    """Records that may come once do so; copies with the same value are the ranks' or nodes'. (Two
    ends of a run are no copies: several-clocks.)"""
    repeated = [
        key
        for key in once_keys(run)
        if len(run.all(key)) > 1 and not (key in _CLOCK and _disagree(run.all(key)))
    ]
    if not repeated or run.second_run_line is not None:
        return
    count = max(len(run.all(key)) for key in repeated)
    spread = max(spread_ms(run.all(key)) for key in repeated)
    found = f"logged {count} x ({len(repeated)} keys; spread {plain(spread)} ms)"
    line = run.all(repeated[0])[1].line
    yield against(repeated[0], found, "one record of each", line=line, advice=LOG_IT)
