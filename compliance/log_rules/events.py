"""Rules on events: are they there, in order, with the values and metadata they must carry."""

from ...config import benchmark
from ...config.finding import ERROR, MISSING, POLICY, Finding, number, shown
from ...logging.events import Event, type_name
from ..logged_run import LoggedRun
from ..rule import (
    CHECKER,
    FROM_070,
    Violations,
    against,
    missing,
    only_if,
    rule,
    violation,
)

_COMMON = f"{CHECKER}, common.yaml"
LOG_IT = "log it once, from rank 0"
_SAMPLES = ("train_samples", "eval_samples")


@rule("MLP101", "missing-submission-key", ERROR, _COMMON)
def submission_keys(run: LoggedRun) -> Violations:
    """submission_org, _platform, _division, _status and _benchmark are logged (0.6.0: also
    _poc_name and _entry).

    Why: The submission is listed and compared by these values, so a log without one has no
    place there.

    Example: no `submission_org` in the log.
    """
    keys = benchmark.submission_keys(run.ruleset)
    yield from missing(run, keys, advice=f"log each of them ({LOG_IT})")


@rule("MLP107", "no-cache-clear", ERROR, _COMMON)
def cache_clear(run: LoggedRun) -> Violations:
    """cache_clear is logged at least once.

    Why: Images that earlier runs left in the system's cache make the first epoch faster than
    the disk allows.

    Example: no `cache_clear` in the log.
    """
    yield from missing(run, ["cache_clear"], "at least one", "log it before init")


@rule("MLP103", "no-run-stop", ERROR, _COMMON)
def run_stop_exists(run: LoggedRun) -> Violations:
    """The run ended: run_stop is there.

    Why: The time to train ends with it. A job that was killed, or ran into its time limit,
    leaves such a log.

    Example: no `run_stop` in the log.
    """
    if run.all("run_stop") or "run_stop" in run.log.lost_keys or run.log.truncated:
        return  # broken-record says it of a log that was cut
    yield against(
        "run did not finish:",
        "no run_stop",
        "run_stop",
        line=run.log.lines,
        found="none",
    )


def _without(event: Event, name: str) -> Finding:
    return against(event, f"has no {name}", f"metadata.{name}")


def _before_run_start(run: LoggedRun, event: Event) -> bool:
    return run.start is None or event.order < run.start.order


def _too_early(event: Event) -> Finding:
    return against(event, "stands before run_start", "run_start first")


@rule("MLP104", "misplaced-run-stop", ERROR, _COMMON)
def run_stop(run: LoggedRun) -> Violations:
    """run_stop comes after run_start and carries metadata.status."""
    for event in run.all("run_stop"):
        if _before_run_start(run, event):
            yield _too_early(event)
            return
        if "status" not in event.metadata:
            yield _without(event, "status")
            return


@rule("MLP105", "misplaced-run-start", ERROR, _COMMON)
def run_start(run: LoggedRun) -> Violations:
    """run_start is there, after init_stop.

    Why: The time to train begins with it. Everything before it is not counted: only set-up may
    be there.

    Example: no `run_start` in the log.
    """
    if run.absent("run_start"):
        yield violation(
            message="no run_start: the clock never started",
            expected="run_start",
            found="none",
            about=MISSING,
        )
    event = run.start
    stop = run.first("init_stop")
    if event is not None and stop is not None and event.order < stop.order:
        yield against(event, f"stands before {stop.place}", "init_stop first")


@rule("MLP106", "misplaced-init", ERROR, _COMMON)
def init(run: LoggedRun) -> Violations:
    """init_start and init_stop are logged, in this order and before run_start.

    Why: Initialisation is limited in time, and these two events measure it.

    Example: no `init_start` in the log.
    """
    yield from missing(run, ["init_start", "init_stop"])
    begin = run.first("init_start")
    stop = run.first("init_stop")
    start = run.start
    end = min((e for e in (stop, start) if e), key=lambda e: e.order, default=None)
    for event in run.all("init_start"):
        if end is not None and event.order > end.order:
            yield against(
                event, f"stands after {end.place}", "it before init_stop and run_start"
            )
            break
    for event in run.all("init_stop"):
        if begin is not None and event.order < begin.order:
            yield against(event, f"stands before {begin.place}", "init_start first")
            break
        if start is not None and event.order > start.order:
            yield against(event, f"stands after {start.place}", "init_stop first")
            break


@rule("MLP108", "missing-epoch-event", ERROR, _COMMON, rulesets=FROM_070)
def epoch_events(run: LoggedRun) -> Violations:
    """Blocks or epochs start and stop; evaluations lie between their own or block events.

    Why: The epochs to the target, which are compared with the reference, are counted by these
    events.

    Example: no `block_start` and no `epoch_start` in the log.
    """
    for one, other in (
        ("block_start", "epoch_start"),
        ("block_stop", "epoch_stop"),
        ("eval_start", "block_start"),
        ("eval_stop", "block_stop"),
    ):
        if run.absent(one) and run.absent(other):
            yield from missing(run, [one], f"{one} or {other}", why=f", and no {other}")


_OTHER_COUNT = {"3.1.0": "step_num", "4.0.0": "samples_count"}
"""What rounds accept beside epoch numbers."""


@rule(
    "MLP109",
    "missing-epoch-metadata",
    ERROR,
    f"{CHECKER}, common.yaml and *_resnet.yaml",
    rulesets=FROM_070,
)
def epoch_metadata(run: LoggedRun) -> Violations:
    """Epoch and evaluation events carry their epoch; blocks start after run_start and have a count
    of epochs above 0.

    Why: An evaluation belongs to an epoch. Without its number the log does not say after how
    much training the target was reached.

    Example: `{"key": "eval_start", "metadata": {}}`
    """
    other = _OTHER_COUNT.get(run.ruleset)
    blocks = run.all("block_start")
    yield from [_too_early(one) for one in blocks if _before_run_start(run, one)][:1]
    yield from [
        found for one in blocks if (found := _block_problem(one, other)) is not None
    ][:1]
    for key, name, alternative in (
        ("block_stop", "first_epoch_num", other),
        ("epoch_start", "epoch_num", None),
        ("epoch_stop", "epoch_num", None),
        ("eval_start", "epoch_num", other),
        ("eval_stop", "epoch_num", other),
        ("eval_accuracy", "epoch_num", None if run.division else other),
    ):
        without = [
            e for e in run.all(key) if not {name, alternative} & e.metadata.keys()
        ]
        yield from (_without(event, name) for event in without[:1])


def _block_problem(event: Event, other: str | None) -> Finding | None:
    data = event.metadata
    name = "epoch_count"
    expected = "above 0"
    if "epoch_count" not in data and other is not None and other in data:
        name = other
        expected = "0 or more"
    else:
        for needed in ("epoch_count", "first_epoch_num"):
            if needed not in data:
                return _without(event, needed)
    count = number(data[name])
    if count is not None and (count > 0 or (count == 0 and name == other)):
        return None
    return against(event, f"has {name} {shown(data[name])}", expected)


@rule("MLP110", "missing-samples", ERROR, _COMMON, rulesets=FROM_070)
def samples(run: LoggedRun) -> Violations:
    """train_samples and eval_samples are logged and not empty.

    Why: They say on which images the network was trained and how thoroughly it was evaluated.

    Example: no `eval_samples` in the log.
    """
    for key in _SAMPLES:
        yield from missing(run, [key], advice=LOG_IT)
        for event in run.all(key)[:1]:
            if event.value == "":
                yield against(event, "is empty", "a count")


@rule("MLP111", "missing-accuracy", ERROR, f"{CHECKER}, *_resnet.yaml")
def eval_accuracy(run: LoggedRun) -> Violations:
    """eval_accuracy is logged, as finite numbers (0.6.0: policy, as its checker takes anything)."""
    yield from missing(run, ["eval_accuracy"], "at least one")
    for event in run.all("eval_accuracy"):
        if number(event.value) is None:
            found = type_name(event.value)
            if isinstance(event.value, str):
                found = shown(event.value)
            severity = only_if(run.ruleset == "0.6.0", POLICY)
            yield against(
                event, f"is {found}", "a fraction such as 0.7592", severity=severity
            )
            break
