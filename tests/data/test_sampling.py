from itertools import combinations, islice, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.config.manifest import Part
from rn50.config.plan import Plan, Segment, build_plan
from rn50.config.schema import Run
from rn50.data import sampling
from rn50.data.sampling import BatchIndices, TrainOrder, epoch_order
from tests.config.test_plan import changing_runs

SEEDS = st.integers(0, 2**64 - 1)
PX = st.integers(20, 2000)
SHARE = st.floats(0.01, 1)
NARROW = st.floats(0.3, 1)
WIDE = st.floats(1, 3)
REFERENCE = {"area": (0.05, 1.0), "aspect": (3 / 4, 4 / 3)}


def joined(batches: list[BatchIndices]) -> BatchIndices:
    columns = zip(*batches, strict=True)
    return BatchIndices(*map(np.concatenate, columns))


def windows(
    sizes: Any, seed: int = 1, **limits: tuple[float, float]
) -> tuple[sampling.Floats, sampling.Floats]:
    """(anchors, shapes) for images of these (height, width)."""
    sides = np.array(sizes, np.float32)
    positions = np.arange(len(sizes))
    limits = limits or REFERENCE
    return sampling.crop_windows(sides, positions, seed, **limits)


# --- batch-size control -------------------------------------------------------------------------


@given(plan=changing_runs(min_changes=1).map(build_plan), seed=SEEDS)
def test_every_epoch_shows_its_order_once_whatever_the_changes(
    plan: Plan, seed: int
) -> None:
    """Mixed: the batch in which an epoch ends runs over into the next, and has the old size to its
    end. Padded: it is filled from the front of its own epoch."""
    samples = plan.train_samples
    mixed = plan.last_batch == "mix"
    order = TrainOrder(plan, seed)
    steps = []
    for step in range(1, plan.total_steps + 1):
        ranks = range(plan.segment_of_step(step).active_ranks)
        shares = [order.batch(step, rank) for rank in ranks]
        steps.append(joined(shares))
    images, positions, epochs = joined(steps)
    assert np.array_equal(positions, np.arange(len(positions)))
    for epoch in range(1, plan.epochs + 1):
        images_of_epoch = images[epochs == epoch]
        size = len(images_of_epoch)
        shuffled = epoch_order(samples, seed, epoch - 1)
        assert sorted(shuffled) == [*range(samples)]
        assert np.array_equal(images_of_epoch, np.resize(shuffled, size))
        last = plan.epoch_end_step(epoch)
        end = steps[last - 1]
        assert epoch in end.epochs
        for later in steps[last:]:
            assert epoch not in later.epochs
        if mixed:
            assert size == samples
        else:
            assert 0 <= size - samples < len(end.images)
            assert (end.epochs == epoch).all()


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        ((3, 1, 3), [1, 2, 5, 6, 7, 8, 9]),
        ((1, 3, 1), [3, 4]),
        ((3, 1, 1), [1, 2]),
        ((1, 1, 1), []),
    ],
)
def test_active_steps_end_where_a_rank_has_no_share_to_come(
    active: tuple[int, int, int], expected: list[int]
) -> None:
    """Two steps in each segment but the last; an endless search would hang a prefetching rank."""
    segments = tuple(
        Segment(1 + n, 2 * n, 24 * n, 12 // ranks, ranks)
        for n, ranks in enumerate(active)
    )
    plan = Plan(3, 24, "mix", segments)
    order = TrainOrder(plan, 1)
    steps = order.active_steps(2)
    assert [*islice(steps, 7)] == expected


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    keys = product((1, 2), range(3))
    orders = [epoch_order(1000, *key) for key in keys]
    for order, other_order in combinations(orders, 2):
        assert np.mean(order == other_order) < 0.02


# --- parts of the set that stay on their nodes ----------------------------------------------------


@given(nodes=st.integers(1, 4), local=st.integers(1, 3), data=st.data(), seed=SEEDS)
def test_each_node_shuffles_its_own_part_and_every_image_comes_once_an_epoch(
    nodes: int, local: int, data: st.DataObject, seed: int
) -> None:
    ranks = nodes * local
    samples = data.draw(st.integers(ranks, 60))
    per_rank = st.integers(1, samples // ranks)
    changes = [{"after_epoch": 2, "per_rank": data.draw(per_rank)}]
    run = {
        "system": {"nodes": nodes, "ranks_per_node": local},
        "data": {"train_samples": samples, "last_batch": "pad", "shards": "node"},
        "batch": {"per_rank": data.draw(per_rank), "changes": changes},
        "schedule": {"length": "3 epochs", "warmup": "0 steps"},
    }
    plan = build_plan(Run.model_validate(run))
    order = TrainOrder(plan, seed, stored_from=3)
    positions: list[int] = []
    for epoch, node in product(range(1, 4), range(nodes)):
        begin = plan.epoch_end_step(epoch - 1)
        end = plan.epoch_end_step(epoch)
        steps = range(begin + 1, end + 1)
        first_rank = node * local
        ranks_of_node = range(first_rank, first_rank + local)
        step_ranks = product(steps, ranks_of_node)
        shares = joined([order.batch(*step_rank) for step_rank in step_ranks])
        positions += shares.positions.tolist()
        part = Part(node, nodes)
        first, last = part.images(samples)
        expected = epoch_order(samples, seed, epoch - 1, part)
        assert sorted(expected) == [*range(first, last)]
        if epoch == 3:
            expected = np.arange(first, last)
        size = len(shares.images)
        assert size >= len(expected)
        assert np.array_equal(shares.images, np.resize(expected, size))
        assert (shares.epochs == epoch).all()
    # each with a window of its own
    assert sorted(positions) == [*range(len(positions))]
    parts = [Part(node, nodes) for node in range(nodes)]
    bounds = [part.images(samples) for part in parts]
    firsts, lasts = zip(*bounds, strict=True)
    assert (*firsts, samples) == (0, *lasts)


# --- evaluation ---------------------------------------------------------------------------------


@given(
    samples=st.integers(1, 300), ranks=st.integers(1, 20), per_rank=st.integers(1, 40)
)
def test_every_image_is_evaluated_exactly_once(
    samples: int, ranks: int, per_rank: int
) -> None:
    batches = sampling.eval_batches(samples, ranks, per_rank)
    counted: list[int] = []
    for rank in range(ranks):
        for batch in range(batches):
            images, counts = sampling.eval_batch(
                samples, batch, rank=rank, ranks=ranks, batch_per_rank=per_rank
            )
            assert images.shape == counts.shape == (per_rank,)
            assert images.min() >= 0
            assert images.max() < samples
            counted += images[counts].tolist()
    assert sorted(counted) == [*range(samples)]


def test_only_images_of_more_than_one_to_four_are_not_evaluated_whole() -> None:
    sizes = np.array([(40, 160), (160, 40), (33, 47), (30, 160)], np.float32)
    starts, ends = sampling.eval_windows(sizes, 20)
    is_whole = (ends - starts == sizes).all(axis=1)
    assert is_whole.tolist() == [True, True, True, False]


# --- crop windows -------------------------------------------------------------------------------


@given(
    size=st.tuples(PX, PX),
    area=st.tuples(SHARE, SHARE).map(sorted),
    aspect=st.tuples(NARROW, WIDE),
    seed=SEEDS,
)
def test_windows_lie_inside_with_area_and_aspect_in_range(
    size: tuple[int, int], area: Any, aspect: Any, seed: int
) -> None:
    anchors, shapes = windows([size] * 200, seed, area=area, aspect=aspect)
    assert anchors.dtype == shapes.dtype == np.float32
    assert anchors.min() >= 0
    ends = anchors + shapes
    assert ends.max() <= 1 + 1e-6
    sides = shapes.astype(float) * size
    big = sides.min(axis=1) > 2  # smaller ones are held at a pixel
    heights, widths = sides[big].T
    ratios = widths / heights
    narrowest, widest = aspect
    assert np.all(ratios > narrowest - 1e-3)
    assert np.all(ratios < widest + 1e-3)
    areas = shapes.prod(axis=1)
    smallest, largest = area
    large_enough = areas > smallest - 1e-4
    small_enough = areas < largest + 1e-4
    in_range = large_enough & small_enough
    off_centre = np.abs(2 * anchors + shapes - 1)
    centred = off_centre.max(axis=1) < 1e-5
    reaches_an_edge = shapes.max(axis=1) > 1 - 1e-5
    cut_at_the_edges = centred & reaches_an_edge
    assert np.all(in_range | cut_at_the_edges | ~big)


def test_windows_of_a_common_photo_follow_the_reference_distribution() -> None:
    """500 x 375: area uniform and log-aspect symmetric, but for those that do not fit."""
    anchors, shapes = windows([(375, 500)] * 20_000)
    areas = shapes.prod(axis=1)
    assert areas.min() < 0.06
    assert areas.max() > 0.9
    small = areas < 0.5
    areas = areas[small]
    shapes = shapes[small]
    heights, widths = shapes.T
    relative_anchors = anchors[small] / (1 - shapes)
    aspects = widths * 500 / (heights * 375)
    ratios = np.log(aspects)
    assert areas.mean() == pytest.approx(0.275, abs=0.01)
    assert ratios.mean() == pytest.approx(0, abs=0.01)
    uniform_std = np.log(4 / 3) / np.sqrt(3)
    assert ratios.std() == pytest.approx(uniform_std, abs=0.01)
    assert relative_anchors.mean(axis=0) == pytest.approx(0.5, abs=0.02)
    quantities = [areas, ratios, *relative_anchors.T]
    correlation = np.corrcoef(quantities) - np.eye(4)
    assert np.abs(correlation).max() < 0.05


def test_a_panorama_is_cropped_to_its_whole_height_and_the_widest_aspect() -> None:
    """No window of that area fits into 20 x 100 pixels."""
    anchors, shapes = windows(
        [(20, 100), (100, 20)], area=(0.99, 1.0), aspect=(3 / 4, 4 / 3)
    )
    across = 20 * 4 / 3 / 100
    expected = [1, across, across, 1]
    assert shapes.ravel() == pytest.approx(expected)
    assert anchors == pytest.approx((1 - shapes) / 2)


def test_windows_of_tiny_images_hold_a_pixel() -> None:
    heights = 1, 2, 3, 7
    widths = 1, 2, 300
    sizes = [*product(heights, widths)] * 500
    anchors, shapes = windows(sizes)
    first = np.rint(anchors * sizes)
    last = np.rint((anchors + shapes) * sizes)
    assert np.all(last - first >= 1)
    assert np.all(last <= sizes)


# --- random numbers -----------------------------------------------------------------------------


def test_uniforms_are_those_of_splitmix64() -> None:
    """Its first outputs for the seed 0 (prng.di.unimi.it/splitmix64.c)."""
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    expected = [(output >> 11) / 2**53 for output in outputs]
    for positions, count in ((1, 3), (3, 1)):
        u = sampling.uniforms(np.arange(positions), 0, count)
        assert u.ravel().tolist() == expected
