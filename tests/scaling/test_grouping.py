"""`comm.groups: auto`: what the model of overlap chooses for a network and a rate."""

from __future__ import annotations

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.schema import Run
from rn50.scaling.grouping import CANDIDATES, FALLBACK, choose_groups, predict_overlap
from rn50.scaling.layers import Shape, resnet50

LINK = ("system.link_latency_s=1e-4", "system.link_bytes_per_s=37.5e6")


def quick(*overrides: str) -> Run:
    return load("quick", ["comm.groups=auto", *overrides]).run


def test_a_rule_that_is_given_stays() -> None:
    run = load("quick", [*LINK, "system.rank_images_per_s=100", "comm.groups=cubic(3)"]).run
    assert choose_groups(run) == ("cubic(3)", "")
    assert choose_groups(run).note == ""


@pytest.mark.parametrize(
    "overrides",
    [
        LINK,
        ["system.rank_images_per_s=100"],
        [*LINK, "system.rank_images_per_s=1", "model.depth=18"],
    ],
)
def test_without_network_rate_or_bottlenecks_auto_is_the_default(overrides: list[str]) -> None:
    found = choose_groups(quick(*overrides))
    assert found.rule == FALLBACK == load("quick").run.comm.groups
    assert "system.rank_images_per_s" in found.reason


def test_the_last_group_is_small_where_backward_hides_the_rest() -> None:
    run = quick(*LINK, "system.rank_images_per_s=100")
    rule = choose_groups(run).rule
    assert rule.startswith("halving")
    chosen, default = (predict_overlap(run, name) for name in (rule, FALLBACK))
    assert chosen.exposed_s < default.exposed_s / 2
    assert choose_groups(run).note.startswith(f"comm.groups auto: {rule} leaves ")


def test_a_network_of_long_latency_gets_few_groups() -> None:
    near = choose_groups(quick(*LINK, "system.rank_images_per_s=100")).rule
    far = quick("system.link_latency_s=0.05", LINK[1], "system.rank_images_per_s=100")
    counts = [
        len(predict_overlap(far, rule).launched_s) for rule in (choose_groups(far).rule, near)
    ]
    assert counts[0] < counts[1]


def test_gradients_sent_as_float16_cost_what_half_their_bytes_cost() -> None:
    """The latency stays; a link of twice the rate is the same."""
    run = quick(*LINK, "system.rank_images_per_s=100")
    halves = quick(*LINK, "system.rank_images_per_s=100", "comm.gradient_dtype=float16")
    fast = quick(LINK[0], "system.link_bytes_per_s=75e6", "system.rank_images_per_s=100")
    found = predict_overlap(halves, "single")
    assert found.exposed_s == pytest.approx(predict_overlap(fast, "single").exposed_s)
    assert found.exposed_s < 0.6 * predict_overlap(run, "single").exposed_s


@pytest.mark.parametrize("rate", ["1", "30", "1000", "1e6"])
def test_nothing_that_is_offered_leaves_clearly_less_exposed(rate: str) -> None:
    run = quick(*LINK, f"system.rank_images_per_s={rate}")
    chosen = predict_overlap(run, choose_groups(run).rule)
    for rule in CANDIDATES:
        # A rule may be passed over for 1 % of backward, which is less than the step.
        slack_s = 0.01 * run.batch.per_rank / float(rate)
        assert chosen.exposed_s <= predict_overlap(run, rule).exposed_s + slack_s


def test_a_machine_takes_no_auto_of_its_own() -> None:
    with pytest.raises(UserError, match="groups"):
        load("quick", ["system.performance.groups=auto"])


def test_shapes_are_those_of_the_trainers_network() -> None:
    """`quick`: 1.5 M parameters of 161 tensors, `smoke`: four units."""
    layers, tensors = resnet50(Shape(50, 16, 32, 10, "small"))
    assert (len(layers), len(tensors)) == (54, 161)
    assert len(resnet50(Shape("tiny", 16, 24, 4, "small"))[0]) == 1 + 4 * 4 + 1
