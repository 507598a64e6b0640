"""Sets of runs that are one run, and honest sets that look alike: published ones, edited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compliance.log_text import Run
from tests.compliance.test_nonsense import LOGS, SETS, copies, load, logs, of_set, severities

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
    assert severities(of_set(tmp_path, runs), "copied-run", "copied-accuracies") == set()


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


@SETS
@given(st.integers(0, 100), st.sampled_from([1e-4, 2e-4, 3e-4]))
def test_a_set_of_one_curve_with_noise(tmp_path: Path, seed: int, noise: float) -> None:
    """Five copies at other times, each evaluation moved by less than seeds move it."""
    random = Random(seed)
    runs = copies("4.0.0 closed lars", random)
    for record in (record for _, run in runs for record in run):
        if record.key == "eval_accuracy":
            moved = record.value + random.gauss(0, noise)
            record.value = round(max(moved, 0.759) if record.value >= 0.759 else moved, 5)
    assert severities(of_set(tmp_path, runs), "copied-accuracies") == {"policy"}


@pytest.mark.parametrize("seed", [None, 7])
def test_one_accuracy_of_its_own_or_one_seed_excuse_no_copy(
    tmp_path: Path, seed: int | None
) -> None:
    runs = copies("4.0.0 closed lars", Random(1))
    for number, (_, run) in enumerate(runs):
        accuracies = [record for record in run if record.key == "eval_accuracy"]
        accuracies[number].value += 0.01
        for record in run:
            if record.key == "seed" and seed is not None:
                record.value = seed
    assert severities(of_set(tmp_path, runs[:4]), "copied-accuracies") == {"policy"}  # 7 of 9 equal
    accuracies[4].value -= 0.01
    (tmp_path / "two").mkdir()
    assert severities(of_set(tmp_path / "two", runs[3:]), "copied-accuracies") == {"error"}
