from itertools import combinations, islice, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rn50.config.manifest import Part
from rn50.config.plan import Plan, Segment, build_plan
from rn50.config.schema import Run
from rn50.data import sampling
from tests.config.test_plan import changing_runs

SEEDS = st.integers(0, 2**64 - 1)
REFERENCE = {"area": (0.05, 1.0), "aspect": (3 / 4, 4 / 3)}


def steps_of(
    order: sampling.TrainOrder, plan: Plan, steps: int
) -> list[sampling.BatchIndices]:
    """The global batches of the first steps: the shares of the active ranks one after the other."""
    found = []
    for step in range(1, steps + 1):
        active = plan.segment_of_step(step).active_ranks
        shares = [order.batch(step, rank) for rank in range(active)]
        found.append(
            sampling.BatchIndices(
                *(np.concatenate(column) for column in zip(*shares, strict=True))
            )
        )
    return found


def float_sizes(*pixels: int) -> NDArray[np.float32]:
    return np.array(pixels, np.float32)


# --- batch-size control -------------------------------------------------------------------------


@given(plan=changing_runs(min_changes=1).map(build_plan), seed=SEEDS)
def test_every_epoch_shows_its_order_once_whatever_the_changes(
    plan: Plan, seed: int
) -> None:
    """Mixed: the batch in which an epoch ends runs over into the next, and has the old size to its
    end. Padded: it is filled from the front of its own epoch."""
    samples = plan.train_samples
    mixed = plan.last_batch == "mix"
    steps = steps_of(sampling.TrainOrder(plan, seed), plan, plan.total_steps)
    images, places, epochs = (
        np.concatenate(column) for column in zip(*steps, strict=True)
    )
    assert np.array_equal(places, np.arange(len(places)))
    for epoch in range(1, plan.epochs + 1):
        order = sampling.epoch_order(samples, seed, epoch - 1)
        assert sorted(order) == list(range(samples))
        mine = images[epochs == epoch]
        assert np.array_equal(mine, np.resize(order, mine.size))
        last = plan.epoch_end_step(epoch)
        assert epoch in steps[last - 1].epochs
        assert all(epoch not in picks.epochs for picks in steps[last:])
        padding = mine.size - samples
        assert padding == 0 if mixed else 0 <= padding < len(steps[last - 1].images)
        assert mixed or (steps[last - 1].epochs == epoch).all()


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        ((3, 3, 3), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ((3, 1, 3), [1, 2, 5, 6, 7, 8, 9]),
        ((1, 3, 1), [3, 4]),
        ((3, 1, 1), [1, 2]),
        ((1, 1, 1), []),
        ((1, 2, 3), [5, 6, 7, 8, 9]),
    ],
)
def test_active_steps_end_where_a_rank_has_no_share_to_come(
    active: tuple[int, int, int], expected: list[int]
) -> None:
    """Two steps in each segment but the last; an endless search would hang a prefetching rank."""
    segments = []
    place = 0
    for number, ranks in enumerate(active):
        segments.append(Segment(1 + number, 2 * number, place, 12 // ranks, ranks))
        place += 24
    order = sampling.TrainOrder(Plan(3, 24, "mix", tuple(segments)), 1)
    assert [step for step in islice(order.active_steps(2), 7) if step < 10] == expected[
        :7
    ]
    if active[-1] < 3:
        assert list(order.active_steps(2)) == expected


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [
        sampling.epoch_order(1000, seed, epoch) for seed in (1, 2) for epoch in range(3)
    ]
    assert all(sorted(order) == list(range(1000)) for order in orders)
    for one, other in combinations(orders, 2):
        assert np.mean(one == other) < 0.02


# --- parts of the set that stay on their nodes ----------------------------------------------------


@given(
    nodes=st.integers(1, 4),
    local=st.integers(1, 3),
    data=st.data(),
    seed=SEEDS,
)
def test_each_node_shuffles_its_own_part_and_every_image_comes_once_an_epoch(
    nodes: int, local: int, data: st.DataObject, seed: int
) -> None:
    ranks = nodes * local
    samples = data.draw(st.integers(ranks, 60))
    per_rank = st.integers(1, samples // ranks)
    run = {
        "system": {"nodes": nodes, "ranks_per_node": local},
        "data": {"train_samples": samples, "last_batch": "pad", "shards": "node"},
        "batch": {
            "per_rank": data.draw(per_rank),
            "changes": [{"after_epoch": 2, "per_rank": data.draw(per_rank)}],
        },
        "schedule": {"length": "3 epochs", "warmup": "0 steps"},
    }
    plan = build_plan(Run.model_validate(run))
    order = sampling.TrainOrder(plan, seed, stored_from=3)
    places: list[int] = []
    for epoch in range(1, 4):
        steps = range(
            plan.epoch_end_step(epoch - 1) + 1, plan.epoch_end_step(epoch) + 1
        )
        for node in range(nodes):
            shares = [
                order.batch(step, node * local + rank)
                for step in steps
                for rank in range(local)
            ]
            mine = np.concatenate([share.images for share in shares])
            places += np.concatenate([share.positions for share in shares]).tolist()
            part = Part(node, nodes)
            first, last = part.images(samples)
            assert sorted(mine[: last - first]) == list(range(first, last))
            own = sampling.epoch_order(samples, seed, epoch - 1, part)
            if epoch == 3:
                own = np.arange(first, last)
            assert np.array_equal(mine, np.resize(own, mine.size))
            assert all((share.epochs == epoch).all() for share in shares)
    assert sorted(places) == list(range(len(places)))  # each with a window of its own
    bounds = [Part(node, nodes).images(samples) for node in range(nodes)]
    assert [0, *(last for _, last in bounds)] == [
        *(first for first, _ in bounds),
        samples,
    ]


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
    assert sorted(counted) == list(range(samples))


# --- crop windows -------------------------------------------------------------------------------


@given(
    height=st.integers(20, 2000),
    width=st.integers(20, 2000),
    low=st.floats(0.01, 1),
    high=st.floats(0.01, 1),
    narrow=st.floats(0.3, 1),
    wide=st.floats(1, 3),
    seed=SEEDS,
)
def test_windows_lie_inside_with_area_and_aspect_in_range(
    height: int,
    width: int,
    low: float,
    high: float,
    narrow: float,
    wide: float,
    seed: int,
) -> None:
    assume(low <= high)
    count = 200
    heights = float_sizes(*[height] * count)
    widths = float_sizes(*[width] * count)
    places = np.arange(count)
    anchors, shapes = sampling.crop_windows(
        heights, widths, places, seed, area=(low, high), aspect=(narrow, wide)
    )
    assert anchors.shape == shapes.shape == (count, 2)
    assert anchors.dtype == shapes.dtype == np.float32
    assert anchors.min() >= 0
    assert (anchors + shapes).max() <= 1 + 1e-6
    areas = shapes.astype(float).prod(axis=1)
    ratios = shapes[:, 1] * width / (shapes[:, 0] * height)
    big = (shapes * [height, width]).min(axis=1) > 2  # smaller ones are held at a pixel
    assert np.all(ratios[big] > narrow - 1e-3)
    assert np.all(ratios[big] < wide + 1e-3)
    in_range = (areas > low - 1e-4) & (areas < high + 1e-4)
    centred = np.abs(2 * anchors + shapes - 1).max(axis=1) < 1e-5
    reaches_an_edge = shapes.max(axis=1) > 1 - 1e-5
    assert np.all(in_range | (centred & reaches_an_edge) | ~big)


def test_windows_of_a_common_photo_follow_the_reference_distribution() -> None:
    """500 x 375: area uniform and log-aspect symmetric, but for those that do not fit."""
    count = 20_000
    heights = float_sizes(*[375] * count)
    widths = float_sizes(*[500] * count)
    anchors, shapes = sampling.crop_windows(
        heights, widths, np.arange(count), 1, **REFERENCE
    )
    areas = shapes.astype(float).prod(axis=1)
    assert areas.min() < 0.06
    assert areas.max() > 0.9
    small = areas[areas < 0.5]
    assert abs(small.mean() - 0.275) < 0.01
    ratios = np.log(shapes[:, 1] * 500 / (shapes[:, 0] * 375))[areas < 0.5]
    assert abs(ratios.mean()) < 0.01
    assert abs(ratios.std() - np.log(4 / 3) / np.sqrt(3)) < 0.01
    where = anchors / np.maximum(1 - shapes, 1e-9)
    assert np.all(np.abs(where[areas < 0.5].mean(axis=0) - 0.5) < 0.02)
    drawn = np.stack([areas, shapes[:, 1] / shapes[:, 0], *where.T])[:, areas < 0.5]
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 0.05


def test_a_panorama_is_cropped_to_its_whole_height_and_the_widest_aspect() -> None:
    """No window of that area fits into 20 x 100 pixels."""
    size = float_sizes(20), float_sizes(100)
    limits = {"area": (0.99, 1.0), "aspect": (3 / 4, 4 / 3)}
    for heights, widths, width_first in ((*size, False), (*size[::-1], True)):
        anchors, shapes = sampling.crop_windows(
            heights, widths, np.arange(1), 1, **limits
        )
        order = -1 if width_first else 1
        assert shapes[0, ::order] == pytest.approx([1, 20 * 4 / 3 / 100])
        assert anchors[0] == pytest.approx((1 - shapes[0]) / 2)


def test_windows_of_tiny_images_hold_a_pixel() -> None:
    size = np.repeat([*product((1, 2, 3, 7), (1, 2, 300))], 500, axis=0).astype(
        np.float32
    )
    anchors, shapes = sampling.crop_windows(
        *size.T, np.arange(len(size)), 1, **REFERENCE
    )
    first = np.rint(anchors * size)
    last = np.rint((anchors + shapes) * size)
    assert np.all(last - first >= 1)
    assert np.all(last <= size)


# --- random numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "first"), [(0, 0), (1, 10**9), (2**63, 0), (2**64 - 1, 2**45)]
)
def test_uniforms_look_uniform(seed: int, first: int) -> None:
    u = sampling.uniforms(np.arange(first, first + 20_000), seed, 8)
    assert u.min() >= 0
    assert u.max() < 1
    assert len(np.unique(u)) > u.size - 3
    correlation = np.corrcoef(u.T) - np.eye(8)
    assert np.abs(correlation).max() < 0.04
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.04
    counts, _ = np.histogram(u, 64, (0, 1))
    assert np.all(np.abs(counts / u.size * 64 - 1) < 0.1)
