"""The scaling study: which jobs, what follows from their times, and one small study for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.bench import curves
from rn50.bench.curves import Case, Point, curve_rows, curves_outcome
from rn50.bench.scaling import MODELS, per_rank, plan_cases, plot_scaling
from rn50.bench.throughput import plot_throughput
from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.schema import Run
from rn50.train.capabilities import check_supported


def test_weak_and_strong_share_the_job_in_which_they_are_the_same() -> None:
    cases = plan_cases(["resnet50"], ["weak", "strong"], [1, 2, 4], 8, 32)
    assert [(c.ranks, c.per_rank) for c in cases.values()] == [
        *((1, 8), (2, 8), (4, 8)),
        *((1, 32), (2, 16), (4, 8)),
    ]
    assert len(set(cases.values())) == 5


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 4096))
def test_strong_keeps_the_global_batch_or_says_no(ranks: int, batch: int, total: int) -> None:
    assert per_rank("weak", ranks, batch, total) == batch
    if total % ranks:
        with pytest.raises(UserError, match="--global-batch: a multiple of"):
            per_rank("strong", ranks, batch, total)
    else:
        assert per_rank("strong", ranks, batch, total) * ranks == total


def point(ranks: int, *images_per_s: float) -> Point:
    busy = [float(min(ranks, 2))] * len(images_per_s)
    return Point(Case("resnet50", ranks, 8), list(images_per_s), busy)


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
    assert two["efficiency_cpu"]["median"] == two["efficiency_cores"]["median"]
    assert (one["epoch_s"]["min"], one["epoch_s"]["max"]) == (20, 40)
    outcome = curves_outcome({("b", "c"): rows}, ["model"], run, draw=print)
    assert [line[:2] for line in outcome.table] == [("b", "1"), ("b", "2"), ("b", "4*")]
    assert list(outcome.ratios) == [
        f"b, c, {ranks} ranks: efficiency against cores" for ranks in (2, 4)
    ]
    assert outcome.notes == ["* more ranks than the 2 cores: they share them"]


def test_without_one_rank_the_fewest_are_the_measure(run: Run) -> None:
    _, four = curve_rows([point(2, 20.0), point(4, 30.0)], run)
    assert four["efficiency_ranks"]["median"] == 0.75
    assert four["efficiency_cores"]["median"] == 1.5  # four ranks on the two cores of two
    gpus = load("dgx1_8", ["system.cores_per_rank=5"]).run
    _, four = curve_rows([point(2, 20.0), point(4, 30.0)], gpus)
    assert four["efficiency_cores"]["median"] == 0.75  # a GPU each, whatever cores there are


@pytest.mark.slow
def test_plots_are_the_same_each_time(run: Run, tmp_path: Path) -> None:
    rows = curve_rows([point(1, 10.0), point(2, 19.0)], run)
    for name in ("a.svg", "b.svg"):
        plot_scaling({("resnet50", "weak"): rows}, tmp_path / name)
        plot_throughput({("batch 8",): rows, ("batch 16",): rows}, "quick", tmp_path / f"t{name}")
    for one, other in (("a.svg", "b.svg"), ("ta.svg", "tb.svg")):
        assert (tmp_path / one).read_bytes() == (tmp_path / other).read_bytes()
    text = (tmp_path / "ta.svg").read_text()
    assert "<svg" in text and "batch 16" in text and "95%" in text


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
        (["--models", "vgg"], "--models: alexnet, googlenet, resnet50 expected, found vgg"),
        (["--modes", "week"], "--modes: weak, strong expected, found week"),
        (["--ranks", "2,4"], "--ranks: 1 and rising counts expected, found 2,4"),
        (["--ranks", "1,4,2"], "--ranks: 1 and rising counts expected, found 1,4,2"),
        (["--ranks", "1,x"], "--ranks: whole numbers with commas expected"),
        (["--global-batch", "9"], "--global-batch: a multiple of 2 ranks expected, found 9"),
    ],
)
def test_bad_input_is_one_line(rn50, arguments: list[str], expected: str) -> None:
    done = rn50("bench", "scaling", "cpu_small", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert [expected in line for line in done.stderr.splitlines()] == [True]


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
    rows = found["figures"]["rows"]
    assert [(row["mode"], row["ranks"], row["per_rank"]) for row in rows] == [
        *(("weak", 1, 2), ("weak", 2, 2), ("strong", 1, 4), ("strong", 2, 2)),
    ]
    for row in rows:
        assert row["images_per_s"]["n"] == 2
        assert row["images_per_s"]["min"] > 0
        assert 0 < row["busy_cores"]["median"] < 1.5 * found["machine"]["cores"]
        assert row["epoch_s"]["min"] == pytest.approx(200 / row["images_per_s"]["max"])
    assert rows[1]["images_per_s"] == rows[3]["images_per_s"]  # one job for both
    assert "<svg" in plot.read_text()
    assert not list(tmp_path.glob(".bench-*"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--ranks", "2,1"], "--ranks: rising numbers expected, found 2,1"),
        (["--batch", "8,8"], "--batch: rising numbers expected, found 8,8"),
        (["--batch", "1e3"], "--batch: whole numbers with commas expected"),
        (["model.dtype=float16"], "model.dtype: float32 or bfloat16 expected on a cpu"),
    ],
)
def test_throughput_refuses_in_one_line(rn50, arguments: list[str], expected: str) -> None:
    done = rn50("bench", "throughput", "smoke", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert [expected in line for line in done.stderr.splitlines()] == [True]


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
    one, two = found["figures"]["rows"]
    assert (found["figures"]["classes"], found["figures"]["crop_px"]) == (300, 48)
    assert [(row["ranks"], row["global_batch"]) for row in (one, two)] == [(1, 6), (2, 12)]
    assert two["images_per_s"]["median"] == 2 * two["images_per_s_a_rank"]["median"] > 0
    speedup = two["images_per_s"]["median"] / one["images_per_s"]["median"]
    assert two["speedup"]["median"] == pytest.approx(speedup)
    assert list(found["ratios"]) == ["batch 6, 2 ranks: efficiency against cores"]
    assert "batch 6" in plot.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["throughput.svg"]
