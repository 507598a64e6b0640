"""Kinds of nonsense, made at any place of any log: each has its finding, whatever log it is in.

The logs are those of log_text.py, of every round, and the published ones that lie beside this
checkout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rn50.compliance.check_log import Check, check_log
from rn50.compliance.rule import code_of
from rn50.compliance.submission import check_folder
from rn50.logging.parse import read_log
from tests.compliance.log_text import Record, Run, good_run, vary, write

SHARED = Path(os.environ.get("RN50_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
PUBLISHED = (
    "v0.7/DellEMC/4xC4140/result_0.txt",
    "v1.0/Graphcore/ipu-pod16-TF1/result_0.txt",
    "v1.1/Dell/2xR750xax4A100-PCIE-80GB/result_0.txt",
    "v2.1/HPE/HPE-ProLiant-XL675d-Gen10-Plus_A100-SXM-80GB_2N_mxnet/result_1.txt",
    "v3.0/NVIDIA/dgxh100_n96_ngc23.04_mxnet/result_0.txt",
    "v4.0/NVIDIA/eos_ngc24.04_mxnet/result_0.txt",
    "v4.0/tinycorp/tinybox_green/result_1.txt",
)
BUILT = (
    "0.6.0 closed lars",
    *(
        f"{ruleset} {division} {optimizer}"
        for ruleset in ("0.7.0", "1.1.0", "3.1.0", "4.0.0")
        for division, optimizer in (("closed", "lars"), ("closed", "sgd"), ("open", "lars"))
    ),
)
LOGS = SHARED / "data/mlperf_logs/logs"
NAMES = (*BUILT, *(name for name in PUBLISHED if (LOGS / name).is_file()))

EVERYWHERE = settings(
    derandomize=True,
    database=None,
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@cache
def _loaded(name: str) -> tuple[str, tuple[tuple[str, Any, float, str], ...]]:
    """The records of a log that passes, and its ruleset."""
    if name in BUILT:
        ruleset, division, optimizer = name.split()
        run = good_run(ruleset, division, optimizer)
        return ruleset, tuple((r.key, r.value, r.time_ms, json.dumps(r.metadata)) for r in run)
    log = read_log(LOGS / name)
    ruleset = name[1:4] + ".0"
    return ruleset, tuple((e.key, e.value, e.time_ms, json.dumps(e.metadata)) for e in log.events)


def load(name: str) -> tuple[str, Run]:
    """A fresh copy of a log's records."""
    ruleset, records = _loaded(name)
    run = []
    for key, value, time_ms, metadata in records:
        record = Record(key, value, time_ms)
        record.metadata = json.loads(metadata)
        run.append(record)
    return ruleset, run


def judge(folder: Path, name: str, edit: Callable[[Run], object]) -> Check:
    ruleset, run = load(name)
    edit(run)
    return check_log(write(folder / "result_0.txt", run, ruleset), ruleset, official=False)


def of(run: Run, key: str) -> Run:
    return [record for record in run if record.key == key]


def timed(run: Run) -> Run:
    """What comes between run_start and run_stop."""
    keys = [record.key for record in run]
    return run[keys.index("run_start") + 1 : keys.index("run_stop")]


def severities(found: Check, *ids: str) -> set[str]:
    return {finding.severity for finding in found.findings if finding.name in ids}


logs = st.sampled_from(NAMES)
places = st.integers(0, 10**6)


def some(run: Run, key: str, place: int, *, skip: int = 0) -> tuple[int, Record]:
    """The record of a key at a place, of those after the first few."""
    records = of(run, key)[skip:]
    return skip + place % len(records), records[place % len(records)]


def test_the_logs_pass_as_they_are(tmp_path: Path) -> None:
    for name in NAMES:
        found = judge(tmp_path, name, lambda run: None)
        assert found.verdict in ("PASS", "POLICY"), (name, found.cause)
        new = [f for f in found.findings if f.name in NEW and f.severity != "note"]
        assert new == [], name


@EVERYWHERE
@given(logs, places)
def test_two_evaluations_change_places(tmp_path: Path, name: str, place: int) -> None:
    def edit(run: Run) -> None:
        evaluations = of(run, "eval_accuracy")
        at = place % (len(evaluations) - 1)
        one, other = evaluations[at].metadata, evaluations[at + 1].metadata
        one["epoch_num"], other["epoch_num"] = other["epoch_num"], one["epoch_num"]

    assert severities(judge(tmp_path, name, edit), "epochs-out-of-order") == {"policy"}


@EVERYWHERE
@given(logs, places)
def test_two_epochs_change_places(tmp_path: Path, name: str, place: int) -> None:
    def edit(run: Run) -> None:
        starts = of(run, "epoch_start")
        at = place % (len(starts) - 1)
        one, other = starts[at].metadata, starts[at + 1].metadata
        one["epoch_num"], other["epoch_num"] = other["epoch_num"], one["epoch_num"]

    assert severities(judge(tmp_path, name, edit), "epochs-out-of-order") == {"policy"}


@EVERYWHERE
@given(logs, places, st.integers(1, 5))
def test_an_epoch_is_evaluated_until_it_passes(
    tmp_path: Path, name: str, place: int, more: int
) -> None:
    def edit(run: Run) -> None:
        _, record = some(run, "eval_accuracy", place)
        at = run.index(record) + 1
        for number in range(1, more + 1):
            again = Record("eval_accuracy", record.value + number / 50_000, 0)
            again.metadata = dict(record.metadata)
            again.time_ms = record.time_ms + 2000 * number
            run.insert(at, again)
            at += 1
        for later in run[at:]:
            later.time_ms += 2000 * more

    found = judge(tmp_path, name, edit)
    assert severities(found, "epochs-out-of-order") == {"policy"}
    assert any("is evaluated again" in f.message for f in found.findings)


@EVERYWHERE
@given(st.sampled_from([n for n in NAMES if " open " not in n]), st.floats(0, 500))
def test_the_target_at_once(tmp_path: Path, name: str, after_ms: float) -> None:
    """A target that is logged right after run_start, before any training."""

    def edit(run: Run) -> None:
        start = of(run, "run_start")[0]
        target = of(run, "eval_accuracy")[-1]
        run.remove(target)
        run.insert(run.index(start) + 1, target)
        target.time_ms = start.time_ms + after_ms

    found = judge(tmp_path, name, edit)
    assert found.verdict == "FAIL"
    assert severities(found, "target-before-training") == {"error"}


@EVERYWHERE
@given(logs, st.integers(1, 9), st.booleans())
def test_epochs_before_the_clock(tmp_path: Path, name: str, epochs: int, moved: bool) -> None:
    """run_start after some epochs, by its place or by its stamp alone."""

    def edit(run: Run) -> None:
        start, begun = of(run, "run_start")[0], of(run, "epoch_start")[epochs]
        start.time_ms = max(begun.time_ms, start.time_ms + 1500)
        if moved:
            run.remove(start)
            run.insert(run.index(begun), start)

    found = judge(tmp_path, name, edit)
    assert found.verdict in ("POLICY", "FAIL")
    assert severities(found, "epoch-before-run-start") == {"policy"}


@EVERYWHERE
@given(logs, st.sampled_from([1, 5, 20]))
def test_no_machine_trains_so_fast(tmp_path: Path, name: str, run_ms: int) -> None:
    """The whole run within some milliseconds, in order."""

    def edit(run: Run) -> None:
        inside = timed(run)
        start, stop = of(run, "run_start")[0], of(run, "run_stop")[0]
        for number, record in enumerate(inside):
            record.time_ms = start.time_ms + run_ms * number / len(inside)
        stop.time_ms = start.time_ms + run_ms

    found = judge(tmp_path, name, edit)
    assert severities(found, "impossible-throughput", "run-time-not-positive") == {"error"}


ODD_EPOCHS = st.one_of(
    st.integers(-(10**9), -1),
    st.integers(1001, 10**15),
    st.floats(-1e12, -0.5),
    st.integers(1, 90).map(lambda n: n + 0.5),
)


@EVERYWHERE
@given(logs, places, ODD_EPOCHS, st.sampled_from(["eval_accuracy", "epoch_start", "epoch_stop"]))
def test_epochs_that_cannot_be(
    tmp_path: Path, name: str, place: int, epoch: float, key: str
) -> None:
    def edit(run: Run) -> None:
        some(run, key, place)[1].metadata["epoch_num"] = epoch

    assert severities(judge(tmp_path, name, edit), "impossible-epoch") == {"policy"}


BLOCKED = tuple(name for name in NAMES if "tinycorp" not in name and "Graphcore" not in name)


@EVERYWHERE
@given(st.sampled_from(BLOCKED), places, st.integers(2, 900))
def test_a_block_of_another_length(tmp_path: Path, name: str, place: int, more: int) -> None:
    def edit(run: Run) -> None:
        blocks = of(run, "block_start")
        blocks[1 + place % (len(blocks) - 2)].metadata["epoch_count"] += more

    assert severities(judge(tmp_path, name, edit), "inconsistent-blocks") == {"policy"}


@EVERYWHERE
@given(st.sampled_from(BLOCKED), places, st.integers(1, 900))
def test_a_block_from_another_epoch(tmp_path: Path, name: str, place: int, by: int) -> None:
    def edit(run: Run) -> None:
        blocks = of(run, "block_start")
        block = blocks[1 + place % (len(blocks) - 2)]
        block.metadata["first_epoch_num"] += by if place % 2 else -by

    found = judge(tmp_path, name, edit)
    misnested = severities(found, "misnested-events-060")  # ruleset 0.6.0 names the epoch itself
    assert misnested == {"error"} or "policy" in severities(
        found, "inconsistent-blocks", "epochs-out-of-order", "impossible-epoch"
    )


@EVERYWHERE
@given(st.sampled_from(BLOCKED), places, st.integers(1, 900))
def test_a_block_that_goes_back(tmp_path: Path, name: str, place: int, by: int) -> None:
    """Whichever block it is, to the first epoch of one before it."""

    def edit(run: Run) -> None:
        blocks = of(run, "block_start")
        at = 2 + place % (len(blocks) - 2)
        earlier = blocks[by % (at - 1)].metadata["first_epoch_num"]
        blocks[at].metadata["first_epoch_num"] = earlier

    assert "policy" in severities(
        judge(tmp_path, name, edit), "inconsistent-blocks", "epochs-out-of-order"
    )


@EVERYWHERE
@given(logs, places, st.integers(3, 40))
def test_an_evaluation_of_epochs_to_come(tmp_path: Path, name: str, place: int, ahead: int) -> None:
    """Far from the target, so that nothing else is wrong."""
    if "Graphcore" in name:
        return  # it evaluates after training

    def edit(run: Run) -> None:
        evaluations = of(run, "eval_accuracy")
        record = evaluations[place % (len(evaluations) - 1)]
        record.metadata["epoch_num"] += ahead

    found = judge(tmp_path, name, edit)
    assert severities(found, "evaluated-untrained-epoch") == {"policy"}


@EVERYWHERE
@given(logs, places, st.sampled_from(["eval", "epoch"]))
def test_a_stop_before_its_start(tmp_path: Path, name: str, place: int, kind: str) -> None:
    def edit(run: Run) -> None:
        at, start = some(run, f"{kind}_start", place)
        stop = of(run, f"{kind}_stop")[at]
        start.key, stop.key = stop.key, start.key
        assert start.metadata["epoch_num"] == stop.metadata["epoch_num"]

    assert severities(judge(tmp_path, name, edit), "stop-before-start") == {"policy"}


SLOW = tuple(name for name in NAMES if "n96" not in name)


@EVERYWHERE
@given(st.sampled_from(SLOW), places, st.floats(0, 5))
def test_an_epoch_in_no_time(tmp_path: Path, name: str, place: int, took_ms: float) -> None:
    def edit(run: Run) -> None:
        at, start = some(run, "epoch_start", place)
        of(run, "epoch_stop")[at].time_ms = start.time_ms + took_ms

    assert severities(judge(tmp_path, name, edit), "impossible-epoch-time") == {"policy"}


@EVERYWHERE
@given(
    st.sampled_from([n for n in NAMES if " open " not in n]),
    st.floats(1_500, 1e9),
    st.booleans(),
)
def test_the_target_stamped_off_the_clock(
    tmp_path: Path, name: str, by_ms: float, late: bool
) -> None:
    def edit(run: Run) -> None:
        event = of(run, "run_stop" if late else "run_start")[0]
        of(run, "eval_accuracy")[-1].time_ms = event.time_ms + (by_ms if late else -by_ms)

    found = judge(tmp_path, name, edit)
    assert severities(found, "target-off-the-clock") == {"error"}
    assert all(
        f.caused_by == code_of("target-off-the-clock")
        for f in found.findings
        if f.name == "time-goes-back"
    )


@EVERYWHERE
@given(logs, places, st.one_of(st.floats(-5, -1e-6), st.floats(1.0001, 100), st.just(float("nan"))))
def test_an_accuracy_that_is_no_fraction(
    tmp_path: Path, name: str, place: int, value: float
) -> None:
    def edit(run: Run) -> None:
        evaluations = of(run, "eval_accuracy")
        evaluations[place % (len(evaluations) - 1)].value = value

    expected = {"note"} if value != value else {"policy"}
    assert severities(judge(tmp_path, name, edit), "accuracy-out-of-range") == expected


@EVERYWHERE
@given(logs, st.integers(40_000, 49_999), st.sampled_from([6, 8, 17]))
def test_fewer_images_than_are_said(tmp_path: Path, name: str, images: int, places_: int) -> None:
    """All accuracies are counts over fewer images, with as many decimals."""

    def edit(run: Run) -> None:
        for record in of(run, "eval_accuracy"):
            correct = round(record.value * images) + (record.value >= 0.759)
            record.value = round(correct / images, places_)

    found = judge(tmp_path, name, edit)
    assert severities(found, "accuracy-not-a-count") == {"policy"}


@EVERYWHERE
@given(logs, places, st.integers(0, 49_999))
def test_one_accuracy_that_is_no_count(tmp_path: Path, name: str, place: int, count: int) -> None:
    def edit(run: Run) -> None:
        _, record = some(run, "eval_accuracy", place)
        record.value = (int(record.value * 50_000) + 0.5) / 50_000

    found = judge(tmp_path, name, edit)
    assert severities(found, "accuracy-not-a-count") == {"policy"}, found.findings


@EVERYWHERE
@given(st.sampled_from([name for name in NAMES if not name.startswith("0.6")]), places)
def test_true_is_no_number_but_what_the_official_checker_takes_it_for(
    tmp_path: Path, name: str, place: int
) -> None:
    keys = ("gradient_accumulation_steps", "global_batch_size", "train_samples", "eval_samples")

    def edit(run: Run) -> None:
        for record in of(run, keys[place % 4]):
            record.value = True

    found = judge(tmp_path, name, edit)
    assert found.verdict == ("POLICY" if found.run and found.run.division == "closed" else "PASS")


@EVERYWHERE
@given(logs, places, st.sampled_from([1e-3, 1.0]), st.floats(3e3, 1e6))
def test_a_stray_stamp_is_named(
    tmp_path: Path, name: str, place: int, factor: float, behind_ms: float
) -> None:
    """The clock runs back because of one record: the finding says which."""
    line = 0

    def edit(run: Run) -> None:
        nonlocal line
        inside = [r for r in timed(run) if r.key in ("epoch_stop", "eval_start", "eval_stop")]
        record = inside[place % len(inside)]
        line = run.index(record) + 1
        before_ms = run[line - 2].time_ms  # nothing is odd about 3 s less of a long epoch
        record.time_ms = record.time_ms * factor if factor != 1 else before_ms - behind_ms

    found = judge(tmp_path, name, edit)
    told = [f for f in found.findings if f.name == "time-goes-back"]
    assert told and told[0].severity in ("policy", "note")
    if "HPE" not in name and "Dell" not in name:  # their clocks step back as they are
        assert f"line {line} (" in told[0].message, told
        assert ("in seconds" in told[0].message) == (factor != 1)


@pytest.mark.slow
@EVERYWHERE
@given(logs, st.lists(st.floats(0, 900), min_size=1, max_size=7), st.booleans())
def test_ranks_that_all_write_are_no_nonsense(
    tmp_path: Path, name: str, skews_ms: list[float], by_time: bool
) -> None:
    """Copies of every record, each rank's clock up to a second late; sorted by time or not."""

    def edit(run: Run) -> None:
        copies = []
        for record in run:
            for late_ms in [0.0, *skews_ms]:
                copy = Record(record.key, record.value, record.time_ms)
                copy.time_ms += late_ms * (record.time_ms > 0)
                copy.metadata = dict(record.metadata)
                copies.append(copy)
        run[:] = sorted(copies, key=lambda record: record.time_ms) if by_time else copies

    found = judge(tmp_path, name, edit)
    assert [f for f in found.findings if f.name in NEW and f.severity != "note"] == []


@EVERYWHERE
@given(
    st.sampled_from([name for name in NAMES if not name.startswith("0.6")]),
    places,
    st.sampled_from([None, "x", [], "3", float("nan"), True]),
)
def test_an_epoch_that_is_no_number(tmp_path: Path, name: str, place: int, value: object) -> None:
    """Any event of training and evaluation: what rules compare is there."""

    def edit(run: Run) -> None:
        fields = ("epoch_num", "first_epoch_num", "epoch_count")
        inside = [(r, f) for r in timed(run) for f in fields if f in r.metadata]
        record, field = inside[place % len(inside)]
        record.metadata[field] = value

    found = judge(tmp_path, name, edit)
    expected = {"note" if found.run and found.run.division == "open" else "policy"}
    assert severities(found, "epoch-not-a-number") == expected


@EVERYWHERE
@given(logs, places, st.floats(0, 1))
def test_an_early_init_stop_hides_no_long_init(
    tmp_path: Path, name: str, place: int, share: float
) -> None:
    def edit(run: Run) -> None:
        begin, stop = of(run, "init_start")[0], of(run, "init_stop")[-1]
        first, last_ = run.index(begin), run.index(stop)
        early = Record("init_stop", stop.value, begin.time_ms + share * 1e5)
        early.metadata = dict(stop.metadata)
        for record in run[last_:]:
            record.time_ms += 4.2 * 3.6e6
        run.insert(first + 1 + place % (last_ - first), early)

    assert severities(judge(tmp_path, name, edit), "init-too-long") == {"error"}


@EVERYWHERE
@given(logs, st.integers(0, 900), st.integers(1100, 5000))
def test_an_epoch_at_target_for_less_than_a_second(
    tmp_path: Path, name: str, good_ms: int, low_ms: int
) -> None:
    """Low, at target within a second, low again: no second look at the model is a result."""

    def edit(run: Run) -> None:
        good = next(r for r in of(run, "eval_accuracy") if r.value >= 0.759)
        at = run.index(good)
        for by_ms, value in ((low_ms, 0.7512), (good_ms, good.value)):
            more = Record("eval_accuracy", value, good.time_ms + by_ms)
            more.metadata = dict(good.metadata)
            run.insert(at + 1, more)
        good.value = 0.7512
        for record in run[at + 3 :]:
            record.time_ms += low_ms

    found = judge(tmp_path, name, edit)
    assert severities(found, "epochs-out-of-order", "ranks-disagree") >= {"policy"}
    if found.run and found.run.needs_target:
        assert found.verdict == "FAIL"


# --- sets ---------------------------------------------------------------------------------------


def of_set(folder: Path, runs: list[tuple[str, Run]]) -> Check:
    for number, (ruleset, run) in enumerate(runs):
        write(folder / f"result_{number}.txt", run, ruleset)
    return check_folder(folder, runs[0][0], official=False)[-1]


SETS = settings(EVERYWHERE, max_examples=12)


@pytest.mark.slow
@SETS
@given(logs, st.integers(0, 10**12), st.integers(0, 4))
def test_one_log_five_times(tmp_path: Path, name: str, shift_ms: int, own: int) -> None:
    """Another seed and another day make no other run."""
    runs = []
    for number in range(5):
        ruleset, run = load(name)
        for record in run:
            record.time_ms += shift_ms * number * (record.time_ms > 0)
            if record.key == "seed":
                record.value = 100 + number
        runs.append((ruleset, run))
    found = of_set(tmp_path, runs)
    assert found.verdict == "FAIL"
    assert severities(found, "copied-run") == {"error"}
    assert severities(found, "copied-accuracies") == {"error"}


def copies(name: str, random: Random) -> list[tuple[str, Run]]:
    """One log five times, each with a seed and with stamps of its own."""
    runs = []
    for number in range(5):
        ruleset, run = load(name)
        late = 0.0
        for record in run:
            late += random.random() * 40
            record.time_ms += late * (record.time_ms > 0)
            if record.key == "seed":
                record.value = 100 + number
        runs.append((ruleset, run))
    return runs


@SETS
@given(logs, st.integers(0, 100))
def test_the_same_accuracies_at_other_times(tmp_path: Path, name: str, seed: int) -> None:
    found = of_set(tmp_path, copies(name, Random(seed)))
    assert severities(found, "copied-run") == set()
    assert severities(found, "copied-accuracies") == {"error"}


@SETS
@given(logs, st.integers(0, 100))
def test_accuracies_that_were_touched_up(tmp_path: Path, name: str, seed: int) -> None:
    """One curve, each time some images up or down, at other times."""
    random = Random(seed)
    runs = copies(name, random)
    for record in (record for _, run in runs for record in run):
        if record.key == "eval_accuracy" and 0.01 < record.value < 0.7:
            record.value += random.randrange(-4, 5) / 50_000
    assert severities(of_set(tmp_path, runs), "copied-accuracies") == {"policy"}


@SETS
@given(logs, st.integers(0, 100))
def test_the_same_times_with_other_accuracies(tmp_path: Path, name: str, seed: int) -> None:
    random = Random(seed)
    runs = []
    for _ in range(5):
        ruleset, run = load(name)
        for record in of(run, "eval_accuracy"):
            record.value += random.randrange(50) / 50_000
        runs.append((ruleset, run))
    found = of_set(tmp_path, runs)
    assert severities(found, "copied-run") == {"error"}


@SETS
@given(st.sampled_from(BUILT), st.integers(0, 10**6))
def test_runs_of_their_own_are_not_taken_for_one(tmp_path: Path, name: str, seed: int) -> None:
    runs = [(load(name)[0], vary(load(name)[1], seed + number)) for number in range(5)]
    found = of_set(tmp_path, runs)
    assert severities(found, "copied-run", "copied-accuracies") == set()


@pytest.mark.slow
def test_runs_of_thousands_of_evaluations(tmp_path: Path) -> None:
    """No count of evaluations is too many for the arithmetic."""
    runs = []
    for number in range(5):
        ruleset, run = load("4.0.0 closed lars")
        at = run.index(of(run, "run_stop")[0])
        more = []
        for epoch in range(36, 5_000):
            more.append(Record("eval_accuracy", 0.5 + epoch / 1e5, run[at].time_ms))
            more[-1].metadata = {"epoch_num": epoch}
        run[at:at] = more
        runs.append((ruleset, vary(run, number)))
    found = of_set(tmp_path, runs)
    assert found.verdict in ("POLICY", "FAIL")


@pytest.mark.skipif(len(NAMES) == len(BUILT), reason="no published logs beside this checkout")
def test_published_sets_are_not_taken_for_one() -> None:
    for folder in (
        "v4.0/tinycorp/tinybox_green",
        "v2.1/Intel-HabanaLabs/HLS-Gaudi2-PT",
        "v1.0/Google/tpu-v4-256-JAX-Distributed-Shampoo",
        "v0.7/SIAT/modelarts_512_tensorflow_open",
        "v1.0/Intel/2-nodes-16s-8376H-tensorflow",
    ):
        found = check_folder(LOGS / folder, official=False)[-1]
        assert severities(found, "copied-run", "copied-accuracies") == set()


NEW = frozenset(
    {
        *(
            "target-off-the-clock",
            "target-before-training",
            "impossible-throughput",
            "impossible-epoch",
            "epochs-out-of-order",
            "accuracy-leap",
        ),
        *("epoch-before-run-start",),
        *(
            "evaluated-untrained-epoch",
            "inconsistent-blocks",
            "stop-before-start",
            "impossible-epoch-time",
            "accuracy-out-of-range",
            "accuracy-not-a-count",
            "not-a-number",
        ),
    }
)
