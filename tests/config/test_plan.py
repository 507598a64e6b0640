import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.plan import Plan, build_plan

NO_DEADLINE = settings(deadline=None)


def plan_of(config: str, *overrides: str) -> Plan:
    return build_plan(load(config, overrides).run)


def bare_plan(samples: int, batch: int, last_batch: str) -> Plan:
    return Plan(1, batch, samples, last_batch, 0, 0, 0, 0, 1, ())


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


@NO_DEADLINE
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


@NO_DEADLINE
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


def test_the_fujitsu_record() -> None:
    plan = plan_of("abci_2048_open")
    assert plan.ranks == 2048
    assert plan.global_batch_size == 86_016
    assert plan.steps_per_epoch == 15
    assert plan.epochs == 90
    assert plan.total_steps == 1350
    assert plan.warmup_steps == 540
    assert plan.decay_steps == 780
    assert len(plan.eval_epochs) == 23
    assert plan.eval_epochs[0] == 2
    assert plan.eval_epochs[-1] == 90


def test_a_single_dgx1() -> None:
    plan = plan_of("dgx1_8")
    assert (plan.ranks, plan.global_batch_size) == (8, 1664)
    assert plan.total_steps == -(-37 * 1_281_167 // 1664)
    assert plan.warmup_steps == round(2 * 1_281_167 / 1664)
    assert plan.decay_steps == plan.total_steps - plan.warmup_steps
    assert plan.eval_epochs == (1, 5, 9, 13, 17, 21, 25, 29, 33, 37)


@pytest.mark.parametrize("offset", range(4))
def test_evaluations_follow_the_rules_cadence(offset: int) -> None:
    plan = plan_of("quick", f"eval.offset={offset}", "schedule.length=12 epochs")
    assert plan.eval_epochs == tuple(range(offset + 1, 13, 4))


@NO_DEADLINE
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


def test_a_run_without_any_evaluation_is_refused() -> None:
    with pytest.raises(UserError, match=r"eval.offset: no evaluation in 3 epochs"):
        plan_of("quick", "schedule.length=3 epochs", "eval.offset=3")


@pytest.mark.parametrize(("every", "steps"), [("20 steps", 20), ("1 epoch", 50), ("0 steps", 1)])
def test_log_interval_is_at_least_a_step(every: str, steps: int) -> None:
    assert plan_of("quick", f"log.every={every}").log_every_steps == steps
