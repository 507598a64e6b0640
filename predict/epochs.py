"""Epochs to the target by global batch, from published runs. Pure.

Sources: `published/epochs.csv` (MLPerf logs), `published/rcp.csv` (reference convergence points).
Recipes differ by round: those of v0.6 needed more.
"""

from __future__ import annotations

import csv
import math
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

PUBLISHED = Path(__file__).resolve().parent / "published"
LEVEL_SIGMAS = 1.645
"""Half-width of a 90 % interval of a normal distribution."""

OTHER_RECIPES = ("open", "mindspore")
"""Runs of another optimizer or division, which say nothing about the closed LARS recipe."""


class Epochs(NamedTuple):
    """Epochs to the target with a 90 % interval, before rounding to an evaluation."""

    expected: float
    low: float
    high: float


def recipe_round(ruleset: str) -> str:
    """The rounds between which recipes changed: v0.6, and v0.7 on."""
    return "0.6" if ruleset.startswith("0.6") else "0.7"


def read_table(name: str) -> list[dict[str, str]]:
    """Rows of a file of `published/`."""
    with (PUBLISHED / name).open(newline="") as file:
        return list(csv.DictReader(file))


def epochs_to_target(global_batch_size: int, ruleset: str = "4.0.0") -> Epochs:
    """Linear between the published batches; the interval is the scatter of the runs around it.

    Beyond the largest batch the mean slope of all continues (the last one is of two runs: 0 in
    v0.6), and the interval widens by half of the change. Below the smallest nothing changes.
    """
    batches, means, scatter = _monotone(recipe_round(ruleset))
    expected = float(np.interp(global_batch_size, batches, means))
    half = LEVEL_SIGMAS * scatter
    if global_batch_size > batches[-1]:
        more_epochs = means[-1] - means[0]
        slope = more_epochs / (batches[-1] - batches[0])
        beyond = slope * (global_batch_size - batches[-1])
        expected += beyond
        half += beyond / 2
    return Epochs(expected, expected - half, expected + half)


def stop_epoch(expected: float, period: int, offset: int | None) -> int:
    """The first evaluated epoch from `expected` (rounded) on: (epoch - 1) mod period = offset.

    Without an offset the best is meant: it puts an evaluation on the expected epoch.
    """
    # rounds halves down: ceil(37.5 - 0.5) is 37
    epoch = math.ceil(expected - 0.5)
    if offset is None:
        return epoch
    return epoch + (offset - (epoch - 1)) % period


def evaluations(epochs: int, period: int, offset: int | None) -> int:
    """Evaluations of a run that stops after `epochs`: floor((E - 1 - o) / P) + 1."""
    first = offset
    if first is None:
        first = (epochs - 1) % period
    return max(1, (epochs - 1 - first) // period + 1)


@lru_cache
def _monotone(era: str) -> tuple[list[float], list[float], float]:
    """Batches, epochs that never fall (pool adjacent violators), and the scatter around them."""
    points = sorted(_points(era))
    blocks = []
    for _, same_batch in groupby(points, key=itemgetter(0)):
        blocks.append(list(same_batch))
        # larger batches never need fewer epochs: a block that is above the next joins it
        while len(blocks) > 1 and _means(blocks[-2])[1] > _means(blocks[-1])[1]:
            last = blocks.pop()
            blocks[-1] += last
    batches, means = np.transpose(list(map(_means, blocks))).tolist()
    published_batches, published_epochs = np.transpose(points)
    fit = np.interp(published_batches, batches, means)
    # ddof=1: the deviation of a sample, not of all runs there could be
    scatter = float(np.std(fit - published_epochs, ddof=1))
    return batches, means, scatter


def _means(block: list[tuple[float, float]]) -> list[float]:
    return [float(np.mean(column)) for column in zip(*block, strict=True)]


def _points(era: str) -> list[tuple[float, float]]:
    """Batch and epochs of the runs of closed recipes."""
    rows = [row for row in read_table("epochs.csv") if _is_closed(row, era)]
    points = []
    if era == "0.7":
        rows += read_table("rcp.csv")
        # Fujitsu's open run of v0.6: the largest batch there is
        points.append((86016.0, 90.0))
    for row in rows:
        batch = float(row["global_batch_size"])
        points.append((batch, float(row["epochs_mean"])))
    return points


def _is_closed(row: dict[str, str], era: str) -> bool:
    return (
        recipe_round(row["version"]) == era
        and row["optimizer"] == "lars"
        and not any(recipe in row["system"] for recipe in OTHER_RECIPES)
    )
