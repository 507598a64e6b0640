"""Each rule: a run that it passes and one that it does not, and what the verifier says to both."""

import json
import math
import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rn50.compliance import rule as rule_module
from rn50.compliance.check_log import Check, check_log, no_milder
from rn50.compliance.limits import cadence_problem
from rn50.compliance.log_rules import RULES
from rn50.compliance.logged_run import reaches_target
from rn50.compliance.rule import FROM_070, rule
from rn50.compliance.rules_page import first_met, render_markdown
from rn50.config import benchmark
from rn50.host.finding import ERROR, NOTE, POLICY, WARNING, Finding
from rn50.logging.records import Verdict
from tests.compliance.log_text import (
    Edit,
    Record,
    Run,
    again,
    all_of,
    drop,
    find,
    good_run,
    last,
    meta,
    move,
    official,
    put,
    shift,
    write,
)


def in_seconds(run: Run) -> None:
    for record in run:
        record.time_ms /= 1000


def since_boot(run: Run) -> None:
    first_ms = run[0].time_ms
    for record in run:
        record.time_ms -= first_ms - 1000


def stamped(key: str, time_ms: float) -> Edit:
    return lambda run: setattr(find(run, key), "time_ms", time_ms)


def accuracies(change: Callable[[float], float]) -> Edit:
    def edit(run: Run) -> None:
        for record in all_of(run, "eval_accuracy"):
            record.value = change(record.value)

    return edit


def until_it_passes(run: Run) -> None:
    """Below the target, half a second later at it, two seconds later below it."""
    good = last(run, "eval_accuracy")
    index = run.index(good)
    run[index + 1 : index + 1] = [good.later(500), good.later(2000)]
    for record in (good, run[index + 2]):
        record.value = 0.758
    for record in run[index + 3 :]:
        record.time_ms += 2000


def never_reached(run: Run) -> None:
    last(run, "eval_accuracy").value = 0.7589


def twice(run: Run) -> None:
    run += [record.later(0) for record in run]


def every_eight(run: Run) -> None:
    late = {7, 15, 23, 31}
    for record in list(run):
        if record.key.startswith("eval") and record.metadata.get("epoch_num") in late:
            run.remove(record)


def renumbered(by: int) -> Edit:
    def edit(run: Run) -> None:
        for record in run:
            for name in {"epoch_num", "first_epoch_num"} & record.metadata.keys():
                record.metadata[name] += by

    return edit


def after_the_clock(run: Run) -> None:
    index = run.index(last(run, "eval_accuracy"))
    run.append(run.pop(index))


def init_of(seconds: float) -> Edit:
    def edit(run: Run) -> None:
        begin = find(run, "init_start")
        stop = find(run, "init_stop")
        by_ms = begin.time_ms + 1000 * seconds - stop.time_ms
        for record in run[run.index(stop) :]:
            record.time_ms += by_ms

    return edit


def wrong_name(run: Run) -> None:
    for record in run:
        if record.metadata.get("tensor", "").startswith("stage1_unit1_bnsc"):
            record.metadata["tensor"] = "another"


def added(key: str, value: object) -> Edit:
    """A record before the last epoch_stop."""

    def edit(run: Run) -> None:
        stop = last(run, "epoch_stop")
        run.insert(run.index(stop), Record(key, value, stop.time_ms, ranks=8))

    return edit


def ranks(run: Run) -> None:
    run[:] = [record.later(rank) for record in run for rank in range(4)]


def nth(
    key: str, number: int, value: Any = ..., by_ms: float = 0, **metadata: object
) -> Edit:
    """Change the value, stamp or metadata of one record."""

    def edit(run: Run) -> None:
        record = all_of(run, key)[number]
        if value is not ...:
            record.value = value
        record.time_ms += by_ms
        record.metadata |= metadata

    return edit


def at_once(run: Run) -> None:
    """The target right after run_start."""
    index = run.index(find(run, "run_start"))
    target = last(run, "eval_accuracy")
    run.remove(target)
    target.time_ms = run[index].time_ms + 1
    run.insert(index + 1, target)


def a_thousand_times_faster(run: Run) -> None:
    start = find(run, "run_start").time_ms
    for record in run:
        if record.time_ms > start:
            record.time_ms = start + (record.time_ms - start) / 1000


def evaluated_again(run: Run) -> None:
    good = last(run, "eval_accuracy")
    early = good.later(-5000)
    early.value = 0.7584
    run.insert(run.index(good), early)


def killed_in_init(run: Run) -> None:
    """Killed before run_start, and started again in the same file an hour later."""
    anew = [record.later(3.6e6) for record in run]
    run[run.index(find(run, "run_start")) :] = anew


def mixed(run: Run) -> None:
    """A second run five seconds later, that writes to the same file."""
    run += [record.later(5000) for record in run]
    run.sort(key=lambda record: record.time_ms)


def hardly_trained(run: Run) -> None:
    """One block of three epochs, then evaluations alone, in a log without epochs."""
    index = run.index(find(run, "eval_start"))
    run[index:] = [record for record in run[index:] if record.key != "block_start"]
    drop("epoch_start", "epoch_stop")(run)


def one_epoch_blocks(run: Run) -> None:
    """No epochs are logged, and every block has one: the habit of an implementation."""
    drop("epoch_start", "epoch_stop")(run)
    meta("block_start", "epoch_count", 1)(run)


def three_equal(run: Run) -> None:
    for number in (2, 3, 4):
        nth("eval_accuracy", number, value=0.70126)(run)


def hidden_stop(run: Run) -> None:
    """The first of two ends under another name."""
    aborted = last(run, "run_stop").later(0)
    aborted.key = "run_st\u043ep"
    aborted.metadata["status"] = "aborted"
    run.insert(-1, aborted)


def in_ten_minutes(edit: Edit) -> Edit:
    """A run so long that 1 % of it is more than a second."""

    def edited(run: Run) -> None:
        shift("run_stop", 560_000)(run)
        edit(run)

    return edited


SECONDS_LATE = in_ten_minutes(nth("eval_accuracy", -1, by_ms=562_000))
SECONDS_EARLY = in_ten_minutes(nth("run_start", 0, by_ms=2000))


def back_at_each_evaluation(run: Run) -> None:
    """The clock goes back 0.95 s at each of nine evaluations."""
    by_ms = 0.0
    for record in run:
        by_ms += 950 * (record.key == "eval_accuracy")
        record.time_ms -= by_ms


def passing_by_itself(run: Run) -> None:
    """The evaluation at target has no events of its own."""
    run.remove(last(run, "eval_start"))
    run.remove(last(run, "eval_stop"))


def after_half_epochs(run: Run) -> None:
    for record in run:
        if record.key.startswith("eval"):
            record.metadata["epoch_num"] = record.metadata.get("epoch_num", 0) - 0.5


def over(images: int) -> Edit:
    """Accuracies that are counts over so many images, all or odd ones of them."""
    return accuracies(lambda v: (round(v * images) // 2 * 2 + 1) / images)


def is_evaluation_after(epoch: int, record: Record) -> bool:
    of_epoch = record.metadata.get("epoch_num") == epoch
    return of_epoch and record.key.startswith("eval")


def evaluated_at(position: int) -> Edit:
    """The first evaluation before run_start, or after run_stop."""

    def edit(run: Run) -> None:
        early = [record for record in run if is_evaluation_after(3, record)]
        for record in early:
            run.remove(record)
        index = len(run)
        if position == 0:
            index = run.index(find(run, "run_start"))
        stamp_ms = run[min(index, len(run) - 1)].time_ms
        for number, record in enumerate(early):
            record.time_ms = stamp_ms + number
        run[index:index] = early

    return edit


def rearranged(*order: int) -> Edit:
    """The records of the first block, from its start on, in another order; stamps stay with their
    places. (It has three epochs and an evaluation, then its stop.)"""

    def edit(run: Run) -> None:
        start = run.index(find(run, "block_start"))
        block = run[start : start + len(order)]
        stamps = [record.time_ms for record in block]
        run[start : start + len(order)] = [block[number] for number in order]
        for record, stamp in zip(run[start:], stamps, strict=False):
            record.time_ms = stamp

    return edit


def at_a_stroke(interval: str, took_ms: float) -> Edit:
    """The last epoch, evaluation or block takes so long."""

    def edit(run: Run) -> None:
        start = last(run, f"{interval}_start")
        stop = last(run, f"{interval}_stop")
        for record in run[run.index(start) + 1 : run.index(stop) + 1]:
            record.time_ms = min(record.time_ms, start.time_ms + took_ms)

    return edit


class Case(NamedTuple):
    """An edit of a good run that breaks a rule. `official`: the official checker's verdict;
    `severity`: if it is another than the rule's."""

    rule: str
    edit: Edit
    official: str = "PASS"
    severity: str = ""
    ruleset: str = "4.0.0"
    division: str = "closed"
    optimizer: str = "lars"


def edit_of(example: str) -> Edit:
    """What the example in a rule's docstring does to a good run."""
    names = re.findall(r"`([^`]+)`", example)
    if example.startswith("no "):
        return drop(*names)
    if " after " in example:
        late, early = names
        return move(early, successor=late)
    described = json.loads(names[0])

    def edit(run: Run) -> None:
        for record in all_of(run, described["key"]):
            record.value = described.get("value", record.value)
            record.metadata = described.get("metadata", record.metadata)

    return edit


OTHERWISE = {
    "run-not-successful": "PASS",
    "invalid-submission-value": "CRASH",
    "invalid-optimizer": "CRASH",
}
"""What the official checker says to an example, if not FAIL to an error and PASS to the rest."""
EXAMPLES = tuple(
    Case(
        registered.name,
        edit_of(registered.example),
        OTHERWISE.get(
            registered.name, "FAIL" if registered.severity == ERROR else "PASS"
        ),
    )
    for registered in first_met()
)
"""The examples in the rules' docstrings."""
CASES = (
    *EXAMPLES,
    Case("impossible-stamp", in_seconds),
    Case("impossible-stamp", stamped("run_start", -1)),
    Case("impossible-stamp", stamped("seed", 1.7e18)),
    Case("impossible-stamp", since_boot, severity=POLICY),
    Case("two-runs", killed_in_init, "FAIL"),
    Case("two-runs", twice, "FAIL"),
    Case("two-runs", mixed, "FAIL"),
    Case("look-alike-name", hidden_stop),
    Case("look-alike-name", meta("seed", "epoch\u00a0num", 3)),
    Case(
        "missing-submission-key", drop("submission_poc_name"), "FAIL", ruleset="0.6.0"
    ),
    Case("invalid-submission-value", put("submission_org", ""), "FAIL"),
    Case(
        "invalid-submission-value",
        put("submission_status", "preview"),
        "FAIL",
        ruleset="0.6.0",
    ),
    Case("invalid-submission-value", put("submission_platform", " "), severity=POLICY),
    Case("misplaced-run-stop", meta("run_stop", "status", ...), "FAIL"),
    Case("misplaced-run-stop", move("run_stop", "run_start"), "FAIL"),
    Case("misplaced-run-start", move("run_start", "init_stop"), "FAIL"),
    Case("misplaced-init", move("init_start", "run_start"), "FAIL"),
    Case("missing-epoch-metadata", meta("block_start", "epoch_count", 0), "FAIL"),
    Case("missing-epoch-metadata", move("block_start", "run_start"), "FAIL"),
    Case("missing-samples", put("train_samples", ""), "FAIL"),
    Case("missing-accuracy", drop("eval_accuracy"), "FAIL"),
    Case("missing-accuracy", put("eval_accuracy", "0.8"), "CRASH"),
    Case("missing-accuracy", nth("eval_accuracy", 0, value=math.inf)),
    Case(
        "missing-accuracy",
        nth("eval_accuracy", 0, value=None),
        severity=POLICY,
        ruleset="0.6.0",
    ),
    Case("several-clocks", again("run_stop", metadata={"status": "aborted"})),
    Case("several-clocks", again("run_stop", 60000)),
    Case("different-values", again("global_batch_size", value=1536), "FAIL"),
    Case("copied-records", ranks),
    Case("copied-records", again("gradient_accumulation_steps")),
    Case("run-time-not-positive", shift("run_stop", -92664000)),
    Case("target-outside-run", after_the_clock),
    Case("target-off-the-clock", nth("eval_accuracy", -1, by_ms=-3600000.0)),
    Case("target-off-the-clock", SECONDS_LATE),
    Case("target-not-reached", never_reached, "FAIL"),
    Case("target-not-reached", never_reached, "FAIL", ruleset="0.7.0", division="open"),
    Case("target-not-reached", never_reached, severity=POLICY, ruleset="0.6.0"),
    Case("target-not-reached", accuracies(lambda value: math.nan), "FAIL"),
    Case("target-not-reached", accuracies(lambda value: 76.0), "FAIL", division="open"),
    Case("run-not-successful", meta("run_stop", "status", "SUCCESS")),
    Case(
        "run-not-successful",
        meta("run_stop", "status", "aborted"),
        "FAIL",
        ruleset="0.6.0",
    ),
    Case("ranks-disagree", until_it_passes),
    Case("ranks-disagree", again("eval_accuracy", value=0.7)),
    Case("trained-past-target", nth("eval_accuracy", -2, value=0.7595)),
    Case("unpaired-events", again("epoch_start")),
    Case("unpaired-events", passing_by_itself, severity=POLICY),
    Case("target-before-training", at_once),
    Case("off-the-clock", SECONDS_EARLY),
    Case("off-the-clock", evaluated_at(0)),
    Case("off-the-clock", evaluated_at(-1)),
    *(
        Case("overlapping-epochs", rearranged(0, *order))
        for order in (
            (1, 3, 4, 2),
            (1, 3, 5, 2, 4, 6),
            (1, 2, 3, 4, 5, 7, 8, 6),
            (2, 1),
        )
    ),
    *(
        Case("interval-without-time", at_a_stroke(key, took_ms))
        for key in ("epoch", "block", "eval")
        for took_ms in (-1, 0)
    ),
    Case("interval-without-time", at_a_stroke("epoch", 18)),
    Case("interval-without-time", at_a_stroke("block", 73)),
    *(
        Case("impossible-accuracy", nth("eval_accuracy", 2, value=value))
        for value in (-1, 0, 1, 32.174)
    ),
    Case("epochs-out-of-order", nth("epoch_start", 4, epoch_num=40)),
    Case("epochs-out-of-order", nth("block_start", 4, first_epoch_num=12)),
    Case("untrained-epoch", nth("eval_accuracy", 4, epoch_num=27)),
    Case("untrained-epoch", drop("epoch_stop")),
    Case("untrained-epoch", hardly_trained),
    Case("untrained-epoch", one_epoch_blocks, severity=NOTE),
    Case("evaluations-out-of-order", nth("eval_accuracy", 4, epoch_num=5)),
    Case("evaluated-again", evaluated_again),
    Case("impossible-rate", a_thousand_times_faster),
    Case("init-too-long", init_of(1800), "FAIL"),
    Case("init-too-long", move("submission_division", "run_start"), "FAIL"),
    Case("zero-stamp", stamped("opt_name", 0)),
    Case("zero-stamp", stamped("eval_accuracy", 0), severity=ERROR),
    Case("time-goes-back", shift("run_start", -30000)),
    Case("time-goes-back", shift("run_start", -20), severity=NOTE),
    Case("time-goes-back", back_at_each_evaluation),
    Case("late-run-start", shift("run_start", 1800000)),
    Case("run-start-before-init-stop", shift("run_start", -30000)),
    Case("cache-not-cleared", put("cache_clear", None), severity=NOTE),
    Case("resumed-run", added("run_resumed", 1200)),
    Case("wall-clock-jump", added("wall_clock_jump", -3600.5)),
    Case("invalid-cache-clear-060", put("cache_clear", None), "FAIL", ruleset="0.6.0"),
    Case("missing-event-060", drop("block_stop"), "FAIL", ruleset="0.6.0"),
    Case(
        "invalid-hyperparameter-060", put("model_bn_span", 0), "FAIL", ruleset="0.6.0"
    ),
    Case("invalid-hyperparameter-060", drop("lars_epsilon"), "FAIL", ruleset="0.6.0"),
    Case(
        "invalid-hyperparameter-060", put("opt_name", "adam"), "FAIL", ruleset="0.6.0"
    ),
    Case("invalid-optimizer", drop("opt_name"), "FAIL"),
    Case("invalid-batch-size", drop("global_batch_size"), "FAIL"),
    Case("invalid-batch-size", put("global_batch_size", 10**400)),
    Case("invalid-batch-size", put("global_batch_size", 7.5), severity=POLICY),
    Case("invalid-batch-size", put("global_batch_size", 2000000), severity=POLICY),
    Case("missing-hyperparameter", drop("model_bn_span"), "FAIL", optimizer="sgd"),
    Case("lars-decay-power", put("lars_opt_learning_rate_decay_poly_power", 1), "FAIL"),
    Case("decay-shape", added("opt_learning_rate_decay_shape", "cosine")),
    Case(
        "decay-shape",
        added("opt_learning_rate_decay_from", "run_start"),
        severity=POLICY,
    ),
    Case("lars-epsilon", put("lars_epsilon", 1e-09), "FAIL"),
    Case("weight-decay", put("lars_opt_weight_decay", 0), "FAIL"),
    Case(
        "sgd-base-learning-rate",
        put("sgd_opt_base_learning_rate", 0.0005),
        "FAIL",
        optimizer="sgd",
    ),
    Case(
        "invalid-accumulation",
        drop("gradient_accumulation_steps"),
        "FAIL",
        ruleset="1.0.0",
    ),
    Case("invalid-accumulation", put("gradient_accumulation_steps", 0), "FAIL"),
    *(
        Case(
            "invalid-accumulation",
            put("gradient_accumulation_steps", steps),
            severity=POLICY,
        )
        for steps in (5, 5000, 3264.0 * 2)
    ),
    Case(
        "invalid-accumulation", put("gradient_accumulation_steps", 0.5), severity=POLICY
    ),
    Case(
        "missing-weight-initialization",
        drop("weights_initialization"),
        "FAIL",
        ruleset="2.1.0",
    ),
    Case("weight-initialization-names", wrong_name, "FAIL", ruleset="1.1.0"),
    Case("lars-momentum", put("lars_opt_momentum", 0.95)),
    Case("sgd-momentum", put("sgd_opt_momentum", 0.95), optimizer="sgd"),
    Case(
        "sgd-decay-power",
        put("sgd_opt_learning_rate_decay_poly_power", 1),
        optimizer="sgd",
    ),
    Case("invalid-schedule-length", put("lars_opt_learning_rate_warmup_epochs", -5)),
    Case("invalid-schedule-length", put("lars_opt_base_learning_rate", 0)),
    Case(
        "invalid-schedule-length",
        put("sgd_opt_learning_rate_decay_steps", 0.5),
        optimizer="sgd",
    ),
    Case("invalid-bn-span", put("model_bn_span", 3265), optimizer="sgd"),
    Case("invalid-bn-span", put("model_bn_span", 0), optimizer="sgd"),
    Case("accuracy-not-a-count", accuracies(lambda value: round(value, 3))),
    *(
        Case("accuracy-not-a-count", over(images), severity=POLICY)
        for images in (49_984, 50_176, 100_000)
    ),
    Case("accuracy-not-a-count", over(51_200)),
    *(
        Case(
            "accuracy-not-a-count",
            nth("eval_accuracy", -1, value=value),
            severity=POLICY,
        )
        for value in (0.75901, 0.759013, 38087 / 50_176)
    ),
    Case("accuracy-not-a-count", over(49_984), division="open"),
    Case("unlikely-accuracy", nth("eval_accuracy", 0, value=0.61)),
    Case("unlikely-accuracy", three_equal),
    Case("label-smoothing", added("model_label_smoothing", 0.2)),
    Case("train-samples", put("train_samples", 10), severity=NOTE, division="open"),
    Case("evaluation-cadence", every_eight),
    Case("epochs-from-zero", renumbered(-1)),
    Case("late-first-epoch", renumbered(1)),
    Case("epoch-not-a-number", meta("eval_accuracy", "epoch_num", "x")),
    Case("epoch-not-a-number", after_half_epochs),
    Case("epoch-not-a-number", nth("epoch_start", 7, epoch_num=-3)),
)
SEVERITIES = {rule.name: rule.severity for rule in RULES}
OF_RECORDS = {"broken-record", "joined-records"}
"""Rules with a test in test_records.py."""


def checked(folder: Path, run: Run, ruleset: str = "4.0.0") -> Check:
    path = write(folder / "result_0.txt", run, ruleset)
    return check_log(path, ruleset, official=False)


@pytest.mark.parametrize("division", ["closed", "open"])
@pytest.mark.parametrize("optimizer", ["lars", "sgd"])
@pytest.mark.parametrize("ruleset", benchmark.RULESETS)
def test_a_good_run_breaks_no_rule(
    tmp_path: Path, ruleset: str, optimizer: str, division: str
) -> None:
    if ruleset == "0.6.0" and optimizer == "sgd":
        pytest.skip("v0.6 SGD has keys of its own")
    check = checked(tmp_path, good_run(ruleset, division, optimizer), ruleset)
    assert check.findings == ()
    assert check.verdict == "PASS"
    assert official(tmp_path / "result_0.txt", ruleset) == "PASS"


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c.rule}-{c.ruleset}-{c.official}"
)
def test_a_broken_rule_is_found(tmp_path: Path, case: Case) -> None:
    run = good_run(case.ruleset, case.division, case.optimizer)
    case.edit(run)
    check = checked(tmp_path, run, case.ruleset)
    severity = case.severity or SEVERITIES[case.rule]
    assert (case.rule, severity) in {(f.name, f.severity) for f in check.findings}
    assert official(tmp_path / "result_0.txt", case.ruleset) == case.official
    if case.official != "PASS" or severity == ERROR:
        assert check.verdict == "FAIL"
    elif severity == POLICY:
        assert check.verdict in ("POLICY", "FAIL")


def test_copies_by_ranks_are_no_equal_accuracies(tmp_path: Path) -> None:
    run = good_run()
    ranks(run)
    names = {finding.name for finding in checked(tmp_path, run).findings}
    assert "copied-records" in names
    assert "unlikely-accuracy" not in names


def test_one_count_alone_is_not_another_image_set(tmp_path: Path) -> None:
    run = good_run()
    put("eval_samples", 49999)(run)
    assert checked(tmp_path, run).cause.endswith("expected 50000")


@pytest.mark.parametrize("ruleset", FROM_070)
def test_of_two_faults_neither_hides_the_other(tmp_path: Path, ruleset: str) -> None:
    """Ours fails where the official checker fails. (The nesting of 0.6.0 is left to that.)"""
    rng = random.Random(ruleset)
    seen_by_official = [case for case in CASES if case.official == "FAIL"]
    failed = 0
    for _ in range(12):
        run = good_run(ruleset, optimizer=rng.choice(["lars", "sgd"]))
        edits = [rng.choice(seen_by_official), rng.choice(CASES)]
        rng.shuffle(edits)
        # the first may leave nothing to the second
        with suppress(IndexError):
            for case in edits:
                case.edit(run)
        check = checked(tmp_path, run, ruleset)
        if official(tmp_path / "result_0.txt", ruleset) != "PASS":
            failed += 1
            assert check.verdict in ("FAIL", "CANNOT_READ"), edits
    assert failed > 6


def broken(folder: Path, *edits: Edit, optimizer: str = "lars") -> dict[str, str]:
    """The severity of each rule that an edited run breaks."""
    run = good_run(optimizer=optimizer)
    for edit in edits:
        edit(run)
    return {finding.name: finding.severity for finding in checked(folder, run).findings}


def test_a_value_that_is_right_in_other_digits(tmp_path: Path) -> None:
    printed = 0.8999999761581421
    for optimizer in ("lars", "sgd"):
        momentum = put(f"{optimizer}_opt_momentum", printed)
        assert not broken(tmp_path, momentum, optimizer=optimizer)
    assert not broken(tmp_path, put("seed", 10**400))


@pytest.mark.parametrize(
    ("batch", "severity"),
    [(31_999, POLICY), (32_000, NOTE), (32_767, NOTE), (32_768, None)],
)
def test_lars_momentum_is_free_from_a_batch_of_32k(
    tmp_path: Path, batch: int, severity: str | None
) -> None:
    momentum = put("lars_opt_momentum", 0.94)
    findings = broken(tmp_path, momentum, put("global_batch_size", batch))
    assert findings.get("lars-momentum") == severity


@pytest.mark.parametrize(("count", "is_broken"), [(0, False), (-1, True)])
def test_a_block_may_count_samples_in_place_of_epochs(
    tmp_path: Path, count: int, is_broken: bool
) -> None:
    no_epochs = meta("block_start", "epoch_count", ...)
    findings = broken(tmp_path, no_epochs, meta("block_start", "samples_count", count))
    assert ("missing-epoch-metadata" in findings) == is_broken


def test_limits_at_their_edge() -> None:
    assert reaches_target(0.759)
    assert not reaches_target(math.nextafter(0.759, 0))
    assert not reaches_target(1.0)
    # epoch 0: an evaluation before training
    assert cadence_problem([0, 3, 7, 11]) is None


@pytest.mark.parametrize(
    ("ruleset", "division", "minutes"),
    [
        ("0.7.0", "closed", 20),
        ("1.1.0", "open", 30),
        ("2.0.0", "closed", 30),
        ("2.0.0", "open", 240),
    ],
)
def test_how_long_initialisation_may_take(
    ruleset: str, division: str, minutes: int
) -> None:
    assert benchmark.init_limit_s(ruleset, division) == 60 * minutes


def test_epochs_may_be_counted_from_0_and_evaluations_from_1(tmp_path: Path) -> None:
    def count_from_0(run: Run) -> None:
        for record in run:
            if record.key.startswith("epoch_"):
                record.metadata["epoch_num"] -= 1

    assert "untrained-epoch" not in broken(tmp_path, count_from_0)


@pytest.mark.parametrize("key", ["init_start", "seed", "epoch_start"])
@pytest.mark.parametrize(("worst_ms", "severity"), [(900, None), (1100, POLICY)])
def test_records_of_many_ranks_have_no_order(
    tmp_path: Path, key: str, worst_ms: int, severity: str | None
) -> None:
    """Each of 512 ranks logs one, up to so much late. Before run_start that is a note at most."""
    rng = random.Random(key)

    def by_ranks(run: Run) -> None:
        record = find(run, key)
        index = run.index(record)
        for later_record in run[index:]:
            later_record.time_ms += 1500
        late = [record.later(-rng.randrange(worst_ms)) for _ in range(510)]
        run[index:index] = [record, *late, record.later(-worst_ms)]

    if key != "epoch_start":
        severity = NOTE if worst_ms < 1000 else None
    assert broken(tmp_path, by_ranks).get("time-goes-back") == severity


# --- one cause -----------------------------------------------------------------------------------


def explained(check: Check) -> dict[str, str]:
    """The name of each finding, and of the one that explains it."""
    names = {finding.id: finding.name for finding in check.findings}
    return {f.name: names.get(f.caused_by, "") for f in check.findings}


def an_hour_back(run: Run) -> None:
    for record in run[run.index(find(run, "run_start")) + 1 :]:
        record.time_ms -= 3.6e6


@pytest.mark.parametrize(
    ("edit", "name", "cause"),
    [
        (drop("run_start"), "misplaced-run-stop", "misplaced-run-start"),
        (drop("run_start"), "missing-epoch-metadata", "misplaced-run-start"),
        (mixed, "several-clocks", "two-runs"),
        (an_hour_back, "off-the-clock", "run-time-not-positive"),
        (stamped("init_start", 1.7e9), "init-too-long", "impossible-stamp"),
    ],
)
def test_what_explains_the_rest_is_the_cause(
    tmp_path: Path, edit: Edit, name: str, cause: str
) -> None:
    run = good_run()
    edit(run)
    check = checked(tmp_path, run)
    assert explained(check)[name] == cause
    assert explained(check)[cause] == ""
    assert check.cause == next(f.message for f in check.findings if f.name == cause)


def test_no_verdict_is_milder_than_the_official_one() -> None:
    reasons = (
        "WARNING -  Required EXACTLY_ONE",
        "CHECK for 'init_stop' failed in line 26: {}",
    )
    failed = Verdict("FAIL", messages=reasons)
    note, joined = (
        Finding("MLP1", NOTE, 1, "", "", "", name=name)
        for name in ("copied-records", "joined-records")
    )
    first, second = no_milder((note,), failed)
    assert (first.name, first.severity) == ("official-checker-fails", ERROR)
    assert "init_stop" in first.message
    assert second == note
    error = note._replace(severity=ERROR)
    for findings in ((error, note), (joined,)):
        assert no_milder(findings, failed) == findings
    for official_verdict in (None, Verdict("PASS"), Verdict("NOT_RUN")):
        assert no_milder((note,), official_verdict) == (note,)


# --- the register --------------------------------------------------------------------------------


def test_a_code_judges_one_thing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_module, "_REGISTERED", {})
    for judges in ("log", "config"):
        rule("MLP999", "name", NOTE, "a test", judges=judges)(iter)
    with pytest.raises(ValueError, match="twice"):
        rule("MLP999", "name", NOTE, "a test", judges="log, config")(iter)


def test_every_rule_has_a_case_a_name_and_a_source() -> None:
    assert SEVERITIES.keys() == {case.rule for case in CASES} | OF_RECORDS
    assert len(SEVERITIES) == len(RULES)
    for registered in RULES:
        assert registered.description.endswith((".", ")", '"'))
        assert registered.source


def test_the_page_of_rules_is_up_to_date(root: Path) -> None:
    assert len(first_met()) == 20
    page = (root / "docs/rules.md").read_text()
    assert page == render_markdown(), "rn50 log rules --write docs/rules.md"


def test_a_warning_is_not_why_a_run_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warning = Finding("MLP999", WARNING, 1, "even", "odd", "is odd", name="odd")
    monkeypatch.setattr("rn50.compliance.check_log.apply", lambda _: [warning])
    check = checked(tmp_path, good_run(), "4.0.0")
    assert check.verdict == "PASS"
    assert check.findings == (warning,)
    assert "odd" not in check.cause


def test_rules_follow_from_rules() -> None:
    names = {registered.name for registered in RULES}
    for registered in RULES:
        assert names.issuperset(registered.follows_from), registered.name
