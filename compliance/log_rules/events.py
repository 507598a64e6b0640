"""Rules on events: are they there, in order, once, with the values and metadata they must have."""

from ...config import benchmark
from ...host.finding import ERROR, MISSING, NOTE, POLICY, Finding, number, plain, shown
from ...logging.events import Event, type_name
from ..logged_run import SAME_MS, LoggedRun, spread_ms
from ..rule import (
    CHECKER,
    CLOCK,
    FROM_070,
    LOST,
    RULES_TEXT,
    Violations,
    against,
    missing,
    only_if,
    rule,
    violation,
)
from .round_060 import ONCE as ONCE_060

_COMMON = f"{CHECKER}, common.yaml"
LOG_IT = "log it once, from rank 0"
_SAMPLES = ("train_samples", "eval_samples")


@rule(
    "MLP101",
    "missing-submission-key",
    ERROR,
    _COMMON,
    why=(
        "The submission is listed and compared by these values, so a log without one has no "
        "place there."
    ),
    example="no `submission_org` in the log.",
)
def submission_keys(run: LoggedRun) -> Violations:
    """submission_org, _platform, _division, _status and _benchmark are logged (0.6.0: also
    _poc_name and _entry)."""
    keys = benchmark.submission_keys(run.ruleset)
    return missing(run, keys, advice=f"log each of them ({LOG_IT})")


@rule(
    "MLP107",
    "no-cache-clear",
    ERROR,
    _COMMON,
    why=(
        "Images that earlier runs left in the system's cache make the first epoch faster than"
        " the disk allows."
    ),
    example="no `cache_clear` in the log.",
)
def cache_clear(run: LoggedRun) -> Violations:
    """cache_clear is logged at least once."""
    return missing(run, ["cache_clear"], "at least one", "log it before init")


@rule(
    "MLP103",
    "no-run-stop",
    ERROR,
    _COMMON,
    follows_from=(LOST,),
    why=(
        "The time to train ends with it. A job that was killed, or ran into its time limit, "
        "leaves such a log."
    ),
    example="no `run_stop` in the log.",
)
def run_stop_exists(run: LoggedRun) -> Violations:
    """The run ended: run_stop is there."""
    if run.all("run_stop") or "run_stop" in run.log.lost_keys or run.log.truncated:
        return  # broken-record says it of a log that was cut
    yield against(
        "run did not finish:",
        "no run_stop",
        "run_stop",
        line=run.log.lines,
        actual_value="none",
    )


def _without(event: Event, name: str) -> Finding:
    return against(event, f"has no {name}", f"metadata.{name}")


def _before_run_start(run: LoggedRun, event: Event) -> bool:
    return not run.start or event.order < run.start.order


def _too_early(event: Event) -> Finding:
    return against(event, "stands before run_start", "run_start first")


@rule(
    "MLP104",
    "misplaced-run-stop",
    ERROR,
    _COMMON,
    follows_from=(LOST, "misplaced-run-start"),
)
def run_stop(run: LoggedRun) -> Violations:
    """run_stop comes after run_start and carries metadata.status."""
    for event in run.all("run_stop"):
        if _before_run_start(run, event):
            yield _too_early(event)
            return
        if "status" not in event.metadata:
            yield _without(event, "status")
            return


@rule(
    "MLP105",
    "misplaced-run-start",
    ERROR,
    _COMMON,
    follows_from=(LOST,),
    why=(
        "The time to train begins with it. Everything before it is not counted: only set-up "
        "may be there."
    ),
    example="no `run_start` in the log.",
)
def run_start(run: LoggedRun) -> Violations:
    """run_start is there, after init_stop."""
    if run.absent("run_start"):
        yield violation(
            message="no run_start: the clock never started",
            expected="run_start",
            found="none",
            about=MISSING,
        )
    event = run.start
    stop = run.first("init_stop")
    if event and stop and event.order < stop.order:
        yield against(event, f"stands before {stop.place}", "init_stop first")


@rule(
    "MLP106",
    "misplaced-init",
    ERROR,
    _COMMON,
    follows_from=(LOST,),
    why="Initialisation is limited in time, and these two events measure it.",
    example="no `init_start` in the log.",
)
def init(run: LoggedRun) -> Violations:
    """init_start and init_stop are logged, in this order and before run_start."""
    yield from missing(run, ["init_start", "init_stop"])
    begin = run.first("init_start")
    stop = run.first("init_stop")
    ends = [event for event in (stop, run.start) if event]
    if ends:
        end = min(ends, key=lambda event: event.order)
        yield from _late(run, "init_start", end, "it before init_stop and run_start")
    if begin and stop and stop.order < begin.order:
        yield against(stop, f"stands before {begin.place}", "init_start first")
    elif run.start:
        yield from _late(run, "init_stop", run.start, "init_stop first")


def _late(run: LoggedRun, key: str, end: Event, expected: str) -> Violations:
    """The first record of a key after another record."""
    for event in run.all(key):
        if event.order > end.order:
            yield against(event, f"stands after {end.place}", expected)
            return


@rule(
    "MLP108",
    "missing-epoch-event",
    ERROR,
    _COMMON,
    rulesets=FROM_070,
    follows_from=(LOST,),
    why=(
        "The epochs to the target, which are compared with the reference, are counted by "
        "these events."
    ),
    example="no `block_start` and no `epoch_start` in the log.",
)
def epoch_events(run: LoggedRun) -> Violations:
    """Blocks or epochs start and stop; evaluations lie between their own or block events."""
    for key, alternative in (
        ("block_start", "epoch_start"),
        ("block_stop", "epoch_stop"),
        ("eval_start", "block_start"),
        ("eval_stop", "block_stop"),
    ):
        # logs group epochs in blocks, or name them one by one, or both
        if run.absent(alternative):
            yield from missing(
                run, [key], f"{key} or {alternative}", why=f", and no {alternative}"
            )


_OTHER_COUNT = {"3.1.0": "step_num", "4.0.0": "samples_count"}
"""What rounds accept beside epoch numbers."""


@rule(
    "MLP109",
    "missing-epoch-metadata",
    ERROR,
    f"{CHECKER}, common.yaml and *_resnet.yaml",
    rulesets=FROM_070,
    follows_from=("misplaced-run-start",),
    why=(
        "An evaluation belongs to an epoch. Without its number the log does not say after how"
        " much training the target was reached."
    ),
    example='`{"key": "eval_start", "metadata": {}}`',
)
def epoch_metadata(run: LoggedRun) -> Violations:
    """Epoch and evaluation events carry their epoch; blocks start after run_start and have a count
    of epochs above 0."""
    other_count = _OTHER_COUNT.get(run.ruleset)
    blocks = run.all("block_start")
    early = [_too_early(block) for block in blocks if _before_run_start(run, block)]
    problems = [_block_problem(block, other_count) for block in blocks]
    # one of each kind: what is wrong with a block is mostly wrong with all
    yield from early[:1]
    yield from list(filter(None, problems))[:1]
    for key, name, alternative in (
        ("block_stop", "first_epoch_num", other_count),
        ("epoch_start", "epoch_num", None),
        ("epoch_stop", "epoch_num", None),
        ("eval_start", "epoch_num", other_count),
        ("eval_stop", "epoch_num", other_count),
        # without a division the checker reads common.yaml alone, which takes either name
        ("eval_accuracy", "epoch_num", None if run.division else other_count),
    ):
        for event in run.all(key):
            if not {name, alternative} & event.metadata.keys():
                yield _without(event, name)
                break


def _block_problem(event: Event, other_count: str | None) -> Finding | None:
    metadata = event.metadata
    name = "epoch_count"
    expected = "above 0"
    if name not in metadata and other_count in metadata:
        name = str(other_count)
        expected = "0 or more"
    elif absent := [
        key for key in ("epoch_count", "first_epoch_num") if key not in metadata
    ]:
        return _without(event, absent[0])
    count = number(metadata[name])
    if count is not None and (count > 0 or (count == 0 and name == other_count)):
        return None
    return against(event, f"has {name} {shown(metadata[name])}", expected)


@rule(
    "MLP110",
    "missing-samples",
    ERROR,
    _COMMON,
    rulesets=FROM_070,
    why="They say on which images the network was trained and how thoroughly it was evaluated.",
    example="no `eval_samples` in the log.",
)
def samples(run: LoggedRun) -> Violations:
    """train_samples and eval_samples are logged and not empty."""
    for key in _SAMPLES:
        yield from missing(run, [key], advice=LOG_IT)
        event = run.first(key)
        if event and event.value == "":
            yield against(event, "is empty", "a count")


@rule("MLP111", "missing-accuracy", ERROR, f"{CHECKER}, *_resnet.yaml")
def eval_accuracy(run: LoggedRun) -> Violations:
    """eval_accuracy is logged, as finite numbers (0.6.0: policy, as its checker takes anything)."""
    yield from missing(run, ["eval_accuracy"], "at least one")
    for event in run.all("eval_accuracy"):
        if number(event.value) is None:
            actual = type_name(event.value)
            if isinstance(event.value, str):
                actual = shown(event.value)
            yield against(
                event,
                f"is {actual}",
                "a fraction such as 0.7592",
                severity=only_if(run.ruleset == "0.6.0", POLICY),
            )
            return


_CLOCK = ("run_start", "run_stop")
_ONCE_CLOSED = ("global_batch_size", "opt_name", "gradient_accumulation_steps")


def once_keys(run: LoggedRun) -> list[str]:
    """Keys that the checker wants exactly once in this run."""
    keys = [*benchmark.submission_keys(run.ruleset), "init_stop", *_CLOCK]
    if run.ruleset == "0.6.0":
        return [*keys, *ONCE_060]
    keys += _SAMPLES
    if run.division != "open":
        keys += _ONCE_CLOSED if run.at_least("1.0.0") else _ONCE_CLOSED[:-1]
        keys += benchmark.OPTIMIZER_KEYS.get(run.optimizer or "", ())
    return keys


def _status(event: Event) -> str:
    return shown(event.metadata.get("status"))


def _have_one_status(events: list[Event]) -> bool:
    return len(set(map(_status, events))) < 2


@rule(
    "MLP201",
    "several-clocks",
    ERROR,
    f"{RULES_TEXT} lines 487-491: one clock",
    follows_from=CLOCK,
)
def one_clock(run: LoggedRun) -> Violations:
    """run_start and run_stop come once; copies agree in status and lie within a second."""
    for key in _CLOCK:
        events = run.all(key)
        subject = f"{len(events)} {key},"
        actual = f"{spread_ms(events) / 1000:.3f} s apart"
        expected = "one, or copies within 1 s"
        if not _have_one_status(events):
            subject = f"{len(events)} {key}:"
            actual = " and ".join(f"{_status(e)} (line {e.line})" for e in events[:3])
            expected = "one status"
        elif spread_ms(events) <= SAME_MS:
            continue
        yield against(
            subject,
            actual,
            expected,
            "an official score would use the first",
            line=events[1].line,
        )


@rule("MLP202", "different-values", ERROR, f"{CHECKER}, EXACTLY_ONE")
def different_values(run: LoggedRun) -> Violations:
    """A key that may come once does not come again with another value."""
    for key in once_keys(run):
        for event in run.all(key):
            first = run.all(key)[0]
            if event.value != first.value and event is not first:
                actual = f"{shown(first.value)} in line {first.line}"
                actual += f" and {shown(event.value)} in line {event.line}"
                yield against(
                    f"{key} is",
                    actual,
                    "one value",
                    "the ranks disagree, or two runs were mixed",
                    line=event.line,
                )
                break


@rule("MLP203", "copied-records", NOTE, f"{CHECKER}, warnings of EXACTLY_ONE")
def copies(run: LoggedRun) -> Violations:
    """Records that may come once do so; copies with the same value are the ranks' or nodes'. (Two
    ends of a run are no copies: several-clocks.)"""
    repeated = []
    for key in once_keys(run):
        events = run.all(key)
        are_copies = _have_one_status(events) and spread_ms(events) <= SAME_MS
        if len(events) > 1 and (are_copies or key not in _CLOCK):
            repeated.append(events)
    if not repeated or run.second_run_line is not None:
        return
    spread = plain(max(map(spread_ms, repeated)))
    actual = (
        f"logged {max(map(len, repeated))} x ({len(repeated)} keys; spread {spread} ms)"
    )
    copy = repeated[0][1]
    yield against(copy.key, actual, "one record of each", line=copy.line, advice=LOG_IT)
