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

    assert severities(judge(tmp_path, name, edit), "untrained-epoch") == {"policy"}


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
    assert severities(found, "untrained-epoch") == {"policy"}


@EVERYWHERE
@given(logs, places, st.sampled_from(["dropped", "exchanged", "renamed"]))
def test_an_epoch_that_was_not_trained(tmp_path: Path, name: str, place: int, how: str) -> None:
    """One before the target without its stop, with it first, or under another number."""

    def edit(run: Run) -> None:
        at, start = some(run, "epoch_start", place)
        stop = of(run, "epoch_stop")[at]
        if how == "dropped":
            run.remove(stop)
        elif how == "exchanged":
            start.key, stop.key = stop.key, start.key
        else:
            start.metadata["epoch_num"] = stop.metadata["epoch_num"] = 900

    found = judge(tmp_path, name, edit)
    assert severities(found, "untrained-epoch") == {"policy"}
    if how != "renamed" and (epochs := found.run and found.run.convergence_epoch):
        whole = judge(tmp_path, name, lambda run: None).run
        assert whole and epochs == (whole.convergence_epoch or 0) - 1


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
@given(logs, st.integers(40_000, 49_999), st.sampled_from([8, 17]))
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

    found = judge(tmp_path, name, edit)
    assert severities(found, "init-too-long", "two-runs") == {"error"}


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
@given(st.sampled_from(BUILT), st.integers(0, 10**6))
def test_runs_of_their_own_are_not_taken_for_one(tmp_path: Path, name: str, seed: int) -> None:
    runs = [(load(name)[0], vary(load(name)[1], seed + number)) for number in range(5)]
    found = of_set(tmp_path, runs)
    assert severities(found, "copied-run", "copied-accuracies") == set()


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
        names = ("copied-run", "copied-accuracies", "shared-moments")
        assert severities(found, *names) == set()


NEW = frozenset(
    {
        *("target-off-the-clock", "target-before-training", "epoch-before-run-start"),
        *("impossible-rate", "impossible-epoch", "epochs-out-of-order", "untrained-epoch"),
        *("accuracy-out-of-range", "accuracy-not-a-count", "unlikely-accuracy", "not-a-number"),
        *("look-alike-name", "invalid-bn-span"),
    }
)
