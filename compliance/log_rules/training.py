"""Rules on the course of training: is what a log claims to have trained in it, and in order.

Published implementations number epochs in several ways and group them in many (blocks named by
their last epoch, one block for all, evaluations logged after training). What is odd in a log
without `epoch_start` is its implementation's habit.
"""

from itertools import pairwise

from ...config import benchmark
from ...host.finding import ERROR, NOTE, POLICY, number, plain, shown
from ...logging.events import Event
from ..limits import cadence_problem
from ..logged_run import SAME_MS, LoggedRun, epoch_of, epochs_of
from ..rule import (
    CLOCK,
    CLOSED_POLICY,
    FROM_070,
    LOST,
    NO_LOG,
    RULES_TEXT,
    Setting,
    Violations,
    against,
    only_if,
    rule,
)

_EPOCH_KEYS = (
    "eval_accuracy",
    "eval_start",
    "eval_stop",
    "block_start",
    "block_stop",
    "epoch_start",
    "epoch_stop",
)
_INTERVAL_KEYS = ("epoch_start", "epoch_stop", "eval_start", "eval_stop")
_EPOCH_NAMES = ("epoch_num", "first_epoch_num", "epoch_count")


@rule(
    "MLP401",
    "target-before-training",
    ERROR,
    f"{RULES_TEXT} lines 441, 491",
    follows_from=(LOST,),
)
def target_after_training(run: LoggedRun) -> Violations:
    """The target is reached after training began: a block or an epoch starts before it."""
    target = run.target
    starts = run.of_keys("block_start", "epoch_start")
    if not run.needs_target or not target or not starts:
        return
    first = min(starts, key=lambda event: event.order)
    if target.order < first.order:
        yield against(
            f"the target is reached (line {target.line})",
            f"before any training: the first is {first.place}",
            "training, then its evaluation",
            line=target.line,
        )


@rule(
    "MLP402",
    "off-the-clock",
    POLICY,
    f"{RULES_TEXT} lines 487-491: the clock runs while the model trains; {NO_LOG}",
    follows_from=CLOCK,
)
def all_on_the_clock(run: LoggedRun) -> Violations:
    """Epochs and evaluations lie between run_start and run_stop, by their place in the log and, to
    a second or 1 % of the run, by their stamps. (A block before run_start is an error,
    missing-epoch-metadata.)"""
    start = run.start
    stop = next(reversed(run.all("run_stop")), None)
    for event in run.of_keys(*_INTERVAL_KEYS, "eval_accuracy"):
        for limit, sign in ((start, 1), (stop, -1)):
            if not limit:
                continue
            # by how much it lies before the start, or behind the stop
            by_ms = sign * (limit.time_ms - event.time_ms)
            side = "before" if sign > 0 else "after"
            where = f"stands {side}"
            if by_ms > run.slack_ms and min(limit.time_ms, event.time_ms) > 0:
                where = f"is stamped {by_ms / 1000:.3f} s {side}"
            elif sign * (limit.order - event.order) < 0:
                continue
            yield against(
                event,
                f"{where} {limit.place}",
                "epochs and evaluations between run_start and run_stop",
            )
            return


@rule(
    "MLP403",
    "overlapping-epochs",
    POLICY,
    f"{RULES_TEXT} line 208: one pass of epochs; {NO_LOG}",
    follows_from=(LOST,),
)
def one_after_another(run: LoggedRun) -> Violations:
    """Epochs and evaluations lie one after the other: none starts before the one before it has
    stopped, and none stops that has not started. (Of copies, as of ranks, the first counts.)"""
    seen = set()
    latest = None
    for event in sorted(run.of_keys(*_INTERVAL_KEYS), key=lambda event: event.order):
        # the same event of the same epoch, from another rank
        copied = event.key, epoch_of(event)
        if copied in seen:
            continue
        seen.add(copied)
        interval, _, end = event.key.partition("_")
        if end == "start":
            if latest:
                yield against(
                    event, f"comes before the end of {latest.place}", "it after that"
                )
                return
            latest = event
        elif not latest or not latest.key.startswith(interval):
            yield against(
                event, "ends nothing that is open", f"{interval}_start before it"
            )
            return
        else:
            latest = None


def _first_step_back(run: LoggedRun, key: str) -> Violations:
    """The first record of a key with a new epoch that is lower than one before it. (Records that
    are out of order by their place alone are time-goes-back.)"""
    seen = set()
    latest = None
    for epoch, event in run.numbered(key):
        if not latest or epoch >= latest[0]:
            latest = epoch, event
        elif epoch not in seen and event.time_ms >= latest[1].time_ms:
            high = f"after epoch {plain(latest[0])} (line {latest[1].line})"
            yield against(
                event, f"goes back to epoch {plain(epoch)} {high}", "epochs that rise"
            )
            return
        seen.add(epoch)


@rule(
    "MLP404",
    "epochs-out-of-order",
    POLICY,
    f"{RULES_TEXT} line 208: one pass of epochs",
    follows_from=(LOST,),
)
def epochs_rise(run: LoggedRun) -> Violations:
    """Epochs start in rising order, and no block in which epochs start claims one that a block
    before it claimed, or an earlier one."""
    yield from _first_step_back(run, "epoch_start")
    starts = [
        event for event in run.events if event.key in ("block_start", "epoch_start")
    ]
    latest = -1
    for block, after in pairwise(starts):
        # only a block whose next start is that of an epoch: epochs start in it
        if block.key == "epoch_start" or after.key == "block_start":
            continue
        claimed = epochs_of(block)
        if claimed and min(claimed) <= latest and run.duplicate_writers < 2:
            yield against(
                block,
                f"claims epoch {min(claimed)}, and a block before it epoch {latest}",
                "each epoch once",
            )
            return
        latest = max(claimed, default=latest)


@rule(
    "MLP405",
    "untrained-epoch",
    POLICY,
    f"{RULES_TEXT} lines 208, 939",
    follows_from=(LOST,),
)
def claims_were_trained(run: LoggedRun) -> Violations:
    """Every epoch from 1 to that of an evaluation has started and stopped before it. (A log without
    `epoch_start` is held to its blocks: a note where no evaluation has them, and each has a
    block.)"""
    claims = [e for e in run.evaluations if e.epoch is not None]
    untrained = [e for e in claims if (e.epoch or 0) > run.trained[e.order].reach]
    by_blocks = len(run.all("block_start")) >= len(claims)
    is_habit = by_blocks and not run.all("epoch_start") and untrained == claims
    for evaluation in untrained[:1]:
        reach = run.trained[evaluation.order].reach
        yield against(
            f"eval_accuracy (line {evaluation.line})",
            f"is of epoch {plain(evaluation.epoch or 0)}",
            f"an epoch up to {reach}, which were trained",
            "log each epoch when it starts and stops, and its evaluation after it",
            line=evaluation.line,
            severity=only_if(is_habit, NOTE),
        )


@rule("MLP406", "evaluations-out-of-order", POLICY, f"{RULES_TEXT} lines 208, 939")
def evaluations_rise(run: LoggedRun) -> Violations:
    """Epochs are evaluated in rising order."""
    return _first_step_back(run, "eval_accuracy")


@rule(
    "MLP407",
    "evaluated-again",
    POLICY,
    f"{RULES_TEXT} line 939: each epoch is evaluated once",
)
def evaluated_once(run: LoggedRun) -> Violations:
    """No epoch is evaluated again with another accuracy, more than a second later. (A log that
    gives all evaluations one number is not judged.)"""
    first: dict[float, Event] = {}
    evaluations = run.numbered("eval_accuracy")
    if len({epoch for epoch, _ in evaluations}) < 2:
        return
    for epoch, event in evaluations:
        earlier = first.setdefault(epoch, event)
        apart_ms = abs(event.time_ms - earlier.time_ms)
        if event.value != earlier.value and apart_ms > SAME_MS:
            yield against(
                event,
                f"is {shown(event.value)}, after {shown(earlier.value)} in line {earlier.line}",
                f"one evaluation of epoch {plain(epoch)}",
                "the first evaluation of an epoch counts",
            )
            return


@rule(
    "MLP411",
    "impossible-rate",
    ERROR,
    "peak of the largest published machine (config/benchmark.py)",
    follows_from=CLOCK,
)
def possible_rate(run: LoggedRun) -> Violations:
    """From run_start to the target a run trains at most at 7e7 images/s, ten times the fastest
    published run. (An epoch has ImageNet's images, in the open division as many as logged.)"""
    samples = float(benchmark.IMAGENET_TRAIN_SAMPLES)
    logged = number(run.value("train_samples")) or 0.0
    if run.division == "open" and logged > 0:
        samples = logged
    start = run.start
    target = run.target
    epochs = run.convergence_epoch
    if not start or start.time_ms <= 0 or not target or not epochs:
        return
    time_s = (target.time_ms - start.time_ms) / 1000
    if 0 <= time_s < epochs * samples / benchmark.IMPOSSIBLE_IMAGES_PER_S:
        yield against(
            "from run_start to the target:",
            f"{plain(epochs)} epochs in {time_s:.3f} s",
            f"up to {benchmark.IMPOSSIBLE_IMAGES_PER_S:.2g} images/s",
            "no machine trains faster",
            line=target.line,
        )


@rule(
    "MLP412",
    "interval-without-time",
    ERROR,
    f"peak of the largest published machine; {NO_LOG} (blocks of v0.6 do)",
    follows_from=CLOCK,
)
def intervals_take_time(run: LoggedRun) -> Violations:
    """Each epoch, evaluation and, from 0.7.0 on, block takes time; training in it at most 7e7
    images/s, ten times the fastest published run."""
    samples = number(run.value("train_samples")) or benchmark.IMAGENET_TRAIN_SAMPLES
    epoch_ms = 1000 * samples / benchmark.IMPOSSIBLE_IMAGES_PER_S
    intervals = ["epoch", "eval"]
    if run.ruleset != "0.6.0":
        intervals.append("block")
    for interval in intervals:
        started = None
        events = run.of_keys(f"{interval}_start", f"{interval}_stop")
        for event in sorted(events, key=lambda event: event.order):
            if event.key.endswith("start"):
                started = event
            elif started and min(started.time_ms, event.time_ms) > 0:
                took_ms = event.time_ms - started.time_ms
                epochs = len(epochs_of(started)) if interval != "eval" else 0
                if took_ms <= 0 or took_ms < epochs * epoch_ms:
                    yield against(
                        event,
                        f"is {plain(took_ms)} ms after {started.place}",
                        "the time that it takes",
                    )
                    return
                started = None


@rule(
    "MLP803",
    "evaluation-cadence",
    CLOSED_POLICY,
    f"{RULES_TEXT} lines 939, 443",
    rulesets=FROM_070,
    follows_from=(LOST,),
)
def cadence(run: LoggedRun) -> Violations:
    """Evaluations come every 4 epochs, the first after epoch 1 to 4."""
    evaluations = run.numbered("eval_accuracy")
    problem = cadence_problem(sorted({epoch for epoch, _ in evaluations}))
    if problem:
        yield against(
            "evaluations:",
            problem,
            f"every {benchmark.EVAL_PERIOD_EPOCHS} epochs from epoch 1-4 on",
            line=evaluations[0][1].line,
        )


def _first_epoch(run: LoggedRun) -> tuple[float, int] | None:
    """(smallest epoch number of blocks and epochs, its line); of evaluations if there are none."""
    for keys in (("block_start", "epoch_start"), ("eval_start", "eval_accuracy")):
        epochs = []
        for event in run.of_keys(*keys):
            for name in _EPOCH_NAMES[:2]:
                epoch = epoch_of(event, name)
                if epoch is not None:
                    epochs.append((epoch, event.line))
        if epochs:
            return min(epochs)
    return None


@rule("MLP804", "epochs-from-zero", CLOSED_POLICY, f"{RULES_TEXT} line 208")
def epochs_from_one(run: LoggedRun) -> Violations:
    """Epochs are numbered from 1, not from 0."""
    first = _first_epoch(run)
    if first and first[0] < 1:
        yield against(
            "the first epoch", f"has number {plain(first[0])}", "1", line=first[1]
        )


@rule(
    "MLP805", "late-first-epoch", NOTE, f"{RULES_TEXT} line 208", follows_from=(LOST,)
)
def epochs_not_later(run: LoggedRun) -> Violations:
    """The first epoch number in the log is not above 1."""
    first = _first_epoch(run)
    if first and first[0] > 1:
        yield against(
            "the first epoch number in the log",
            f"is {plain(first[0])}",
            "1",
            line=first[1],
        )


@rule("MLP806", "epoch-not-a-number", CLOSED_POLICY, f"{RULES_TEXT} line 208; {NO_LOG}")
def epochs_are_numbers(run: LoggedRun) -> Violations:
    """Epochs and counts of epochs, where an event of training or evaluation has them, are whole
    numbers from 0 to 1,000: without them there is no epoch to converge."""
    for event in run.of_keys(*_EPOCH_KEYS):
        for name in _EPOCH_NAMES:
            value = event.metadata.get(name, 0)
            epoch = number(value)
            fits = epoch is not None and epoch.is_integer()
            if not fits or not 0 <= value <= benchmark.MOST_LOGGED_EPOCHS:
                yield Setting(f"{event.place}: {name}", value, event.line).violation(
                    f"a whole number from 0 to {benchmark.MOST_LOGGED_EPOCHS:,}"
                )
                return
