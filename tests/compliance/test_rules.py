"""Each rule: a run that it passes and one that it does not, and what the verifier says to both."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pytest

from rn50.compliance.check_log import Check, check_log
from rn50.compliance.limits import cadence_problem
from rn50.compliance.log_rules import RULES
from rn50.compliance.logged_run import reaches_target
from rn50.compliance.rules_page import render_markdown
from rn50.config.finding import ERROR, NOTE, POLICY
from tests.compliance.log_text import (
    Edit,
    Record,
    Run,
    again,
    drop,
    find,
    good_run,
    last,
    meta,
    move,
    put,
    shift,
    write,
)

ROOT = Path(__file__).resolve().parents[2]


def in_seconds(run: Run) -> None:
    for record in run:
        record.time_ms /= 1000


def since_boot(run: Run) -> None:
    first_ms = run[0].time_ms
    for record in run:
        record.time_ms -= first_ms - 1000


def one_in_seconds(key: str) -> Edit:
    def edit(run: Run) -> None:
        find(run, key).time_ms /= 1000

    return edit


def an_early_init_stop(run: Run) -> None:
    """Fifty minutes of initialisation, and a copy of its end that stands early."""
    again("init_stop")(run)
    late = last(run, "init_stop")
    for record in run[run.index(late) :]:
        record.time_ms += 3.0e6


def smooth_again(run: Run) -> None:
    for value in (0.3, 0.1):  # the one at fault comes second
        record = Record("lars_opt_label_smoothing", value, run[20].time_ms)
        run.insert(21, record)


def until_it_passes(run: Run) -> None:
    """Below the target, half a second later at it, two seconds later below it."""
    good = last(run, "eval_accuracy")
    at = run.index(good)
    for by_ms, value in ((2000, 0.758), (500, good.value)):
        run.insert(at + 1, Record("eval_accuracy", value, good.time_ms + by_ms, epoch_num=35))
    good.value = 0.758
    for record in run[at + 3 :]:
        record.time_ms += 2000


def nothing_trained(run: Run) -> None:
    """One block without an epoch, and nothing else that trains."""
    first = find(run, "block_start")
    first.metadata = {"samples_count": 0}
    run[:] = [
        r for r in run if r is first or r.key not in ("block_start", "epoch_start", "epoch_stop")
    ]


def in_no_time_on_few(run: Run) -> None:
    """A run of 40 ms, on one image, its target at an epoch that is no number."""
    begin_ms = find(run, "run_start").time_ms
    for record in run[run.index(find(run, "run_start")) :]:
        record.time_ms = begin_ms + (record.time_ms - begin_ms) / 1000
    find(run, "train_samples").value = 1
    last(run, "eval_accuracy").metadata["epoch_num"] = None


class Case(NamedTuple):
    """An edit of a good run that breaks a rule. `official`: does the official checker pass it?"""

    rule: str
    severity: str
    edit: Edit
    official: str
    words: str
    ruleset: str = "4.0.0"
    division: str = "closed"
    optimizer: str = "lars"


def percent(run: Run) -> None:
    for record in run:
        if record.key == "eval_accuracy":
            record.value *= 100


def never_reached(run: Run) -> None:
    last(run, "eval_accuracy").value = 0.7589


def gone_bad(run: Run) -> None:
    for record in run:
        if record.key == "eval_accuracy":
            record.value = float("nan")


def twice(run: Run) -> None:
    run += [Record(r.key, r.value, r.time_ms, **r.metadata) for r in run]


def eight_ranks(run: Run) -> None:
    good = last(run, "eval_accuracy")
    at = run.index(good)
    good.value = 0.7564
    for rank in range(1, 8):
        value = 0.7592 if rank == 7 else 0.757
        run.insert(at + 1, Record("eval_accuracy", value, good.time_ms + 1, epoch_num=35))


def every_eight(run: Run) -> None:
    late = {7, 15, 23, 31}
    run[:] = [
        r for r in run if not (r.key.startswith("eval") and r.metadata.get("epoch_num") in late)
    ]


def goes_on(run: Run) -> None:
    for record in run:
        if record.key == "eval_accuracy" and record.metadata["epoch_num"] == 31:
            record.value = 0.7595


def from_zero(run: Run) -> None:
    for record in run:
        for name in ("epoch_num", "first_epoch_num"):
            if name in record.metadata:
                record.metadata[name] -= 1


def later_start(run: Run) -> None:
    for record in run:
        for name in ("epoch_num", "first_epoch_num"):
            if name in record.metadata:
                record.metadata[name] += 1


def after_the_clock(run: Run) -> None:
    record = last(run, "eval_accuracy")
    run.remove(record)
    run.append(record)


def init_of(seconds: float) -> Edit:
    def edit(run: Run) -> None:
        begin, stop = find(run, "init_start"), find(run, "init_stop")
        by_ms = begin.time_ms + 1000 * seconds - stop.time_ms
        for record in run[run.index(stop) :]:
            record.time_ms += by_ms

    return edit


def wrong_name(run: Run) -> None:
    for record in run:
        if record.metadata.get("tensor", "").startswith("stage1_unit1_bnsc"):
            record.metadata["tensor"] = record.metadata["tensor"].replace("bnsc", "bn_sc")


def hide(run: Run) -> None:
    run.insert(20, Record("duplicate_opt_name", "sgd", run[19].time_ms))


def goes_on_from_a_checkpoint(run: Run) -> None:
    stop = last(run, "epoch_stop")
    run.insert(run.index(stop), Record("run_resumed", 1200, stop.time_ms, ranks=8))


def sees_the_wall_clock_jump(run: Run) -> None:
    stop = last(run, "epoch_stop")
    run.insert(run.index(stop), Record("wall_clock_jump", -3600.5, stop.time_ms))


def smooth(run: Run) -> None:
    run.insert(20, Record("model_label_smoothing", 0.2, run[19].time_ms))


def skip_epoch(run: Run) -> None:
    for record in run:
        if record.metadata.get("epoch_num") == 2:
            record.metadata["epoch_num"] = 5


def ranks(run: Run) -> None:
    run[:] = [
        Record(r.key, r.value, r.time_ms + rank, **r.metadata) for r in run for rank in range(4)
    ]


def nth(run: Run, key: str, number: int) -> Record:
    return [record for record in run if record.key == key][number]


def one(key: str, number: int, **changes: object) -> Edit:
    """Change the value, stamp or metadata of one record."""

    def edit(run: Run) -> None:
        record = nth(run, key, number)
        for name, new in changes.items():
            if name == "value":
                record.value = new
            elif name == "by_ms":
                record.time_ms += new  # type: ignore[operator]
            else:
                record.metadata[name] = new

    return edit


def at_once(run: Run) -> None:
    """The target right after run_start."""
    at = run.index(find(run, "run_start"))
    target = last(run, "eval_accuracy")
    run.remove(target)
    target.time_ms = run[at].time_ms + 1
    run.insert(at + 1, target)


def faster(by: float) -> Edit:
    def edit(run: Run) -> None:
        start = find(run, "run_start").time_ms
        for record in run:
            if record.time_ms > start:
                record.time_ms = start + (record.time_ms - start) / by

    return edit


def evaluated_again(run: Run) -> None:
    good = last(run, "eval_accuracy")
    copy = Record("eval_accuracy", 0.7584, good.time_ms - 5_000, **good.metadata)
    run.insert(run.index(good), copy)


def clock_after_epochs(run: Run) -> None:
    start = find(run, "run_start")
    run.remove(start)
    at = run.index(nth(run, "epoch_stop", 1)) + 1
    start.time_ms = run[at - 1].time_ms
    run.insert(at, start)


def no_time(run: Run) -> None:
    nth(run, "epoch_stop", 12).time_ms = nth(run, "epoch_start", 12).time_ms + 1


def hardly_trained(run: Run) -> None:
    """One block of three epochs, then evaluations alone."""
    first = find(run, "eval_start")
    at = run.index(first)
    run[at:] = [r for r in run[at:] if not r.key.startswith(("block_start", "epoch"))]


def of_images(images: int) -> Edit:
    """All accuracies are odd counts over so many images."""

    def edit(run: Run) -> None:
        for record in run:
            if record.key == "eval_accuracy":
                record.value = (round(record.value * images / 2) * 2 + 1) / images

    return edit


def three_equal(run: Run) -> None:
    for number in (3, 4):
        nth(run, "eval_accuracy", number).value = nth(run, "eval_accuracy", 2).value


def soon_evaluated(run: Run) -> None:
    """The first evaluation, of epoch 3, 5 ms after run_start."""
    start, stop = find(run, "run_start"), find(run, "eval_accuracy")
    by_ms = stop.time_ms - start.time_ms - 5
    for record in run[run.index(start) + 1 : run.index(stop)]:
        record.time_ms = start.time_ms + 1
    for record in run[run.index(stop) :]:
        record.time_ms -= by_ms


def claim(epoch: int, block_end: int) -> Edit:
    """The last evaluation and block claim more than the epochs that are logged."""

    def edit(run: Run) -> None:
        for key in ("eval_start", "eval_stop", "eval_accuracy"):
            last(run, key).metadata["epoch_num"] = epoch
        block = last(run, "block_start").metadata
        block["epoch_count"] = block_end - block["first_epoch_num"]

    return edit


def blocks_alone(run: Run) -> None:
    """No epochs are logged, and the fifth block has one epoch of the four that are claimed."""
    run[:] = [r for r in run if not r.key.startswith("epoch")]
    nth(run, "block_start", 4).metadata["epoch_count"] = 1


def one_epoch_blocks(run: Run) -> None:
    """No epochs are logged, and every block has one: the habit of an implementation."""
    run[:] = [r for r in run if not r.key.startswith("epoch")]
    meta("block_start", "epoch_count", 1)(run)


def renamed(key: str, name: str) -> Edit:
    def edit(run: Run) -> None:
        last(run, key).key = name

    return edit


def hidden_stop(run: Run) -> None:
    """The first of two ends under another name."""
    stop = last(run, "run_stop")
    aborted = Record("run_st\u043ep", None, stop.time_ms, status="aborted")
    run.insert(run.index(stop), aborted)


def killed_in_init(run: Run) -> None:
    """Killed before run_start, and started again in the same file an hour later."""
    again = [Record(r.key, r.value, r.time_ms + 3.6e6, **r.metadata) for r in run]
    run[run.index(find(run, "run_start")) :] = again


def mixed(run: Run) -> None:
    """A second run five seconds later, that writes to the same file."""
    run += [Record(r.key, r.value, r.time_ms + 5000, **r.metadata) for r in run]
    run.sort(key=lambda record: record.time_ms)


CASES = (
    Case("not-a-number", POLICY, put("gradient_accumulation_steps", True), "PASS", "is true"),
    Case("not-a-number", POLICY, put("global_batch_size", True), "PASS", "is true"),
    Case("not-a-number", POLICY, put("lars_epsilon", False), "PASS", "is false"),
    Case("not-a-number", POLICY, one("eval_accuracy", 3, value=True), "PASS", "is true"),
    Case(
        "not-a-number",
        POLICY,
        put("lars_opt_momentum", math.inf),
        "PASS",
        "is inf, expected a number",
    ),
    Case(
        "target-off-the-clock",
        ERROR,
        one("eval_accuracy", -1, by_ms=3.6e6),
        "PASS",
        "after run_stop",
    ),
    Case(
        "target-off-the-clock",
        ERROR,
        one("eval_accuracy", -1, by_ms=-3.6e6),
        "PASS",
        "before run_sta",
    ),
    Case("target-before-training", ERROR, at_once, "PASS", "before any training"),
    Case("impossible-rate", ERROR, faster(1000), "PASS", "35 epochs in 0.0"),
    Case("epoch-before-run-start", POLICY, clock_after_epochs, "FAIL", "2.001 s before run_start"),
    Case(
        "epoch-before-run-start",
        POLICY,
        one("run_start", 0, by_ms=2500),
        "PASS",
        "s before run_start",
    ),
    Case(
        "impossible-epoch", POLICY, one("epoch_start", 7, epoch_num=-3), "PASS", "epoch_num is -3"
    ),
    Case("impossible-epoch", POLICY, one("eval_stop", 3, epoch_num=1e9), "PASS", "no epoch"),
    Case("impossible-epoch", POLICY, one("epoch_stop", 3, epoch_num=3.5), "PASS", "a part of"),
    Case(
        "epochs-out-of-order", POLICY, one("eval_accuracy", 4, epoch_num=5), "PASS", "goes back to"
    ),
    Case(
        "epochs-out-of-order",
        POLICY,
        evaluated_again,
        "PASS",
        "epoch 35 is evaluated again up to",
    ),
    Case(
        "untrained-epoch",
        POLICY,
        one("eval_accuracy", 4, epoch_num=27),
        "PASS",
        "has come to epoch 19",
    ),
    Case("untrained-epoch", POLICY, hardly_trained, "PASS", "has come to epoch 3"),
    Case(
        "indivisible-batch",
        POLICY,
        put("global_batch_size", 2_000_000),
        "PASS",
        "all images of an epoch",
    ),
    Case("impossible-rate", POLICY, no_time, "PASS", "epoch 13: 1 epoch in 0.001"),
    Case(
        "accuracy-out-of-range",
        POLICY,
        one("eval_accuracy", 1, value=-0.2),
        "PASS",
        "-0.2, no frac",
    ),
    Case(
        "accuracy-out-of-range",
        POLICY,
        one("eval_accuracy", 1, value=1.2),
        "PASS",
        "1.2, no fraction",
    ),
    Case(
        "accuracy-out-of-range",
        NOTE,
        one("eval_accuracy", 1, value=math.nan),
        "PASS",
        "NaN, no frac",
    ),
    Case(
        "accuracy-not-a-count",
        POLICY,
        one("eval_accuracy", -1, value=0.75913),
        "PASS",
        "1 of 9 accuracies are no counts",
    ),
    Case("impossible-rate", POLICY, soon_evaluated, "PASS", "from run_start to the evaluation"),
    Case("untrained-epoch", POLICY, claim(39, 40), "PASS", "of epoch 39, but training has come to"),
    Case("untrained-epoch", POLICY, drop("epoch_stop"), "PASS", "has come to epoch 0"),
    Case(
        "untrained-epoch",
        POLICY,
        one("block_start", 4, epoch_count=40),
        "PASS",
        "claims 40 epochs from 16, but epoch 20 has not started",
    ),
    Case(
        "untrained-epoch",
        POLICY,
        blocks_alone,
        "PASS",
        "epoch 19, but training has come to epoch 16",
    ),
    Case("untrained-epoch", NOTE, one_epoch_blocks, "PASS", "epoch 3, but training has come to"),
    Case("accuracy-not-a-count", POLICY, of_images(49_984), "PASS", "over 49,984 images, not 50,"),
    Case("accuracy-not-a-count", NOTE, of_images(51_200), "PASS", "are no counts over 50,000"),
    Case("unlikely-accuracy", NOTE, of_images(2500), "PASS", "counts over 2,500 images"),
    Case("unlikely-accuracy", NOTE, three_equal, "PASS", "three evaluations in a row"),
    Case("unlikely-accuracy", NOTE, one("eval_accuracy", 0, value=0.61), "PASS", "0.61 at epoch 3"),
    Case("invalid-bn-span", POLICY, put("model_bn_span", 3265), "PASS", "1 to", optimizer="sgd"),
    Case("invalid-bn-span", POLICY, put("model_bn_span", 0), "PASS", "1 to", optimizer="sgd"),
    Case(
        "invalid-schedule-length",
        POLICY,
        put("opt_learning_rate_warmup_epochs", 2.5),
        "PASS",
        "an integer from 0 on",
        optimizer="sgd",
    ),
    Case("look-alike-name", POLICY, hidden_stop, "PASS", "'run_st\\u043ep' (has U+043E CYRILLIC"),
    Case("look-alike-name", POLICY, renamed("run_stop", "run_stop\u200b"), "FAIL", "U+200B ZERO"),
    Case("look-alike-name", POLICY, meta("seed", "epoch\u00a0num", 3), "PASS", "like epoch_num"),
    Case(
        "invalid-optimizer", ERROR, put("opt_name", "l\u0430rs"), "NOT_RUN", "'l\\u0430rs' (has U+"
    ),
    Case(
        "run-not-successful",
        ERROR,
        meta("run_stop", "status", "succes\u0455"),
        "PASS",
        "'succes\\u0455' (has U+0455",
    ),
    Case("two-runs", ERROR, killed_in_init, "FAIL", "two runs in one file: lines 1-20"),
    Case("two-runs", ERROR, mixed, "FAIL", "their records mixed: run_start in lines"),
    Case("missing-submission-key", ERROR, drop("submission_org"), "FAIL", "no submission_org"),
    Case(
        "missing-submission-key",
        ERROR,
        drop("submission_poc_name"),
        "FAIL",
        "no submission_poc_name",
        "0.6.0",
    ),
    Case("invalid-submission-value", ERROR, put("submission_org", ""), "FAIL", "is empty"),
    Case(
        "invalid-submission-value",
        ERROR,
        put("submission_status", "preview"),
        "FAIL",
        "cloud",
        "0.6.0",
    ),
    Case(
        "invalid-submission-value",
        ERROR,
        put("submission_division", "Closed"),
        "CRASH",
        'did you mean "closed"',
    ),
    Case(
        "invalid-submission-value",
        ERROR,
        put("submission_benchmark", "resnet50"),
        "CRASH",
        "resnet",
    ),
    Case("two-runs", ERROR, twice, "FAIL", "two runs in one file: lines 1-"),
    Case("no-run-stop", ERROR, drop("run_stop"), "FAIL", "did not finish: no run_stop. Best"),
    Case("misplaced-run-stop", ERROR, meta("run_stop", "status", ...), "FAIL", "has no status"),
    Case(
        "misplaced-run-stop", ERROR, move("run_stop", "run_start"), "FAIL", "before any run_start"
    ),
    Case("misplaced-run-start", ERROR, drop("run_start"), "FAIL", "no run_start"),
    Case("misplaced-run-start", ERROR, move("run_start", "init_stop"), "FAIL", "before init_stop"),
    Case("misplaced-init", ERROR, drop("init_start"), "FAIL", "no init_start"),
    Case("misplaced-init", ERROR, drop("init_stop"), "FAIL", "no init_stop"),
    Case("misplaced-init", ERROR, move("init_start", "run_start"), "FAIL", "init_start"),
    Case("resumed-run", POLICY, goes_on_from_a_checkpoint, "PASS", "resumed after step 1200"),
    Case("wall-clock-jump", NOTE, sees_the_wall_clock_jump, "PASS", "jumped by -3600.5 s"),
    Case("init-too-long", ERROR, init_of(1800), "FAIL", "took 1800.000 s, must be below 1800 s"),
    Case("init-too-long", NOTE, init_of(1799.999), "PASS", "1 ms below the limit"),
    Case("init-too-long", ERROR, init_of(1200), "FAIL", "below 1200 s", "0.7.0"),
    Case("init-too-long", ERROR, init_of(1200), "FAIL", "below 1200 s", "0.6.0"),
    Case("init-too-long", ERROR, init_of(14_400), "FAIL", "below 14400 s", "2.0.0", "open"),
    Case(
        "init-too-long",
        ERROR,
        move("submission_division", "run_start"),
        "FAIL",
        "logged after init_stop",
    ),
    Case(
        "several-clocks",
        ERROR,
        again("run_stop", metadata={"status": "aborted"}),
        "PASS",
        "aborted",
    ),
    Case("several-clocks", ERROR, again("run_stop", 60_000), "PASS", "60.000 s apart"),
    Case("different-values", ERROR, again("global_batch_size", value=1536), "FAIL", "1536"),
    Case("copied-records", NOTE, ranks, "PASS", "4 ranks wrote the same records"),
    Case("copied-records", NOTE, again("submission_org"), "PASS", "submission_org"),
    Case("no-cache-clear", ERROR, drop("cache_clear"), "FAIL", "no cache_clear"),
    Case(
        "missing-epoch-event",
        ERROR,
        drop("block_start", "epoch_start"),
        "FAIL",
        "neither block_start nor epoch_start",
    ),
    Case(
        "missing-epoch-metadata",
        ERROR,
        meta("eval_start", "epoch_num", ...),
        "FAIL",
        "no epoch_num",
    ),
    Case("missing-epoch-metadata", ERROR, meta("block_start", "epoch_count", 0), "FAIL", "is 0"),
    Case(
        "missing-epoch-metadata",
        ERROR,
        move("block_start", "run_start"),
        "FAIL",
        "before run_start",
    ),
    Case("missing-samples", ERROR, drop("eval_samples"), "FAIL", "no eval_samples"),
    Case("missing-samples", ERROR, put("train_samples", ""), "FAIL", "is empty"),
    Case("missing-accuracy", ERROR, drop("eval_accuracy"), "FAIL", "no eval_accuracy"),
    Case("missing-accuracy", ERROR, put("eval_accuracy", None), "CRASH", "is null"),
    Case("missing-accuracy", ERROR, put("eval_accuracy", "0.8"), "CRASH", 'text "0.8"'),
    Case("hidden-value", NOTE, hide, "PASS", "duplicate_opt_name"),
    Case(
        "run-time-not-positive", ERROR, shift("run_stop", -92_664_000), "PASS", "before run_start"
    ),
    Case(
        "target-not-reached", ERROR, never_reached, "FAIL", "best 0.7589 at epoch 35, target 0.759"
    ),
    Case("target-not-reached", ERROR, percent, "FAIL", "looks like percent"),
    Case("target-not-reached", ERROR, gone_bad, "FAIL", "NaN"),
    Case("target-not-reached", ERROR, never_reached, "FAIL", "best 0.7589", "0.7.0", "open"),
    Case("target-not-reached", POLICY, never_reached, "PASS", "best 0.7589", "0.6.0"),
    Case("target-not-reached", ERROR, percent, "FAIL", "fraction", "4.0.0", "open"),
    Case("target-outside-run", ERROR, after_the_clock, "PASS", "is logged after run_stop"),
    Case(
        "run-not-successful", ERROR, meta("run_stop", "status", "aborted"), "PASS", "says aborted"
    ),
    Case(
        "run-not-successful",
        ERROR,
        meta("run_stop", "status", "SUCCESS"),
        "PASS",
        "must be lower case",
    ),
    Case(
        "run-not-successful",
        ERROR,
        meta("run_stop", "status", "aborted"),
        "FAIL",
        "says aborted",
        "0.6.0",
    ),
    Case(
        "contradicting-status",
        NOTE,
        put("run_stop", {"success": False}),
        "PASS",
        "only the status counts",
        "2.0.0",
    ),
    Case("ranks-disagree", ERROR, eight_ranks, "PASS", "8 accuracies 0.7564-0.7592, only 1"),
    Case(
        "trained-past-target",
        NOTE,
        goes_on,
        "PASS",
        "reached at epoch 31, training went on to epoch 35",
    ),
    Case(
        "time-goes-back",
        POLICY,
        shift("run_start", -30_000),
        "PASS",
        "time goes back 1 x, most by 29.99",
    ),
    Case("time-goes-back", NOTE, shift("run_start", -20), "PASS", "0.01 s"),
    Case(
        "time-goes-back",
        NOTE,
        shift("run_start", -30_000),
        "PASS",
        "time goes back",
        "4.0.0",
        "open",
    ),
    Case(
        "zero-stamp",
        NOTE,
        lambda run: setattr(find(run, "opt_name"), "time_ms", 0),
        "PASS",
        "opt_name",
    ),
    Case(
        "zero-stamp",
        ERROR,
        lambda run: setattr(find(run, "eval_accuracy"), "time_ms", 0),
        "PASS",
        "eval_accuracy",
    ),
    Case("zero-stamp", ERROR, in_seconds, "PASS", "seconds where milliseconds are expected"),
    Case("zero-stamp", POLICY, since_boot, "PASS", "in 1970"),
    Case(
        "zero-stamp", ERROR, one_in_seconds("init_start"), "FAIL", "init_start (line 7) is stamped"
    ),
    Case("late-run-start", POLICY, shift("run_start", 1_800_000), "PASS", "the limit is 1800 s"),
    Case(
        "run-start-before-init-stop",
        POLICY,
        shift("run_start", -30_000),
        "PASS",
        "before init_stop",
    ),
    Case("cache-not-cleared", POLICY, put("cache_clear", False), "PASS", "is false"),
    Case("cache-not-cleared", NOTE, put("cache_clear", None), "PASS", "is null"),
    Case(
        "cache-clear-after-init-start",
        POLICY,
        move("cache_clear", "seed"),
        "PASS",
        "after init_start",
    ),
    Case(
        "cache-clear-after-run-start",
        POLICY,
        move("cache_clear", "train_samples"),
        "PASS",
        "after run_start",
    ),
    Case("unpaired-events", NOTE, again("epoch_start"), "PASS", "36 epoch_start against 35"),
    Case(
        "indivisible-batch",
        NOTE,
        put("gradient_accumulation_steps", 5),
        "PASS",
        "divides the batch",
    ),
    Case("indivisible-batch", POLICY, put("global_batch_size", 7.5), "PASS", "expected an integer"),
    Case(
        "indivisible-batch",
        POLICY,
        put("gradient_accumulation_steps", 0.5),
        "PASS",
        "expected an integer",
    ),
    Case("init-too-long", ERROR, an_early_init_stop, "FAIL", "to the init_stop of line"),
    Case(
        "invalid-submission-value",
        POLICY,
        put("submission_org", None),
        "PASS",
        "is null, expected a name",
    ),
    Case(
        "invalid-submission-value",
        POLICY,
        put("submission_platform", "  "),
        "PASS",
        "expected a name",
    ),
    Case("label-smoothing", POLICY, smooth_again, "PASS", "is 0.3"),
    Case("ranks-disagree", ERROR, until_it_passes, "PASS", "only 1 at target"),
    Case("missing-accuracy", POLICY, one("eval_accuracy", 0, value=None), "PASS", "null", "0.6.0"),
    Case("epoch-not-a-number", POLICY, meta("block_start", "epoch_count", True), "PASS", "is true"),
    Case("untrained-epoch", POLICY, nothing_trained, "PASS", "has come to epoch 0"),
    Case("impossible-rate", ERROR, in_no_time_on_few, "PASS", "35 epochs in"),
    Case(
        "invalid-cache-clear-060", ERROR, put("cache_clear", None), "FAIL", "expected true", "0.6.0"
    ),
    Case("missing-event-060", ERROR, drop("block_stop"), "FAIL", "no block_stop", "0.6.0"),
    Case("misnested-events-060", ERROR, skip_epoch, "FAIL", "epoch_start", "0.6.0"),
    Case("misnested-events-060", ERROR, drop("eval_accuracy"), "FAIL", "no accuracy", "0.6.0"),
    Case("invalid-hyperparameter-060", ERROR, put("model_bn_span", 0), "FAIL", "above 0", "0.6.0"),
    Case("invalid-hyperparameter-060", ERROR, drop("lars_epsilon"), "FAIL", "logged 0 x", "0.6.0"),
    Case(
        "invalid-hyperparameter-060", ERROR, put("opt_name", "adam"), "FAIL", "lars, sgd", "0.6.0"
    ),
    Case("invalid-optimizer", ERROR, put("opt_name", "adam"), "CRASH", "expected lars or sgd"),
    Case("invalid-optimizer", ERROR, put("opt_name", "LARS"), "CRASH", 'did you mean "lars"'),
    Case("invalid-optimizer", ERROR, drop("opt_name"), "FAIL", "no opt_name"),
    Case("invalid-batch-size", ERROR, drop("global_batch_size"), "FAIL", "no global_batch_size"),
    Case(
        "invalid-batch-size",
        ERROR,
        put("global_batch_size", "1536"),
        "FAIL",
        'is "1536", expected a number',
    ),
    Case("invalid-batch-size", ERROR, put("global_batch_size", 0), "FAIL", "is 0"),
    Case("invalid-batch-size", ERROR, put("global_batch_size", 10**400), "PASS", "is inf"),
    Case(
        "missing-hyperparameter", ERROR, drop("lars_opt_momentum"), "FAIL", "no lars_opt_momentum"
    ),
    Case(
        "missing-hyperparameter",
        ERROR,
        drop("model_bn_span"),
        "FAIL",
        "no model_bn_span",
        "1.0.0",
        "closed",
        "sgd",
    ),
    Case(
        "end-learning-rate", ERROR, put("lars_opt_end_learning_rate", 0), "FAIL", "expected 0.0001"
    ),
    Case(
        "end-learning-rate",
        ERROR,
        put("sgd_opt_end_learning_rate", 1e-3),
        "FAIL",
        "expected 0.0001",
        optimizer="sgd",
    ),
    Case(
        "lars-decay-power",
        ERROR,
        put("lars_opt_learning_rate_decay_poly_power", 1),
        "FAIL",
        "expected 2",
    ),
    Case("lars-epsilon", ERROR, put("lars_epsilon", 1e-9), "FAIL", "expected 0"),
    Case("weight-decay", ERROR, put("lars_opt_weight_decay", 0), "FAIL", "for example 5e-05"),
    Case("weight-decay", ERROR, put("lars_opt_weight_decay", 3e-5), "FAIL", "2.5e-05 and 5e-05"),
    Case("weight-decay", ERROR, put("lars_opt_weight_decay", -1e-4), "FAIL", "0.0001 x 2^N"),
    Case(
        "sgd-base-learning-rate",
        ERROR,
        put("sgd_opt_base_learning_rate", 0.0005),
        "FAIL",
        "0.001 x k",
        optimizer="sgd",
    ),
    Case(
        "invalid-accumulation",
        ERROR,
        drop("gradient_accumulation_steps"),
        "FAIL",
        "closed logs need it since 1.0.0",
        "1.0.0",
    ),
    Case("invalid-accumulation", ERROR, put("gradient_accumulation_steps", 0), "FAIL", "is 0"),
    Case(
        "missing-weight-initialization",
        ERROR,
        drop("weights_initialization"),
        "FAIL",
        "161 tensors",
        "2.1.0",
    ),
    Case("weight-initialization-names", ERROR, wrong_name, "FAIL", "2 missing", "1.1.0"),
    Case(
        "lars-momentum",
        POLICY,
        put("lars_opt_momentum", 0.95),
        "PASS",
        "expected 0.9 below a batch",
    ),
    Case("lars-momentum", POLICY, put("lars_opt_momentum", None), "PASS", "expected a number"),
    Case(
        "sgd-momentum",
        POLICY,
        put("sgd_opt_momentum", 0.95),
        "PASS",
        "expected 0.9",
        optimizer="sgd",
    ),
    Case(
        "sgd-decay-power",
        POLICY,
        put("sgd_opt_learning_rate_decay_poly_power", 1),
        "PASS",
        "expected 2",
        optimizer="sgd",
    ),
    Case(
        "invalid-schedule-length",
        POLICY,
        put("sgd_opt_learning_rate_decay_steps", "pow2"),
        "PASS",
        "an integer from 0 on",
        optimizer="sgd",
    ),
    Case(
        "invalid-schedule-length",
        POLICY,
        put("lars_opt_learning_rate_warmup_epochs", -5),
        "PASS",
        "from 0 on",
    ),
    Case(
        "invalid-schedule-length",
        POLICY,
        put("lars_opt_base_learning_rate", math.nan),
        "PASS",
        "is nan",
    ),
    Case("label-smoothing", POLICY, smooth, "PASS", "expected 0 or 0.1"),
    Case("eval-samples", POLICY, put("eval_samples", 3125), "PASS", "expected 50000"),
    Case("train-samples", POLICY, put("train_samples", 10), "PASS", "expected 1281167"),
    Case(
        "train-samples", NOTE, put("train_samples", 10), "PASS", "expected 1281167", "4.0.0", "open"
    ),
    Case("evaluation-cadence", POLICY, every_eight, "PASS", "gaps of 8 epochs"),
    Case("epochs-from-zero", POLICY, from_zero, "PASS", "number 0"),
    Case("late-first-epoch", NOTE, later_start, "PASS", "is 2"),
    Case("epoch-not-a-number", POLICY, meta("eval_accuracy", "epoch_num", "x"), "PASS", "a number"),
)


def checked(
    folder: Path, run: Run, ruleset: str = "4.0.0", *, official: bool | None = None
) -> Check:
    return check_log(write(folder / "result_0.txt", run, ruleset), ruleset, official=official)


@pytest.mark.slow
@pytest.mark.parametrize("division", ["closed", "open"])
@pytest.mark.parametrize("optimizer", ["lars", "sgd"])
@pytest.mark.parametrize(
    "ruleset", ["0.6.0", "0.7.0", "1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0"]
)
def test_a_good_run_breaks_no_rule(
    tmp_path: Path, ruleset: str, optimizer: str, division: str
) -> None:
    if ruleset == "0.6.0" and optimizer == "sgd":
        pytest.skip("v0.6 SGD has keys of its own")
    found = checked(tmp_path, good_run(ruleset, division, optimizer), ruleset)
    assert found.findings == ()
    assert found.verdict == "PASS"
    assert found.official is not None
    assert found.official.verdict == "PASS", found.official.messages
    assert found.difference == ""


@pytest.mark.parametrize(
    ("optimizer", "key", "value"),
    [
        ("lars", "lars_opt_momentum", 0.8999999761581421),
        ("sgd", "sgd_opt_momentum", 0.8999999761581421),
        ("lars", "model_label_smoothing", 0.10000000149011612),
    ],
)
def test_a_number_printed_as_float32_is_the_number(
    tmp_path: Path, optimizer: str, key: str, value: float
) -> None:
    run = good_run("4.0.0", "closed", optimizer)
    put(key, value)(run)
    if key == "model_label_smoothing":
        run.insert(20, Record(key, value, run[19].time_ms))
    assert checked(tmp_path, run, official=False).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.rule}-{c.words[:30]}")
def test_a_broken_rule_is_found(tmp_path: Path, case: Case) -> None:
    run = good_run(case.ruleset, case.division, case.optimizer)
    case.edit(run)
    found = checked(tmp_path, run, case.ruleset)
    own = [finding for finding in found.findings if finding.name == case.rule]
    assert own, found.findings
    assert any(
        case.words in finding.message and finding.severity == case.severity for finding in own
    ), own
    assert found.official is not None
    assert found.official.verdict == case.official, found.official.messages
    if case.official != "PASS":
        assert found.verdict == "FAIL"
    if case.severity == ERROR:
        assert found.verdict == "FAIL"
    if case.severity == POLICY and found.verdict != "FAIL":
        assert found.verdict == "POLICY"
    assert found.verdict == "PASS" or found.cause
    if found.verdict == "FAIL" and case.official == "PASS":
        assert "does not test" in found.difference


@pytest.mark.parametrize(
    ("batch", "severities"), [(31_999, [POLICY]), (32_000, [NOTE]), (32_767, [NOTE]), (32_768, [])]
)
def test_lars_momentum_is_free_from_a_batch_of_32k(
    tmp_path: Path, batch: int, severities: list[str]
) -> None:
    run = good_run()
    put("lars_opt_momentum", 0.94)(run)
    put("global_batch_size", batch)(run)
    found = checked(tmp_path, run, official=False).findings
    assert [finding.severity for finding in found if finding.name == "lars-momentum"] == severities


def test_the_target_is_reached_at_exactly_its_value() -> None:
    assert reaches_target(0.759)
    assert not reaches_target(math.nextafter(0.759, 0)) and not reaches_target(1.0)


def test_an_evaluation_before_training_does_not_count_for_the_cadence() -> None:
    assert cadence_problem([0, 3, 7, 11]) is None


def test_records_of_one_line_keep_their_order(tmp_path: Path) -> None:
    """The last evaluation and run_stop on one line: still inside the clock."""
    path = write(tmp_path / "result_0.txt", good_run())
    text = path.read_text().rstrip("\n")
    for _ in range(3):
        text = "".join(text.rsplit("\n", 1))
    path.write_text(text + "\n")
    found = check_log(path, "4.0.0", official=False)
    assert [finding.name for finding in found.findings] == ["joined-records"]
    path.write_text(text.replace("\n", " "))
    found = check_log(path, "4.0.0", official=False)
    assert [finding.name for finding in found.findings] == ["joined-records"]


def test_a_log_cut_anywhere_has_one_cause(tmp_path: Path) -> None:
    run = good_run()
    for records in (5, 9, 20, 24, 40, 60):
        text = "".join(record.text("4.0.0") + "\n" for record in run[:records])
        path = tmp_path / "result_0.txt"
        path.write_text(text[:-20])
        found = check_log(path, "4.0.0", official=False)
        assert [f.name for f in found.findings if f.severity == ERROR] == ["broken-record"], (
            found.findings
        )
        assert found.cause.startswith(f"truncated: line {records} ends inside a record")
        path.write_text(text)
        found = check_log(path, "4.0.0", official=False)
        if records > 24:
            assert [f.name for f in found.findings if f.severity == ERROR] == ["no-run-stop"]


def broken_records(text: str) -> str:
    return text.replace("}}\n", "}} trailing\n", 1)


@pytest.mark.parametrize(
    ("edit", "id_", "words", "verdict"),
    [
        (broken_records, "broken-record", "does not belong there", "FAIL"),
        (lambda t: t.replace('"key"', '"kee"', 1), "broken-record", '"key"', "FAIL"),
        (lambda t: t.replace('"time_ms"', '"time_s"', 1), "broken-record", "time_s", "FAIL"),
        (
            lambda t: t.replace('"lineno": 7}}\n', '"lineno": 7', 1),
            "broken-record",
            "cannot be",
            "FAIL",
        ),
        (lambda t: t[:-30], "broken-record", "truncated: line", "FAIL"),
        (lambda t: t.replace("\n", "", 1), "joined-records", "holds two records", "PASS"),
    ],
)
def test_records_that_are_not_whole(
    tmp_path: Path, edit: object, id_: str, words: str, verdict: str
) -> None:
    path = write(tmp_path / "result_0.txt", good_run())
    path.write_text(edit(path.read_text()))  # type: ignore[operator]
    found = check_log(path, "4.0.0")
    assert [words in f.message for f in found.findings if f.name == id_][:1] == [True], found
    assert found.verdict == verdict
    assert found.official is not None
    assert found.official.verdict in ("FAIL", "CRASH")


def test_what_is_beyond_the_memory_limit_is_said(tmp_path: Path) -> None:
    run = good_run()
    at = run.index(last(run, "epoch_start"))
    run[at:at] = [find(run, "epoch_start")] * 600
    found = checked(tmp_path, run, official=False)
    assert "unkept-records" in {finding.name for finding in found.findings}


def test_every_rule_has_a_case() -> None:
    by_test = {case.rule for case in CASES} | {"broken-record", "joined-records", "unkept-records"}
    by_test |= {
        "impossible-stamp",
        "odd-record",
        "odd-bytes",
        "ruleset-contradicted",
    }  # test_odd_records.py
    assert {rule.name for rule in RULES} == by_test


def test_every_rule_says_what_it_checks_and_where_it_comes_from() -> None:
    ids = [rule.name for rule in RULES]
    assert len(set(ids)) == len(ids)
    for rule in RULES:
        assert rule.description.endswith((".", ")", '"'))
        assert rule.source


def test_the_page_of_rules_is_up_to_date() -> None:
    assert (ROOT / "docs/rules.md").read_text() == render_markdown(), (
        "rn50 log rules --markdown > docs/rules.md"
    )
