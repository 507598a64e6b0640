"""Sets of runs that are one run, and honest sets that look alike: published ones, edited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compliance.log_text import Run, find, good_run, last, shift, vary
from tests.compliance.test_nonsense import LOGS, SETS, load, logs, of_set, severities

HONEST = (
    "v4.0/tinycorp/tinybox_green",
    "v2.1/Intel-HabanaLabs/HLS-Gaudi2-PT",
    "v1.0/Google/tpu-v4-256-JAX-Distributed-Shampoo",
)
published = pytest.mark.skipif(
    not all((LOGS / folder).is_dir() for folder in HONEST),
    reason="no published logs beside this checkout",
)


@pytest.mark.slow
@published
@SETS
@given(
    st.sampled_from(HONEST),
    st.sampled_from([5, 20, 50, 100, 250, 1000, 3000, 10_000, 60_000]),
    st.sampled_from(["down", "but the run's", "to the nearest"]),
)
def test_coarse_stamps_make_no_copies(tmp_path: Path, folder: str, unit_ms: int, how: str) -> None:
    """Honest runs as a logger writes them that knows no milliseconds."""
    runs = []
    for number in range(5):
        ruleset, run = load(f"{folder}/result_{number}.txt")
        for record in run:
            if how != "but the run's" or record.key not in ("run_start", "run_stop"):
                more_ms = unit_ms / 2 if how == "to the nearest" else 0
                record.time_ms = (record.time_ms + more_ms) // unit_ms * unit_ms
        runs.append((ruleset, run))
    found = of_set(tmp_path, runs)
    assert severities(found, "copied-run", "copied-accuracies", "shared-moments") == set()


def renumbered(run: Run, by: int) -> None:
    for record in run:
        for name in ("epoch_num", "first_epoch_num"):
            if name in record.metadata:
                record.metadata[name] += by


def unnumbered(run: Run, by: int) -> None:
    for record in run:
        for name in ("epoch_num", "first_epoch_num"):
            if name in record.metadata:
                record.metadata[name] = f"epoch {record.metadata[name]}"


@pytest.mark.slow
@SETS
@given(logs, st.sampled_from([renumbered, unnumbered]), st.booleans())
def test_copies_are_known_without_their_epochs(
    tmp_path: Path, name: str, edit: Callable[[Run, int], None], touched: bool
) -> None:
    """The same times and, if not touched up, accuracies at epochs of another name."""
    runs = []
    for number in range(5):
        ruleset, run = load(name)
        edit(run, number)
        for record in run:
            record.time_ms += 3_600_000 * number * (record.time_ms > 0)
            if record.key == "eval_accuracy" and touched:
                record.value += number / 300
        runs.append((ruleset, run))
    found = of_set(tmp_path, runs)
    assert severities(found, "copied-run") == {"error"}
    assert severities(found, "copied-accuracies") == (set() if touched else {"error"})


def of_five(folder: Path, edit: Callable[[int, Run], object]) -> set[tuple[str, str]]:
    """Names and severities of what is found in five runs, hours after one another, each edited."""
    runs = []
    for number in range(5):
        run = vary(good_run(), number)
        shift("run_stop", 1000.5 * number)(run)
        for record in run:
            record.time_ms += 3_600_000 * number
        edit(number, run)
        runs.append(("4.0.0", run))
    names = ("copied-run", "copied-accuracies", "shared-moments")
    return {(f.name, f.severity) for f in of_set(folder, runs).findings if f.name in names}


def one_length(number: int, run: Run) -> None:
    if number in (1, 3):
        last(run, "run_stop").time_ms = find(run, "run_start").time_ms + 40_001


def one_clearing(number: int, run: Run) -> None:
    if number in (0, 4):
        find(run, "cache_clear").time_ms = good_run()[0].time_ms


def one_end(number: int, run: Run) -> None:
    last(run, "eval_accuracy").value = 0.75932


def one_end_of_four(number: int, run: Run) -> None:
    last(run, "eval_accuracy").value = 0.75934 if number == 2 else 0.75932


SHARED = ("shared-moments", "policy")


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (lambda number, run: None, set()),
        (one_length, {SHARED}),
        (one_clearing, {SHARED}),
        (one_end, {SHARED}),
        (one_end_of_four, set()),
    ],
)
def test_what_no_two_runs_share(
    tmp_path: Path, edit: Callable[[int, Run], object], found: set[tuple[str, str]]
) -> None:
    assert of_five(tmp_path, edit) == found


def test_runs_at_one_time_may_share_a_clearing(tmp_path: Path) -> None:
    def edit(number: int, run: Run) -> None:
        for record in run:
            record.time_ms -= 3_600_000 * number

    assert of_five(tmp_path, edit) == set()
