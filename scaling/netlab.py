"""A link from two timed allreduces, and the time it predicts for the others. Pure.

For networks one can measure: emulated hosts, or one's own cluster over MPI or Gloo. The two
parameters absorb what they must: reduction and copies go into beta, software into alpha.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .cost import allreduce
from .topology import Link, flat

EAGER_BYTES = 64 << 10  # Open MPI, btl_tcp_eager_limit


class Point(NamedTuple):
    """A measured allreduce: algorithm as `comm.algorithm`, with its grid if it has one."""

    n_bytes: float
    seconds: float
    algorithm: str
    ranks: int


def calibrate_link(points: Sequence[Point]) -> Link:
    """alpha and beta for which the cost model gives the two points (least squares if more).

    Every cost is linear in both: T = A alpha + B beta, A its hops (three each where a message
    exceeds EAGER_BYTES, see `Link`), B the bytes on its path. Choose a small and a large one that
    many rounds go into: a ring of 4 KB and one of 25 MB. Raises ValueError: fewer than two points,
    or points that give no positive alpha and beta.
    """
    if len(points) < 2:
        raise ValueError(f"two measured allreduces expected, found {len(points)}")
    unit = Link(1.0, 0.0, 0.0, EAGER_BYTES), Link(0.0, 1.0, 0.0, EAGER_BYTES)
    parts = np.array([[predict_s(point, link) for link in unit] for point in points])
    seconds = np.array([point.seconds for point in points])
    scaled = parts / seconds[:, None]
    # Columns differ by ten orders of magnitude: scaled to 1 for the solver's sake.
    size = scaled.max(axis=0)
    if not size.all():
        raise ValueError("points with messages expected: one rank, or no bytes, tells nothing")
    (alpha_s, beta), _, rank, _ = np.linalg.lstsq(scaled / size, np.ones(len(points)), rcond=None)
    if rank < 2 or not (alpha_s > 0 and beta > 0):
        raise ValueError("a small and a large allreduce expected: no positive alpha and beta fit")
    return Link(float(alpha_s / size[0]), float(beta / size[1]), 0.0, EAGER_BYTES)


def predict_s(point: Point, link: Link) -> float:
    """The cost model's time for the allreduce of `point`."""
    return allreduce(point.algorithm, flat(point.ranks, link), point.n_bytes).time_s


def calibration_points(points: Iterable[Point]) -> list[Point]:
    """The rule for the two: the smallest ring, and the one nearest to 25 MB (on a log scale)."""
    rings = [point for point in points if point.algorithm == "ring"]
    if len(rings) < 2:
        raise ValueError(f"two measured rings expected, found {len(rings)}")
    small = min(rings, key=lambda point: point.n_bytes)
    large = min(rings, key=lambda point: abs(math.log(point.n_bytes / 25e6)))
    return [small, large]
