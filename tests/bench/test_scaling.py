"""The scaling study: which jobs, what follows from their times, and one small study for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.bench import curves
from rn50.bench.curves import Case, Point, Timing, curve_rows, curves_outcome
from rn50.bench.scaling import MODELS, common_batch, per_rank
from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.schema import Run
from rn50.train.capabilities import check_supported


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 4096))
def test_strong_keeps_the_global_batch_or_says_no(ranks: int, batch: int, total: int) -> None:
    assert per_rank("weak", ranks, batch, total) == batch
    if total % ranks:
        with pytest.raises(UserError, match="--global-batch: a multiple of"):
            per_rank("strong", ranks, batch, total)
    else:
        assert per_rank("strong", ranks, batch, total) * ranks == total


@pytest.mark.parametrize(("ranks", "total"), [([1, 2, 4], 32), ([1, 2, 3], 24), ([1, 2, 3, 4], 36)])
def test_a_global_batch_that_all_rank_counts_divide(ranks: list[int], total: int) -> None:
    assert common_batch(8, ranks) == total


def point(ranks: int, *images_per_s: float) -> Point:
    return Point(Case("resnet50", ranks, 8), list(images_per_s))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """400 images an epoch, on a machine of two cores."""
    monkeypatch.setattr(curves, "machine", lambda: {"cores": 2})
    return load("quick", ["data.train_samples=400", "system.cores_per_rank=1"]).run


def test_efficiencies_are_of_the_same_pass_and_count_cores_once(run: Run) -> None:
    points = [point(1, 10.0, 20.0), point(4, 16.0, 40.0), point(2, 20.0, 30.0)]
    one, two, four = rows = curve_rows(points, run)
    assert one["efficiency_ranks"] == {"median": 1, "min": 1, "max": 1, "n": 2}
    assert two["speedup"] == {"median": 1.75, "min": 1.5, "max": 2.0, "n": 2}
    assert two["efficiency_cores"]["median"] == two["efficiency_ranks"]["median"] == 0.875
    assert two["images_per_s_a_rank"] == {"median": 12.5, "min": 10, "max": 15, "n": 2}
    assert four["efficiency_ranks"]["median"] == pytest.approx(0.45)
    assert four["efficiency_cores"]["median"] == pytest.approx(0.9)
    assert (one["epoch_s"]["min"], one["epoch_s"]["max"]) == (20, 40)
    outcome = curves_outcome({"b": rows}, run, Timing(2, 1, 1))
    assert [line[:2] for line in outcome.table] == [("b", "1"), ("b", "2"), ("b", "4*")]
    assert [len(line) for line in outcome.table] == [len(outcome.header)] * 3
    assert [name.partition(":")[0] for name in outcome.ratios] == ["b, 2 ranks", "b, 4 ranks"]
    assert len(outcome.notes) == 1


def test_without_one_rank_the_fewest_are_the_measure(run: Run) -> None:
    _, four = curve_rows([point(2, 20.0), point(4, 30.0)], run)
    assert four["efficiency_ranks"]["median"] == 0.75
    assert four["efficiency_cores"]["median"] == 1.5  # four ranks on the two cores of two
    gpus = load("dgx1_8", ["system.cores_per_rank=5"]).run
    _, four = curve_rows([point(2, 20.0), point(4, 30.0)], gpus)
    assert four["efficiency_cores"]["median"] == 0.75  # a GPU each, whatever cores there are


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("config", ["quick", "cpu_small", "dgx1_8"])
def test_the_networks_are_the_real_ones(model: str, config: str) -> None:
    small = ["data.crop_px=64", "data.eval_resize_px=72", "model.dtype=float32"]
    real = load(config, [*small, *MODELS[model], "system.device=cpu"]).run
    check_supported(real)
    assert real.model.network == model.removesuffix("50")
    assert (real.model.width, real.model.stem, real.model.depth) == (64, "imagenet", 50)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["scaling", "--models", "vgg"], ["--models", "resnet50", "vgg"]),
        (["scaling", "--modes", "week"], ["--modes", "weak", "week"]),
        (["scaling", "--ranks", "1,4,2"], ["--ranks", "rising", "1,4,2"]),
        (["throughput", "--batch", "1e3"], ["--batch", "whole numbers", "1e3"]),
        (["scaling", "--global-batch", "9"], ["--global-batch", "2 ranks", "9"]),
        (["throughput", "model.dtype=float16"], ["model.dtype", "bfloat16", "float16"]),
    ],
)
def test_bad_input_is_one_line(rn50, arguments: list[str], expected: list[str]) -> None:
    done = rn50("bench", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert all(word in line for word in expected), line


@pytest.mark.slow
def test_a_small_study(rn50, tmp_path: Path) -> None:
    small = ["data.synthetic={train_samples: 200, eval_samples: 50}", "data.train_samples=200"]
    plot = tmp_path / "scaling.svg"
    done = rn50(
        *("bench", "scaling", "cpu_small", *small, "data.eval_samples=50", "batch.per_rank=2"),
        *(f"data.path={tmp_path}/data", f"system.results={tmp_path}", "--json"),
        *("--models", "googlenet", "--ranks", "1,2", "--passes", "2", "--rounds", "1"),
        *("--steps", "1", "--plot", str(plot)),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = found["rows"]
    assert [(row["curve"], row["ranks"], row["per_rank"]) for row in rows] == [
        *(("googlenet, weak", 1, 2), ("googlenet, weak", 2, 2)),
        *(("googlenet, strong", 1, 4), ("googlenet, strong", 2, 2)),
    ]
    for row in rows:
        assert row["images_per_s"]["n"] == 2
        assert row["images_per_s"]["min"] > 0
        assert row["epoch_s"]["min"] == pytest.approx(200 / row["images_per_s"]["max"])
    assert rows[1]["images_per_s"] == rows[3]["images_per_s"]  # one job for both
    assert "googlenet, strong" in plot.read_text()
    assert not list(tmp_path.glob(".bench-*"))


@pytest.mark.slow
def test_throughput_needs_no_images(rn50, tmp_path: Path) -> None:
    plot = tmp_path / "throughput.svg"
    done = rn50(
        *("bench", "throughput", "smoke", "data.classes=300", "data.crop_px=48", "--json"),
        *(f"data.path={tmp_path}/none", f"system.results={tmp_path}", "--plot", str(plot)),
        *("--ranks", "1,2", "--batch", "6", "--passes", "1", "--rounds", "2", "--steps", "2"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    one, two = found["rows"]
    assert (found["figures"]["classes"], found["figures"]["crop_px"]) == (300, 48)
    assert [(row["ranks"], row["global_batch"]) for row in (one, two)] == [(1, 6), (2, 12)]
    assert two["images_per_s"]["median"] == 2 * two["images_per_s_a_rank"]["median"] > 0
    speedup = two["images_per_s"]["median"] / one["images_per_s"]["median"]
    assert two["speedup"]["median"] == pytest.approx(speedup)
    assert "batch 6" in plot.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["throughput.svg"]
