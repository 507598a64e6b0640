"""Rules on the result: did the run reach the target, and does the log say so without doubt."""

import math
from collections import defaultdict
from collections.abc import Iterator

from ...config import benchmark
from ...host.finding import ERROR, NOTE, POLICY, Finding, plain, printable, shown
from ..logged_run import (
    SAME_MS,
    Evaluation,
    LoggedRun,
    as_setting,
    epoch_of,
    reaches_target,
)
from ..rule import (
    CHECKER,
    CLOCK,
    LOST,
    NO_LOG,
    RULES_TEXT,
    Violations,
    against,
    only_if,
    rule,
)

_TARGET = f"in [{benchmark.TARGET_ACCURACY}, {plain(benchmark.HIGHEST_ACCURACY)})"


def _at(evaluation: Evaluation) -> str:
    if evaluation.epoch is None:
        return f"line {evaluation.line}"
    return f"epoch {plain(evaluation.epoch)}"


def _off_the_clock(evaluation: Evaluation, actual: str) -> Finding:
    return against(
        f"{plain(evaluation.accuracy)} ({_at(evaluation)}, line {evaluation.line})",
        actual,
        "the target between run_start and run_stop",
        line=evaluation.line,
    )


@rule(
    "MLP301",
    "run-time-not-positive",
    ERROR,
    "a clock that cannot be right",
    follows_from=CLOCK,
)
def clock_forward(run: LoggedRun) -> Violations:
    """run_stop is stamped later than run_start."""
    run_ms = run.run_ms
    stop = run.stop
    if run_ms is None or not stop or run_ms > 0:
        return
    actual = "has run_start's stamp"
    if run_ms:
        actual = f"is {-run_ms / 1000:g} s before run_start"
    yield against(stop, actual, "it later")


@rule(
    "MLP304",
    "target-not-reached",
    ERROR,
    f"{RULES_TEXT} lines 441, 491; {CHECKER}, closed_resnet.yaml",
    follows_from=(LOST, "missing-accuracy"),
    why=(
        "The time to train is the time to this target. A run that stops below it is no "
        "result; one such run in five is allowed."
    ),
    example='`{"key": "eval_accuracy", "value": 0.7456}`',
)
def converged(run: LoggedRun) -> Violations:
    """The target was reached: an eval_accuracy in [0.759, 1) (open from 1.0.0 on: one below 1)."""
    numeric = [
        event
        for event in run.all("eval_accuracy")
        if isinstance(event.value, int | float)
    ]
    if not numeric:
        return  # missing-accuracy says it
    severity = only_if(run.ruleset == "0.6.0", POLICY)  # its checker has no threshold
    if run.needs_target:
        # Without an end, or with a torn record, it is a consequence.
        explained = not run.stop or "eval_accuracy" in run.log.lost_keys
        if explained or any(reaches_target(event.value) for event in numeric):
            return
    elif any(event.value < benchmark.HIGHEST_ACCURACY for event in numeric):
        return
    best = run.best
    last = numeric[-1]
    if not best or not last.value < benchmark.HIGHEST_ACCURACY:
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
    if not outside or not run.start or not run.stop:
        return
    side = f"before {run.start.place}"
    if outside[0].order > run.stop.order:
        side = f"after {run.stop.place}"
    yield _off_the_clock(outside[0], f"is logged {side}")


@rule(
    "MLP303",
    "target-off-the-clock",
    ERROR,
    f"{RULES_TEXT} lines 441, 491",
    follows_from=CLOCK,
)
def target_stamped_on_the_clock(run: LoggedRun) -> Violations:
    """An evaluation at target is stamped between run_start and run_stop, to a second or 1 % of the
    run, whichever is less."""
    start = run.start
    stop = run.stop
    if not run.needs_target or not start or not stop or (run.run_ms or 0) <= 0:
        return
    stamped = [e for e in run.evaluations_at_target if e.time_ms != 0]
    begin_ms = start.time_ms - run.slack_ms
    end_ms = stop.time_ms + run.slack_ms
    on_the_clock = [e for e in stamped if begin_ms <= e.time_ms <= end_ms]
    if not stamped or on_the_clock or start.time_ms <= 0:
        return
    stamp_ms = stamped[0].time_ms
    away = f"{(start.time_ms - stamp_ms) / 1000:.3f} s before {start.place}"
    if stamp_ms > end_ms:
        away = f"{(stamp_ms - stop.time_ms) / 1000:.3f} s after {stop.place}"
    yield _off_the_clock(stamped[0], f"is stamped {away}")


@rule(
    "MLP305",
    "run-not-successful",
    ERROR,
    f"{RULES_TEXT} lines 441, 509; {CHECKER}, 0.6.0 common.yaml",
    why="The official score takes no other run. A run that was stopped or failed says `aborted`.",
    example='`{"key": "run_stop", "metadata": {"status": "aborted"}}`',
)
def success(run: LoggedRun) -> Violations:
    """The status of run_stop is success, spelled so."""
    for event in run.all("run_stop"):
        status = event.metadata.get("status", "success")
        if status != "success":
            status_text = (
                printable(status)[:40] if isinstance(status, str) else shown(status)
            )
            hint = "it must be lower case" if status_text.lower() == "success" else ""
            yield against(event, f"says {status_text}", "success", hint)
            return


@rule(
    "MLP306",
    "ranks-disagree",
    ERROR,
    f"{RULES_TEXT} line 443: one accuracy of the whole system",
    follows_from=CLOCK,
)
def ranks_agree(run: LoggedRun) -> Violations:
    """Several accuracies of one evaluation agree about the target; where all do, it is a note."""
    groups = defaultdict(list)
    for evaluation in run.timed_evaluations:
        if evaluation.epoch is not None:
            groups[evaluation.epoch].append(evaluation)
    for epoch, evaluations in groups.items():
        # an epoch that is evaluated again later is evaluated-again
        for group in _at_once(evaluations):
            accuracies = sorted(e.accuracy for e in group)
            if accuracies[0] == accuracies[-1]:
                continue
            span = f"{plain(accuracies[0])}-{plain(accuracies[-1])}"
            actual = f"has {len(group)} accuracies {span}"
            good = sum(map(reaches_target, accuracies))
            split = 0 < good < len(group)
            if split:
                actual += f", {good} of them at target"
            yield against(
                f"epoch {plain(epoch)}",
                actual,
                "one",
                "sum the counts of all ranks and log them once",
                line=group[0].line,
                severity=only_if(not split or not run.needs_target, NOTE),
            )


def _at_once(evaluations: list[Evaluation]) -> Iterator[list[Evaluation]]:
    """Evaluations that lie within a second, of their earliest."""
    group: list[Evaluation] = []
    for evaluation in sorted(evaluations, key=lambda e: e.time_ms):
        # from the earliest, so that a group does not creep on by a second each
        if group and evaluation.time_ms - group[0].time_ms > SAME_MS:
            yield group
            group = []
        group.append(evaluation)
    yield group


@rule("MLP307", "trained-past-target", NOTE, f"{RULES_TEXT} line 491")
def stops_at_target(run: LoggedRun) -> Violations:
    """Training ends with the first evaluation that reaches the target, that of the run's config
    where it is higher."""
    target = run.end
    if run.own_target.problem:
        yield against(
            "config.yaml",
            f"is left out: {run.own_target.problem}",
            "the config with the run's target",
        )
    if not target or not run.needs_target:
        return
    later = [
        e
        for e in run.timed_evaluations
        if e.order > target.order and e.epoch != target.epoch
    ]
    if later:
        yield against(
            "target",
            f"reached at {_at(target)}, training went on to {_at(later[-1])}",
            "run_stop at the target",
            "the time is overstated and the RCP test made easier",
            line=target.line,
        )


@rule(
    "MLP309",
    "unpaired-events",
    NOTE,
    "intervals of a successful run",
    follows_from=(LOST,),
)
def pairs(run: LoggedRun) -> Violations:
    """Starts and stops of blocks, epochs and evaluations pair up in a successful run. If the
    evaluation at target alone has none, that is policy: its time belongs to the run."""
    target = run.target
    if not run.converged:
        return
    for key in ("eval_start", "eval_stop"):
        epochs = set(map(epoch_of, run.all(key)))
        if target and epochs and target.epoch not in epochs:
            yield against(
                f"the evaluation at target (line {target.line})",
                f"has no {key}",
                "its own",
                line=target.line,
                severity=POLICY,
            )
    for interval in ("block", "epoch", "eval"):
        starts = run.all(f"{interval}_start")
        stops = run.all(f"{interval}_stop")
        if starts and stops and len(starts) != len(stops):
            actual = f"against {len(stops)} {stops[0].key}"
            last = starts[-1]
            yield against(f"{len(starts)} {last.key}", actual, "pairs", line=last.line)


_FEW = 1 / 16
"""A share of the images. That accuracies of four decimals, as most logs have them, are all counts
over so few is no chance."""
_FLOAT32_IMAGES = 0.004
"""A count of images from a fraction that was rounded to float32."""
_SUMMED_IMAGES = 0.05
"""The same from a sum of rounded fractions: up to 0.03 in the logs of Graphcore."""
_PADDED_IMAGES = 51_200
"""Habana's 40 logs of v2.0 to v3.1 count over these, 25 batches of 2,048 of which the last is
padded; no other published log from 1.0.0 on counts over another number than 50,000."""
_EARLY_EPOCH = 4
_EARLY_ACCURACY = 0.6
"""The best published accuracy at epoch 4 is below 0.6."""


def _evaluates_imagenet(run: LoggedRun) -> bool:
    """Whether the whole set of ImageNet is evaluated (else eval-samples says it)."""
    return run.value("eval_samples") in (None, benchmark.IMAGENET_EVAL_SAMPLES)


def _fractions(run: LoggedRun, evaluations: list[Evaluation]) -> list[Evaluation]:
    """Those evaluations of the whole set of ImageNet that are fractions."""
    if not _evaluates_imagenet(run):
        return []
    return [e for e in evaluations if 0 < e.accuracy < benchmark.HIGHEST_ACCURACY]


@rule("MLP811", "impossible-accuracy", POLICY, f"a share of images; {NO_LOG}")
def accuracies_are_shares(run: LoggedRun) -> Violations:
    """Every accuracy is a fraction from 0 to 1; of ImageNet's images neither 0 nor 1, as a network
    that learns nothing is right about one class."""
    of_imagenet = _evaluates_imagenet(run)
    for evaluation in run.evaluations:
        accuracy = evaluation.accuracy
        if not 0 <= accuracy <= 1 or (of_imagenet and accuracy in (0, 1)):
            yield against(
                f"eval_accuracy (line {evaluation.line})",
                f"is {plain(accuracy)}",
                "a fraction",
                line=evaluation.line,
            )
            return


@rule(
    "MLP812",
    "accuracy-not-a-count",
    NOTE,
    f"{RULES_TEXT} line 939; none of 1,435 published logs from 1.0.0 on breaks it",
)
def accuracies_are_counts(run: LoggedRun) -> Violations:
    """Accuracies are counts over the 50,000 images at the digits printed (policy from 1.0.0 on; all
    over 51,200 are a note), and three or more are not all over a small part of them."""
    evaluations = _fractions(run, run.evaluations)
    accuracies = [evaluation.accuracy for evaluation in evaluations]
    samples = benchmark.IMAGENET_EVAL_SAMPLES
    padded = all(
        _off(accuracy, _PADDED_IMAGES) < _FLOAT32_IMAGES for accuracy in accuracies
    )
    for evaluation in evaluations:
        if _off(evaluation.accuracy, samples) > _SUMMED_IMAGES:
            strict = run.at_least("1.0.0") and not padded
            yield against(
                f"eval_accuracy (line {evaluation.line})",
                f"is {plain(evaluation.accuracy)}",
                f"a count over {samples:,} images",
                line=evaluation.line,
                severity=only_if(strict, POLICY),
            )
            return
    images = samples // math.gcd(
        samples, *(round(accuracy * samples) for accuracy in accuracies)
    )
    if len(evaluations) >= 3 and images <= _FEW * samples:
        yield against(
            "accuracies:",
            f"all {len(evaluations)} are counts over {images:,} images",
            f"counts over {samples:,}",
            line=evaluations[-1].line,
        )


def _off(accuracy: float, images: int) -> float:
    """How far a fraction of images is from a whole number of them."""
    count = accuracy * images
    return abs(count - round(count))


@rule("MLP813", "unlikely-accuracy", NOTE, "published logs")
def likely_accuracies(run: LoggedRun) -> Violations:
    """Three accuracies in a row are not equal, and none up to epoch 4 is above 0.6. (Of copies, as
    of ranks, the first counts.)"""
    evaluations = _fractions(run, run.curve)
    accuracies = [evaluation.accuracy for evaluation in evaluations]
    for index, evaluation in enumerate(evaluations[:-2]):
        if len(set(accuracies[index : index + 3])) == 1:
            yield against(
                "accuracies:",
                f"{plain(evaluation.accuracy)} three times in a row",
                "ones that differ",
                line=evaluation.line,
            )
            break
    for evaluation in evaluations:
        early = evaluation.epoch is not None and evaluation.epoch <= _EARLY_EPOCH
        if early and evaluation.accuracy > _EARLY_ACCURACY:
            subject = f"{plain(evaluation.accuracy)} (line {evaluation.line})"
            limit = f"at most {_EARLY_ACCURACY}"
            yield against(subject, f"at {_at(evaluation)}", limit, line=evaluation.line)
            return
