"""Rules on the result: did the run reach the target, and does the log say so without doubt."""

import math
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from ...config import benchmark
from ...config.finding import ERROR, NOTE, POLICY, Finding, plain, printable, shown
from ..logged_run import (
    SAME_MS,
    Evaluation,
    LoggedRun,
    as_setting,
    epoch_of,
    reaches_target,
)
from ..rule import CHECKER, RULES_TEXT, Violations, against, only_if, rule

_TARGET = f"in [{benchmark.TARGET_ACCURACY}, {plain(benchmark.HIGHEST_ACCURACY)})"


def _at(evaluation: Evaluation) -> str:
    if evaluation.epoch is None:
        return f"line {evaluation.line}"
    return f"epoch {plain(evaluation.epoch)}"


def _off_the_clock(one: Evaluation, found: str) -> Finding:
    subject = f"{plain(one.accuracy)} ({_at(one)}, line {one.line})"
    expected = "the target between run_start and run_stop"
    return against(subject, found, expected, line=one.line)


@rule("MLP301", "run-time-not-positive", ERROR, "a clock that cannot be right")
def clock_forward(run: LoggedRun) -> Violations:
    """run_stop is stamped later than run_start."""
    run_ms = run.run_ms
    stop = run.stop
    if run_ms is None or stop is None or run_ms > 0:
        return
    found = (
        f"is {-run_ms / 1000:g} s before run_start"
        if run_ms
        else "has run_start's stamp"
    )
    yield against(stop, found, "it later")


@rule(
    "MLP304",
    "target-not-reached",
    ERROR,
    f"{RULES_TEXT} lines 441, 491; {CHECKER}, closed_resnet.yaml",
)
def converged(run: LoggedRun) -> Violations:
    """The target was reached: an eval_accuracy in [0.759, 1) (open from 1.0.0 on: one below 1).

    Why: The time to train is the time to this target. A run that stops below it is no result;
    one such run in five is allowed.

    Example: `{"key": "eval_accuracy", "value": 0.7456}`
    """
    events = run.all("eval_accuracy")
    numeric = [event for event in events if isinstance(event.value, int | float)]
    if not numeric:
        return  # missing-accuracy says it
    best = run.best
    last = numeric[-1]
    severity = only_if(run.ruleset == "0.6.0", POLICY)  # its checker has no threshold
    if run.needs_target:
        # Without an end, or with a torn record, it is a consequence.
        explained = run.stop is None or "eval_accuracy" in run.log.lost_keys
        if explained or any(reaches_target(event.value) for event in numeric):
            return
    elif any(event.value < benchmark.HIGHEST_ACCURACY for event in numeric):
        return
    if best is None or not last.value < benchmark.HIGHEST_ACCURACY:
        yield as_setting(last).violation("a fraction below 1", severity=severity)
        return
    yield against(
        "did not converge: best",
        f"{plain(best.accuracy)} at {_at(best)}",
        _TARGET,
        line=best.line,
        advice="one such run in five is allowed",
        severity=severity,
    )


@rule("MLP302", "target-outside-run", ERROR, f"{RULES_TEXT} lines 441, 491")
def target_on_the_clock(run: LoggedRun) -> Violations:
    """The target was reached between run_start and run_stop."""
    if not run.needs_target or run.ruleset == "0.6.0" or run.evaluations_at_target:
        return
    outside = [e for e in run.evaluations if reaches_target(e.accuracy)]
    if not outside or run.start is None or run.stop is None:
        return
    place = f"before {run.start.place}"
    if outside[0].order > run.stop.order:
        place = f"after {run.stop.place}"
    yield _off_the_clock(outside[0], f"is logged {place}")


@rule("MLP303", "target-off-the-clock", ERROR, f"{RULES_TEXT} lines 441, 491")
def target_stamped_on_the_clock(run: LoggedRun) -> Violations:
    """An evaluation at target is stamped between run_start and run_stop, to a second or 1 % of the
    run, whichever is less."""
    start = run.start
    stop = run.stop
    if not run.needs_target or start is None or stop is None or (run.run_ms or 0) <= 0:
        return
    stamped = [e for e in run.evaluations_at_target if e.time_ms != 0]
    begin_ms = start.time_ms - run.slack_ms
    end_ms = stop.time_ms + run.slack_ms
    if (
        not stamped
        or start.time_ms <= 0
        or any(begin_ms <= e.time_ms <= end_ms for e in stamped)
    ):
        return
    one = stamped[0]
    away = f"{(start.time_ms - one.time_ms) / 1000:.3f} s before {start.place}"
    if one.time_ms > end_ms:
        away = f"{(one.time_ms - stop.time_ms) / 1000:.3f} s after {stop.place}"
    yield _off_the_clock(one, f"is stamped {away}")


@rule(
    "MLP305",
    "run-not-successful",
    ERROR,
    f"{RULES_TEXT} lines 441, 509; {CHECKER}, 0.6.0 common.yaml",
)
def success(run: LoggedRun) -> Violations:
    """The status of run_stop is success, spelled so.

    Why: The official score takes no other run. A run that was stopped or failed says `aborted`.

    Example: `{"key": "run_stop", "metadata": {"status": "aborted"}}`
    """
    for event in run.all("run_stop"):
        status = event.metadata.get("status", "success")
        if status != "success":
            text = printable(status)[:40] if isinstance(status, str) else shown(status)
            hint = "it must be lower case" if text.lower() == "success" else ""
            yield against(event, f"says {text}", "success", hint)
            return


@rule(
    "MLP306",
    "ranks-disagree",
    ERROR,
    f"{RULES_TEXT} line 443: one accuracy of the whole system",
)
def ranks_agree(run: LoggedRun) -> Violations:
    """Several accuracies of one evaluation agree about the target; where all do, it is a note."""
    groups = defaultdict(list)
    for evaluation in run.timed_evaluations:
        if evaluation.epoch is not None:
            groups[evaluation.epoch].append(evaluation)
    for epoch, group in (
        (n, one) for n, all_ in groups.items() for one in _at_once(all_)
    ):
        low = min(e.accuracy for e in group)
        high = max(e.accuracy for e in group)
        if low == high:
            continue
        good = sum(reaches_target(e.accuracy) for e in group)
        split = 0 < good < len(group)
        found = f"has {len(group)} accuracies {plain(low)}-{plain(high)}"
        if split:
            found += f", {good} of them at target"
        severity = only_if(not split or not run.needs_target, NOTE)
        why = "sum the counts of all ranks and log them once"
        line = group[0].line
        yield against(
            f"epoch {plain(epoch)}", found, "one", why, line=line, severity=severity
        )


def _at_once(evaluations: list[Evaluation]) -> Iterator[list[Evaluation]]:
    """Evaluations that lie within a second, of their earliest."""
    group: list[Evaluation] = []
    for one in sorted(evaluations, key=lambda e: e.time_ms):
        if group and one.time_ms - group[0].time_ms > SAME_MS:
            yield group
            group = []
        group.append(one)
    yield group


@rule("MLP307", "trained-past-target", NOTE, f"{RULES_TEXT} line 491")
def stops_at_target(run: LoggedRun) -> Violations:
    """Training ends with the first evaluation that reaches the target."""
    passing = run.evaluations_at_target
    if not passing or not run.needs_target:
        return
    later = [e for e in run.timed_evaluations if e.order > passing[0].order]
    later = [e for e in later if e.epoch != passing[0].epoch]
    if later:
        found = f"reached at {_at(passing[0])}, training went on to {_at(later[-1])}"
        why = "the time is overstated and the RCP test made easier"
        yield against(
            "target", found, "run_stop at the target", why, line=passing[0].line
        )


@rule("MLP309", "unpaired-events", NOTE, "intervals of a successful run")
def pairs(run: LoggedRun) -> Violations:
    """In a successful run starts and stops of blocks, epochs and evaluations pair up. If the
    evaluation at target alone has none, that is policy: its time belongs to the run."""
    if not run.converged:
        return
    target = run.target
    for key in ("eval_start", "eval_stop"):
        epochs = {epoch_of(event) for event in run.all(key)}
        if target is not None and epochs and target.epoch not in epochs:
            subject = f"the evaluation at target (line {target.line})"
            yield against(
                subject, f"has no {key}", "its own", line=target.line, severity=POLICY
            )
    for kind in ("block", "epoch", "eval"):
        start = f"{kind}_start"
        stop = f"{kind}_stop"
        starts = run.all(start)
        stops = run.all(stop)
        if starts and stops and len(starts) != len(stops):
            found = f"against {len(stops)} {stop}"
            yield against(
                f"{len(starts)} {start}", found, "pairs", line=starts[-1].line
            )


_FEW = 1 / 16
"""Of the images. That accuracies of four decimals, as most logs have them, are all counts over so
few is no chance."""
_MOST = 0.9
"""A last batch that is left out has less than the rest of the images."""
_ARITHMETIC = 1e-12
"""Rounding of a quotient that was never shortened."""
_EARLY_EPOCH = 4
_EARLY_ACCURACY = 0.6
"""The best published accuracy at epoch 4 is below 0.6."""


def _fractions(run: LoggedRun) -> list[Evaluation]:
    """The first evaluation of each epoch, where the whole set of ImageNet is evaluated (else
    eval-samples says it)."""
    if run.value("eval_samples") not in (None, benchmark.IMAGENET_EVAL_SAMPLES):
        return []
    first: dict[object, Evaluation] = {}
    for one in run.timed_evaluations:
        if 0 < one.accuracy < benchmark.HIGHEST_ACCURACY:
            first.setdefault(one.order if one.epoch is None else one.epoch, one)
    return list(first.values())


@rule("MLP812", "accuracy-not-a-count", NOTE, f"{RULES_TEXT} line 939")
def accuracies_are_counts(run: LoggedRun) -> Violations:
    """Three accuracies or more are not all counts over a small part of the 50,000 images; if they
    are over somewhat fewer, as where a last batch is left out, that is policy."""
    evaluations = _fractions(run)
    most = benchmark.IMAGENET_EVAL_SAMPLES
    quotients = [Fraction(e.accuracy).limit_denominator(most) for e in evaluations]
    images = math.lcm(*(quotient.denominator for quotient in quotients))
    pairs = zip(evaluations, quotients, strict=True)
    exact = all(abs(e.accuracy - quotient) <= _ARITHMETIC for e, quotient in pairs)
    left_out = _MOST * most < images < most
    if len(evaluations) >= 3 and exact and (left_out or images <= _FEW * most):
        yield against(
            "accuracies:",
            f"all {len(evaluations)} are counts over {images:,} images",
            f"counts over {most:,}",
            line=evaluations[-1].line,
            severity=only_if(left_out, POLICY),
        )


@rule("MLP813", "unlikely-accuracy", NOTE, "published logs")
def likely_accuracies(run: LoggedRun) -> Violations:
    """Three accuracies in a row are not equal, and none up to epoch 4 is above 0.6."""
    evaluations = _fractions(run)
    for first, second, third in zip(
        evaluations, evaluations[1:], evaluations[2:], strict=False
    ):
        if first.accuracy == second.accuracy == third.accuracy:
            text = f"{plain(first.accuracy)} three times in a row"
            yield against("accuracies:", text, "ones that differ", line=first.line)
            break
    for evaluation in evaluations:
        early = evaluation.epoch is not None and evaluation.epoch <= _EARLY_EPOCH
        if early and evaluation.accuracy > _EARLY_ACCURACY:
            subject = f"{plain(evaluation.accuracy)} (line {evaluation.line})"
            most = f"at most {_EARLY_ACCURACY}"
            yield against(subject, f"at {_at(evaluation)}", most, line=evaluation.line)
            return
