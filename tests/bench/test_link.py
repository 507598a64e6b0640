"""Two timed allreduces give a link; the emulated networks' tables show how far it carries."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.bench.allreduce import Timed, calibrate_link, calibration_points, predict_s
from rn50.scaling.cost import ALGORITHMS
from rn50.scaling.topology import Link

FUZZ = settings(max_examples=60)
REFERENCE = Path(__file__).resolve().parents[2] / "scaling/published/netlab_reference.csv"


class Check(NamedTuple):
    """A measurement with its prediction; `error` is predicted / measured - 1."""

    point: Timed
    predicted_s: float
    error: float
    calibrated: bool


def check_points(points: Sequence[Timed]) -> tuple[Link, list[Check]]:
    """The link that two of the points give, and all points against it, worst first."""
    chosen = calibration_points(points)
    link = calibrate_link(chosen)
    checks = [
        Check(point, time_s, time_s / point.seconds - 1, any(point is one for one in chosen))
        for point in points
        for time_s in [predict_s(point, link)]
    ]
    return link, sorted(checks, key=lambda check: -abs(check.error))


def read_reference() -> dict[str, list[Timed]]:
    """Measured points by network and rank count, as `1000 Mbit/s 0.25 ms, 8 ranks`."""
    networks: dict[str, list[Timed]] = {}
    with REFERENCE.open(newline="") as file:
        for row in csv.DictReader(file):
            ranks = int(row["ranks"])
            name = f"{row['mbit_per_s']} Mbit/s {row['one_way_ms']} ms, {ranks} ranks"
            point = Timed(float(row["bytes"]), float(row["seconds"]), row["algorithm"], ranks)
            networks.setdefault(name, []).append(point)
    return networks


def timed(link: Link, algorithm: str, ranks: int, n_bytes: float) -> Timed:
    point = Timed(n_bytes, 0.0, algorithm, ranks)
    return point._replace(seconds=predict_s(point, link))


@FUZZ
@given(
    alpha_s=st.floats(1e-6, 1e-2),
    beta=st.floats(1e-10, 1e-7),
    ranks=st.integers(2, 64),
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
)
def test_a_link_is_found_from_its_own_times(
    alpha_s: float, beta: float, ranks: int, algorithm: str
) -> None:
    link = Link(alpha_s, beta, 0.0, eager_bytes=65536)
    points = [timed(link, algorithm, ranks, n_bytes) for n_bytes in (100, 1e8)]
    found = calibrate_link(points)
    assert found.alpha_s == pytest.approx(alpha_s, rel=1e-4)
    assert found.beta_s_per_byte == pytest.approx(beta, rel=1e-4)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [Timed(1e6, 0.1, "ring", 4)],
        [Timed(1e6, 0.1, "ring", 4), Timed(1e6, 0.2, "ring", 4)],
        [Timed(1e3, 0.2, "ring", 4), Timed(1e8, 0.1, "ring", 4)],
        [Timed(1e3, 0.1, "ring", 1), Timed(1e8, 0.1, "ring", 1)],
    ],
)
def test_points_that_fix_no_link_are_refused(points: list[Timed]) -> None:
    with pytest.raises(ValueError, match="expected"):
        calibrate_link(points)


def test_the_two_points_are_rings_small_and_large() -> None:
    points = read_reference()["1000 Mbit/s 0.25 ms, 8 ranks"]
    assert [(p.algorithm, p.n_bytes) for p in calibration_points(points)] == [
        ("ring", 4096),
        ("ring", 25e6),
    ]
    with pytest.raises(ValueError, match="rings expected"):
        calibration_points(points[:1])


@pytest.mark.parametrize(
    ("network", "within", "of", "mean"),
    [
        ("1000 Mbit/s 0.25 ms, 4 ranks", 23, 26, 0.08),
        ("1000 Mbit/s 0.25 ms, 8 ranks", 22, 28, 0.11),
        ("200 Mbit/s 5 ms, 8 ranks", 8, 12, 0.14),
    ],
)
def test_the_emulated_networks_from_two_points(
    network: str, within: int, of: int, mean: float
) -> None:
    """53 of 66 within 15 %. Not: 4 KB whole buffers, and large pairwise exchanges at 8 ranks."""
    link, checks = check_points(read_reference()[network])
    errors = [abs(check.error) for check in checks if not check.calibrated]
    assert len(errors) == of
    assert sum(error <= 0.15 for error in errors) >= within
    assert sum(errors) / of <= mean
    assert max(errors) < 0.45
    wire = 8e-9 if network.startswith("1000") else 40e-9
    assert wire < link.beta_s_per_byte < 1.4 * wire
