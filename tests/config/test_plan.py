import math
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.config.load import load
from rn50.config.plan import Plan, Segment, build_plan, spread
from rn50.config.schema import Run
from rn50.config.values import Duration, dynamic_start
from tests.conftest import refused

CHANGE = "batch.changes=[{{after_epoch: 2, per_rank: {}, active_ranks: {}}}]"


def plan_of(config: str, *overrides: str) -> Plan:
    return build_plan(load(config, overrides).run)


def bare_plan(samples: int, per_rank: int, last_batch: str, ranks: int = 1) -> Plan:
    """One batch all along."""
    segment = Segment(1, 0, 0, per_rank, ranks)
    return Plan(ranks, samples, last_batch, (segment,))


@given(
    samples=st.integers(1, 1_281_167),
    batch=st.integers(1, 100_000),
    epochs=st.integers(1, 90),
)
def test_epoch_ends_are_exact_integer_arithmetic(
    samples: int, batch: int, epochs: int
) -> None:
    mixed = bare_plan(samples, batch, "mix")
    assert mixed.epoch_end_step(epochs) == -(-epochs * samples // batch)
    padded = bare_plan(samples, batch, "pad")
    assert padded.epoch_end_step(epochs) == epochs * padded.steps_per_epoch


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["schedule.warmup=8 epochs"], r"schedule.warmup: .*\(400 steps\)"),
        (["batch.per_rank=1601"], r"batch\.per_rank: 1601 on 2 ranks .* 3202, .* 3200"),
        (
            ["batch.follow=momentum", "batch.reference=641"],
            r"batch.follow: .* -0\.\d+ .* 64 ",
        ),
        (
            ["batch.follow=momentum_as_printed", "batch.reference=5"],
            r"batch.follow: .* -0\.28 .* 64 ",
        ),
        (
            ["schedule.length=3 epochs", "eval.offset=3"],
            "eval.offset: no evaluation in 3 epochs",
        ),
        (
            ["batch.active_ranks=3"],
            r"batch\.active_ranks: at most 2 ranks expected, found 3",
        ),
    ],
)
def test_parts_that_contradict_each_other_are_refused(
    overrides: list[str], problem: str
) -> None:
    with refused(f"^{problem}"):
        plan_of("quick", *overrides)


def test_a_run_is_shown_with_the_steps_that_it_trains() -> None:
    """Its last evaluation comes before the end of the schedule."""
    run = load("dgxa100_8").run
    assert build_plan(run).last_step == 13_755 < build_plan(run).total_steps


@pytest.mark.parametrize(
    ("scale", "batch", "start"),
    [
        (128.0, 64, None),
        ("dynamic", 64, 1024),
        ("dynamic", 65, 512),
        ("dynamic(0.5)", 64, 0.5),
        ("dynamics", 64, None),
    ],
)
def test_where_a_dynamic_loss_scale_starts(
    scale: object, batch: int, start: float | None
) -> None:
    assert dynamic_start(scale, batch) == start


def test_the_longest_warmup_leaves_one_step() -> None:
    plan = plan_of("quick", "schedule.warmup=399 steps")
    assert plan.total_steps == 400
    assert plan.decay_steps == 1


def test_log_interval_is_at_least_a_step() -> None:
    assert plan_of("quick", "log.every=0 steps").log_every_steps == 1


# --- batch-size control -------------------------------------------------------------------------


class Walked(NamedTuple):
    """A step, found by walking: its epoch, its batch, and what is done after it."""

    epoch: int
    batch: tuple[int, int]
    images: int
    epochs_done: float


def walk(run: Run) -> list[Walked]:
    """Every step of a run of whole epochs, one batch at a time, from the config alone."""
    ranks = run.system.world_size
    samples = run.data.train_samples
    batch = (run.batch.per_rank, run.batch.active_ranks or ranks)
    changes = {change.after_epoch: change for change in run.batch.changes}
    walked: list[Walked] = []
    images = 0
    for epoch in range(1, int(run.schedule.length.value) + 1):
        if change := changes.get(epoch - 1):
            batch = (change.per_rank, change.active_ranks or ranks)
        size = math.prod(batch)
        if run.data.last_batch == "pad":
            steps = len(range(0, samples, size))
            for step in range(1, steps + 1):
                images += size
                done = epoch - 1 + step / steps
                walked.append(Walked(epoch, batch, images, done))
        else:
            while images < epoch * samples:
                images += size
                done = images / samples
                walked.append(Walked(epoch, batch, images, done))
    return walked


@st.composite
def changing_runs(draw: st.DrawFn, min_changes: int = 0) -> Run:
    """Runs of a few epochs whose batch and ranks change; the last change may lie beyond the end."""
    ranks = draw(st.integers(1, 6))
    samples = draw(st.integers(ranks, 70))

    def batch() -> dict[str, Any]:
        active = draw(st.none() | st.integers(1, ranks))
        largest = samples // (active or ranks)
        per_rank = draw(st.integers(1, largest))
        return {"per_rank": per_rank, "active_ranks": active}

    epochs = st.lists(st.integers(1, 7), unique=True, min_size=min_changes, max_size=4)
    after = sorted(draw(epochs))
    changes = [{"after_epoch": epoch, **batch()} for epoch in after]
    last_batch = draw(st.sampled_from(["mix", "pad"]))
    length = f"{draw(st.integers(1, 9))} epochs"
    return Run.model_validate(
        {
            "system": {"ranks_per_node": ranks},
            "data": {"train_samples": samples, "last_batch": last_batch},
            "batch": {**batch(), "changes": changes},
            "schedule": {"length": length, "warmup": "0 steps"},
        }
    )


@given(run=changing_runs())
def test_a_plan_is_the_row_walked_step_by_step(run: Run) -> None:
    plan = build_plan(run)
    walked = walk(run)
    assert plan.total_steps == len(walked)
    assert plan.images_after(0) == 0
    assert plan.epoch_at(0) == 0
    assert plan.epoch_end_step(0) == 0
    last_steps = {}
    for step, expected in enumerate(walked, start=1):
        segment = plan.segment_of_step(step)
        assert segment == plan.segment_of_epoch(expected.epoch)
        assert (segment.per_rank, segment.active_ranks) == expected.batch
        assert plan.images_after(step) == expected.images
        epochs_done = pytest.approx(expected.epochs_done, rel=1e-12)
        assert plan.epoch_at(step) == epochs_done
        last_steps[expected.epoch] = step
    for epoch in range(1, plan.epochs + 1):
        assert plan.epoch_end_step(epoch) == last_steps[epoch]


@given(run=changing_runs(), part=st.floats(0, 1))
def test_whole_epochs_last_until_their_last_step(run: Run, part: float) -> None:
    """But for one batch that mixes all along: there the nearest step, as ever."""
    plan = build_plan(run)
    mixes_all_along = len(plan.segments) == 1 and run.data.last_batch == "mix"
    for epoch in range(plan.epochs + 4):
        steps = plan.steps(Duration(epoch, "epochs"))
        expected = plan.epoch_end_step(epoch)
        if mixes_all_along:
            expected = round(epoch * plan.train_samples / plan.global_batch_size)
        assert steps == expected
        within = plan.steps(Duration(epoch + part, "epochs"))
        next_steps = plan.steps(Duration(epoch + 1, "epochs"))
        assert steps <= within <= next_steps


@given(run=changing_runs(min_changes=1), data=st.data())
def test_a_length_in_steps_plans_the_epochs_that_hold_them_across_changes(
    run: Run, data: st.DataObject
) -> None:
    walked = walk(run)
    steps = data.draw(st.integers(1, len(walked)))
    length = Duration(float(steps), "steps")
    schedule = run.schedule.model_copy(update={"length": length})
    shorter = run.model_copy(update={"schedule": schedule})
    plan = build_plan(shorter)
    assert plan.epochs == walked[steps - 1].epoch
    if steps == len(walked):
        assert plan == build_plan(run)


@pytest.mark.parametrize(
    ("override", "found_settings"),
    [
        ("data.last_batch=mix", "mix, 2 of 2 and None"),
        ("batch.active_ranks=1", "pad, 1 of 2 and None"),
        ("system.job.min_nodes=1", "pad, 2 of 2 and 1"),
    ],
)
def test_what_parts_of_a_set_do_not_go_with_is_refused(
    override: str, found_settings: str
) -> None:
    fits = ["data.shards=node", "data.last_batch=pad", CHANGE.format(8, "null")]
    nodes = ("system.nodes=2", "system.ranks_per_node=1")
    assert plan_of("quick", *nodes, *fits).parts == 2
    with refused(f"^data.shards: node needs data.last_batch: .* {found_settings}$"):
        plan_of("quick", *fits, override)


@given(st.integers(1, 200_000), st.integers(1, 5000))
def test_the_same_global_batch_on_any_number_of_ranks(batch: int, ranks: int) -> None:
    per_rank, active = spread(batch, ranks)
    assert per_rank * active == batch
    assert active <= ranks
    for count in range(active + 1, min(ranks, batch) + 1):
        assert batch % count != 0
