import math
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.config.duration import Duration
from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.plan import Plan, Segment, build_plan, spread
from rn50.config.schema import Run


def plan_of(config: str, *overrides: str) -> Plan:
    return build_plan(load(config, overrides).run)


def bare_plan(samples: int, batch: int, last_batch: str) -> Plan:
    return Plan(1, samples, last_batch, (Segment(1, 0, 0, per_rank=batch, active_ranks=1),))


def epoch_ends_by_walking(samples: int, batch: int, last_batch: str, epochs: int) -> list[int]:
    """Step that completes each epoch, found by taking images one batch at a time."""
    ends = []
    step = seen = 0
    for epoch in range(1, epochs + 1):
        if last_batch == "pad":
            left = samples
            while left > 0:
                left -= batch
                step += 1
        else:
            while seen < epoch * samples:
                seen += batch
                step += 1
        ends.append(step)
    return ends


@given(
    samples=st.integers(1, 400),
    batch=st.integers(1, 400),
    last_batch=st.sampled_from(["mix", "pad"]),
    epochs=st.integers(1, 12),
)
def test_an_epoch_ends_when_every_image_was_seen_once(
    samples: int, batch: int, last_batch: str, epochs: int
) -> None:
    plan = bare_plan(samples, batch, last_batch)
    ends = [plan.epoch_end_step(epoch) for epoch in range(1, epochs + 1)]
    assert ends == epoch_ends_by_walking(samples, batch, last_batch, epochs)


@given(
    samples=st.integers(1, 1_281_167),
    batch=st.integers(1, 100_000),
    epochs=st.integers(1, 90),
)
def test_epoch_ends_are_exact_integer_arithmetic(samples: int, batch: int, epochs: int) -> None:
    mixed = bare_plan(samples, batch, "mix")
    assert mixed.epoch_end_step(epochs) == -(-epochs * samples // batch)
    assert math.isclose(mixed.steps_per_epoch * batch, samples)
    padded = bare_plan(samples, batch, "pad")
    assert padded.epoch_end_step(epochs) == epochs * padded.steps_per_epoch


def test_evaluations_of_the_fujitsu_record() -> None:
    plan = plan_of("abci_2048_open")
    assert (plan.ranks, plan.steps_per_epoch, plan.decay_steps) == (2048, 15, 780)
    assert plan.eval_epochs == tuple(range(2, 91, 4))


@pytest.mark.parametrize("offset", range(4))
def test_evaluations_follow_the_rules_cadence(offset: int) -> None:
    plan = plan_of("quick", f"eval.offset={offset}", "schedule.length=12 epochs")
    assert plan.eval_epochs == tuple(range(offset + 1, 13, 4))


@given(epochs=st.integers(1, 60), per_rank=st.integers(1, 64), last=st.sampled_from(["mix", "pad"]))
def test_a_length_in_steps_plans_the_epochs_that_hold_them(
    epochs: int, per_rank: int, last: str
) -> None:
    """The plan's own number of steps, written as the length, gives the same plan."""
    settings = ["data.train_samples=1000", f"batch.per_rank={per_rank}", f"data.last_batch={last}"]
    rest = ["schedule.warmup=0 steps", "eval.offset=0"]
    plan = plan_of("quick", *settings, *rest, f"schedule.length={epochs} epochs")
    again = plan_of("quick", *settings, *rest, f"schedule.length={plan.total_steps} steps")
    assert again == plan
    more = plan_of("quick", *settings, *rest, f"schedule.length={plan.total_steps + 1} steps")
    assert more.epochs == epochs + 1


@pytest.mark.parametrize(
    "warmup", ["8 epochs", "9 epochs", "400 steps", "401 steps", "100 %", "150 %"]
)
def test_a_warmup_as_long_as_the_run_is_refused(warmup: str) -> None:
    with pytest.raises(UserError, match=r"schedule.warmup: less than the whole run \(400 steps\)"):
        plan_of("quick", f"schedule.warmup={warmup}")


def test_the_longest_warmup_leaves_one_step() -> None:
    plan = plan_of("quick", "schedule.warmup=399 steps")
    assert (plan.warmup_steps, plan.decay_steps, plan.total_steps) == (399, 1, 400)


def test_a_batch_larger_than_the_set_is_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match=r"batch\.per_rank: 1601 on 2 ranks .* 3202, .* 3200"):
        plan_of("quick", "batch.per_rank=1601")


@pytest.mark.parametrize(("follow", "reference"), [("momentum", 641), ("momentum_as_printed", 6)])
def test_a_momentum_below_zero_is_refused(follow: str, reference: int) -> None:
    """At 64 images, ten times more or less than the reference."""
    told = rf"batch\.follow: {follow} gives momentum -0\.\d+ at .* 64 \(reference {reference}\)"
    with pytest.raises(UserError, match=told):
        plan_of("quick", f"batch.follow={follow}", f"batch.reference={reference}")
    assert plan_of("quick", f"batch.follow={follow}", "batch.reference=64")


def test_a_run_without_any_evaluation_is_refused() -> None:
    with pytest.raises(UserError, match=r"eval.offset: no evaluation in 3 epochs"):
        plan_of("quick", "schedule.length=3 epochs", "eval.offset=3")


@pytest.mark.parametrize(("every", "steps"), [("20 steps", 20), ("1 epoch", 50), ("0 steps", 1)])
def test_log_interval_is_at_least_a_step(every: str, steps: int) -> None:
    assert plan_of("quick", f"log.every={every}").log_every_steps == steps


# --- batch-size control -------------------------------------------------------------------------


class Walked(NamedTuple):
    """A step, found by walking: its epoch, its batch, and what is done after it."""

    epoch: int
    per_rank: int
    active_ranks: int
    places: int
    epochs_done: float


def walk(run: Run) -> list[Walked]:
    """Every step of a run of whole epochs, one batch at a time, from the config alone."""
    ranks = run.system.world_size
    samples, batch = run.data.train_samples, (run.batch.per_rank, run.batch.active_ranks or ranks)
    changes = {change.after_epoch: change for change in run.batch.changes}
    walked: list[Walked] = []
    places = 0
    for epoch in range(1, int(run.schedule.length.value) + 1):
        if change := changes.get(epoch - 1):
            batch = change.per_rank, change.active_ranks or ranks
        size = batch[0] * batch[1]
        if run.data.last_batch == "pad":
            steps = sum(1 for _ in range(0, samples, size))
            for step in range(1, steps + 1):
                places += size
                walked.append(Walked(epoch, *batch, places, epoch - 1 + step / steps))
        else:
            while places < epoch * samples:
                places += size
                walked.append(Walked(epoch, *batch, places, places / samples))
    return walked


@st.composite
def changing_runs(draw: st.DrawFn, min_changes: int = 0) -> Run:
    """Runs of a few epochs whose batch and ranks change; the last change may lie beyond the end."""
    ranks = draw(st.integers(1, 6))
    samples = draw(st.integers(ranks, 70))

    def batch() -> dict[str, Any]:
        active = draw(st.one_of(st.none(), st.integers(1, ranks)))
        per_rank = draw(st.integers(1, samples // (active or ranks)))
        return {"per_rank": per_rank, "active_ranks": active}

    after = draw(st.lists(st.integers(1, 7), unique=True, min_size=min_changes, max_size=4))
    changes = [{"after_epoch": epoch, **batch()} for epoch in sorted(after)]
    return Run.model_validate(
        {
            "system": {"ranks_per_node": ranks},
            "data": {
                "train_samples": samples,
                "last_batch": draw(st.sampled_from(["mix", "pad"])),
            },
            "batch": {**batch(), "changes": changes},
            "schedule": {
                "length": f"{draw(st.integers(1, 9))} epochs",
                "warmup": "0 steps",
            },
        }
    )


@given(run=changing_runs())
def test_a_plan_is_the_row_walked_step_by_step(run: Run) -> None:
    plan, walked = build_plan(run), walk(run)
    assert plan.total_steps == len(walked)
    assert plan.images_after(0) == plan.epoch_at(0) == plan.epoch_end_step(0) == 0
    for step, found in enumerate(walked, start=1):
        batch = plan.segment_of_step(step)
        assert batch == plan.segment_of_epoch(found.epoch)
        assert (batch.per_rank, batch.active_ranks) == (found.per_rank, found.active_ranks)
        assert plan.images_after(step) == found.places
        assert plan.images_after(step) - plan.images_after(step - 1) == batch.global_batch_size
        assert plan.epoch_at(step) == pytest.approx(found.epochs_done, rel=1e-12)
    for epoch in range(1, plan.epochs + 1):
        last = max(step for step, found in enumerate(walked, start=1) if found.epoch == epoch)
        assert plan.epoch_end_step(epoch) == last


@given(run=changing_runs())
def test_segments_follow_each_other_without_gap_or_overlap(run: Run) -> None:
    plan = build_plan(run)
    first = plan.segments[0]
    assert (first.first_epoch, first.first_step, first.first_sample) == (1, 0, 0)
    assert [s.first_epoch - 1 for s in plan.segments[1:]] == [
        change.after_epoch for change in run.batch.changes
    ]
    for before, after in pairwise(plan.segments):
        steps = after.first_step - before.first_step
        assert steps >= after.first_epoch - before.first_epoch
        assert after.first_sample - before.first_sample == steps * before.global_batch_size
        assert after.first_step == plan.epoch_end_step(after.first_epoch - 1)
        assert after.first_sample == plan.images_after(after.first_step)
        assert plan.segment_of_step(after.first_step) == before
        assert plan.segment_of_step(after.first_step + 1) == after


@given(run=changing_runs())
def test_an_epoch_is_over_at_its_last_step_and_not_before(run: Run) -> None:
    plan = build_plan(run)
    epochs = range(1, plan.epochs + 9)
    for epoch in epochs:
        last = plan.epoch_end_step(epoch)
        assert plan.epoch_end_step(epoch - 1) < last
        assert plan.epoch_at(last - 1) < epoch <= plan.epoch_at(last) < epoch + 1
        if run.data.last_batch == "pad":
            assert plan.epoch_at(last) == epoch
            row = plan.images_after(last) - plan.images_after(plan.epoch_end_step(epoch - 1))
            assert row == plan.samples_per_epoch(plan.segment_of_epoch(epoch))
        else:
            assert plan.images_after(last - 1) < epoch * plan.train_samples
            assert plan.images_after(last) >= epoch * plan.train_samples
            assert plan.samples_per_epoch(plan.segment_of_epoch(epoch)) == plan.train_samples


@given(run=changing_runs(), part=st.floats(0, 1))
def test_whole_epochs_last_until_their_last_step(run: Run, part: float) -> None:
    """But for one batch that mixes all along: there the nearest step, as ever."""
    plan = build_plan(run)
    mixes_all_along = len(plan.segments) == 1 and run.data.last_batch == "mix"
    for epoch in range(plan.epochs + 4):
        steps = plan.steps(Duration(epoch, "epochs"))
        if mixes_all_along:
            assert steps == round(epoch * plan.train_samples / plan.global_batch_size)
            assert plan.epoch_end_step(epoch) - 1 <= steps <= plan.epoch_end_step(epoch)
        else:
            assert steps == plan.epoch_end_step(epoch)
        within = plan.steps(Duration(epoch + part, "epochs"))
        assert steps <= within <= plan.steps(Duration(epoch + 1, "epochs"))


@given(run=changing_runs(min_changes=1), data=st.data())
def test_a_length_in_steps_plans_the_epochs_that_hold_them_across_changes(
    run: Run, data: st.DataObject
) -> None:
    walked = walk(run)
    steps = data.draw(st.integers(1, len(walked)))
    length = Duration(float(steps), "steps")
    schedule = run.schedule.model_copy(update={"length": length})
    plan = build_plan(run.model_copy(update={"schedule": schedule}))
    assert plan.epochs == walked[steps - 1].epoch
    if steps == len(walked):
        assert plan == build_plan(run)


CHANGE = "batch.changes=[{{after_epoch: 2, per_rank: {}, active_ranks: {}}}]"


@pytest.mark.parametrize(
    "overrides", [["batch.active_ranks=3"], [CHANGE.format(8, 3)], [CHANGE.format(1601, 3)]]
)
def test_more_active_ranks_than_ranks_are_refused(overrides: list[str]) -> None:
    with pytest.raises(
        UserError, match=r"^batch\.active_ranks: at most 2 ranks expected, found 3$"
    ):
        plan_of("quick", *overrides)


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("data.last_batch=mix", "mix, 2 of 2 and None"),
        ("batch.active_ranks=1", "pad, 1 of 2 and None"),
        (CHANGE.format(8, 1), "pad, 1 of 2 and None"),
        ("system.job.min_nodes=1", "pad, 2 of 2 and 1"),
    ],
)
def test_what_parts_of_a_set_do_not_go_with_is_refused(override: str, found: str) -> None:
    fits = ["data.shards=node", "data.last_batch=pad", CHANGE.format(8, "null")]
    assert plan_of("quick", "system.nodes=2", "system.ranks_per_node=1", *fits).parts == 2
    with pytest.raises(UserError, match=f"^data.shards: node needs data.last_batch: .* {found}$"):
        plan_of("quick", *fits, override)


def test_all_ranks_may_be_active_and_are_unless_told() -> None:
    given = plan_of("quick", "batch.active_ranks=2", CHANGE.format(8, 2))
    assert given == plan_of("quick", CHANGE.format(8, "null"))
    assert [segment.active_ranks for segment in given.segments] == [2, 2]
    again = plan_of("quick", "batch.active_ranks=1", CHANGE.format(8, "null"))
    assert [segment.active_ranks for segment in again.segments] == [1, 2]


@pytest.mark.parametrize(
    ("per_rank", "active", "told"),
    [(1601, 2, "1601 on 2 ranks .* 3202, .* 3200"), (3201, 1, "3201 on 1 ranks .* 3201, .* 3200")],
)
def test_a_change_to_a_batch_larger_than_the_set_is_refused(
    per_rank: int, active: int, told: str
) -> None:
    with pytest.raises(UserError, match=rf"batch\.per_rank: {told}"):
        plan_of("quick", CHANGE.format(per_rank, active))
    assert plan_of("quick", CHANGE.format(3200 // active, active)).segments[1] == Segment(
        3, 100, 6400, 3200 // active, active
    )


@pytest.mark.parametrize(
    ("last", "ends", "done"), [("mix", [5, 11, 18], 81 / 40), ("pad", [5, 12, 19], 2)]
)
def test_a_change_counted_by_hand(last: str, ends: list[int], done: float) -> None:
    """40 images: 5 steps of 9 take 45 places, then steps of 6."""
    change = "batch.changes=[{after_epoch: 1, per_rank: 6, active_ranks: 1}]"
    batch = ["system.ranks_per_node=3", "batch.per_rank=3", change]
    data = ["data.train_samples=40", f"data.last_batch={last}"]
    rest = ["schedule.length=3 epochs", "schedule.warmup=2 epochs", "eval.offset=0"]
    plan = plan_of("quick", *batch, *data, *rest)
    assert plan.segments == (Segment(1, 0, 0, 3, 3), Segment(2, 5, 45, 6, 1))
    assert [plan.epoch_end_step(epoch) for epoch in (1, 2, 3)] == ends
    assert (plan.warmup_steps, plan.total_steps) == (ends[1], ends[2])
    assert plan.images_after(ends[1]) == 45 + 6 * (ends[1] - 5)
    assert plan.epoch_at(ends[1]) == done


@given(st.integers(1, 200_000), st.integers(1, 5000))
def test_the_same_global_batch_on_any_number_of_ranks(batch: int, ranks: int) -> None:
    per_rank, active = spread(batch, ranks)
    assert per_rank * active == batch and active <= ranks
    assert not any(batch % n == 0 for n in range(active + 1, min(ranks, batch) + 1))
