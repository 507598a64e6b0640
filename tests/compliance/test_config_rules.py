"""The closed division before a run: each rule passes the presets and finds what breaks it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rn50.compliance.config_rules import RULES, ConfigCheck, check_config, published_lr
from rn50.config.load import load
from rn50.config.names import list_presets
from rn50.config.variants import ALL, VARIANTS
from rn50.host.finding import ERROR, NOTE, POLICY, WARNING
from tests.config.test_image_set import write_manifest

RECIPES = [name for name in list_presets() if name != "base"]
"""`base` is what they have in common: its learning rate is for a batch that it does not set."""


def check(config: str, *overrides: str) -> ConfigCheck:
    return check_config(load(config, overrides))


@pytest.mark.parametrize("name", RECIPES)
def test_presets_pass(name: str) -> None:
    checked = check(name)
    assert checked.verdict == "PASS", checked.findings
    if load(name).run.division == "closed":
        assert "closed division" in checked.cause


def test_the_open_preset_is_told_each_choice() -> None:
    """Fujitsu's six tuned knobs, what later tables fixed, and the batch beyond all references."""
    checked = check("abci_2048_open")
    assert {finding.severity for finding in checked.findings} == {NOTE}
    said = " ".join(finding.message for finding in checked.findings)
    for phrase in (
        "schedule.power",
        "schedule.end_lr",
        "optimizer.epsilon",
        "optimizer.eta",
        "data.area",
        "data.aspect",
        "data.no_augment_from_epoch",
        "86,016",
    ):
        assert phrase in said
    assert checked.facts["rcp"]["kind"] == "above"


# Rule, severity, and what breaks it in `dgxa100_8`.
BROKEN = [
    ("image-set-counts", ERROR, "data.path={set}", "data.classes=4"),
    ("unusual-learning-rate", WARNING, "batch.per_rank=32"),
    ("invalid-optimizer", ERROR, "optimizer.variant=akiba"),
    ("end-learning-rate", ERROR, "schedule.end_lr=0"),
    ("lars-decay-power", ERROR, "schedule.power=1"),
    ("sgd-decay-power", POLICY, "schedule.power=1", "optimizer.variant=sgd"),
    (
        "invalid-schedule-length",
        POLICY,
        "optimizer.variant=sgd",
        "schedule.warmup=2.5 epochs",
    ),
    ("lars-epsilon", ERROR, "optimizer.epsilon=1e-9"),
    ("weight-decay", ERROR, "optimizer.weight_decay=3e-5"),
    (
        "sgd-base-learning-rate",
        ERROR,
        "optimizer.variant=sgd",
        "optimizer.base_lr=0.0005",
    ),
    ("invalid-submission-value", ERROR, "ruleset=0.6.0", "log.status=preview"),
    ("target-not-reached", ERROR, "eval.target=0.75"),
    ("batch-without-reference", ERROR, "batch.per_rank=9000"),
    ("shorter-than-reference", ERROR, "schedule.length=30 epochs"),
    ("shorter-than-reference", ERROR, "limits.epochs=30"),
    ("shorter-than-reference", ERROR, "limits.epochs=2"),
    ("lars-momentum", POLICY, "optimizer.momentum=0.95"),
    ("label-smoothing", POLICY, "model.label_smoothing=0.2"),
    ("evaluation-cadence", POLICY, "eval.period=5", "schedule.length=60 epochs"),
    ("decay-shape", ERROR, "schedule.shape=cosine"),
    ("decay-shape", POLICY, "schedule.decay_from=run_start"),
    ("lars-as-reference", POLICY, "optimizer.eta=0.01"),
    ("lars-as-reference", POLICY, "optimizer.variant=you"),
    ("eval-samples", POLICY, "data.eval_samples=100"),
    ("image-preparation", POLICY, "data.crop_px=192"),
    ("image-preparation", POLICY, "data.augmentation.noise=[0,1]"),
    ("network", POLICY, "model.depth=34"),
    ("batch-changes", POLICY, "batch.changes=[{after_epoch: 3, per_rank: 64}]"),
    ("seed-not-fresh", POLICY, "seed=1"),
    ("trained-past-target", NOTE, "eval.target=0.77"),
    ("train-samples", POLICY, "data.train_samples=1281168"),
    ("sgd-momentum", POLICY, "optimizer.variant=sgd", "optimizer.momentum=0.95"),
]


IN_EVERY_DIVISION = ("image-set-counts", "unusual-learning-rate")


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case[0])
def test_what_breaks_a_rule_is_found(tmp_path: Path, case: tuple[str, ...]) -> None:
    rule, severity, *overrides = case
    write_manifest(tmp_path, classes=3, train=5000, evaluation=500)
    overrides = [override.replace("{set}", str(tmp_path)) for override in overrides]
    checked = check("dgxa100_8", *overrides)
    assert severities(checked, rule) == {severity}
    assert checked.verdict == "FAIL" if severity == ERROR else checked.verdict != "FAIL"
    opened = check("dgxa100_8", *overrides, "division=open")
    in_open = severity if rule in IN_EVERY_DIVISION else NOTE
    assert severities(opened, rule) == {in_open}


def test_the_length_that_is_asked_for_will_do() -> None:
    """Epochs 34 and 38 are evaluated; the RCP test accepts from 34.31."""
    (finding,) = (
        f for f in check("dgxa100_8", "eval.offset=1").findings if f.id == "MLP753"
    )
    assert "expected 38 epochs or more" in finding.message
    length = "schedule.length=38 epochs"
    longer = check("dgxa100_8", "eval.offset=1", length)
    assert not severities(longer, "shorter-than-reference")


def severities(checked: ConfigCheck, rule: str) -> set[str]:
    return {f.severity for f in checked.findings if f.name == rule}


@pytest.mark.parametrize(
    "changes",
    [
        {"scaled": ALL},
        {"decayed": ALL},
        {"epsilon_only_below": True},
        {"decay_times_base_lr": True},
    ],
)
def test_each_flag_of_a_variant_is_judged(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    reference = replace(VARIANTS["reference"], epsilon=0.0)
    monkeypatch.setitem(VARIANTS, "you", reference)
    assert check("dgxa100_8", "optimizer.variant=you").verdict == "PASS"
    monkeypatch.setitem(VARIANTS, "you", replace(reference, **changes))
    checked = check("dgxa100_8", "optimizer.variant=you")
    assert [finding.name for finding in checked.findings] == ["lars-as-reference"]


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rule in RULES} == {case[0] for case in BROKEN}
    assert all(rule.description.endswith(".") for rule in RULES)


def test_a_finding_names_file_and_line() -> None:
    checked = check("dgxa100_8", "schedule.power=1")
    assert "schedule.power (command line) is 1" in checked.findings[0].message
    power = next(
        f for f in check("abci_2048_open").findings if f.name == "lars-decay-power"
    )
    assert f"abci_2048_open.yaml:{power.line}" in power.message


def test_the_facts() -> None:
    rcp = check("abci_2048_closed_64k").facts["rcp"]
    assert rcp["mean_epochs"] == pytest.approx(83.6459, abs=1e-4)
    assert rcp["min_epochs"] == pytest.approx(82.8916, abs=1e-3)
    assert rcp["first_accepted_evaluation"] == 84
    between = check("abci_2048_closed_64k", "eval.offset=2").facts["rcp"]
    assert between["first_accepted_evaluation"] == 83
    padded = check("abci_2048_open").facts
    assert padded["padding_images"] == 15 * 86016 - 1281167
    assert json.loads(json.dumps(check("quick").to_dict()))["verdict"] == "PASS"


MINE = (
    "data.path=/mine",
    "data.classes=6",
    "data.train_samples=1200",
    "data.eval_samples=300",
)


def test_another_set_than_imagenet_is_a_rehearsal() -> None:
    """Whether it is drawn or one's own: one calm line in the place of a dozen differences."""
    checked = check("quick", *MINE)
    assert checked.verdict == "PASS"
    (note,) = checked.findings
    assert (note.name, note.severity) == ("not-imagenet", NOTE)
    assert "set of 6 classes (command line)" in note.message
    assert "rcp" not in checked.facts
    assert check("quick").cause == checked.cause
    assert check("quick", "division=open").findings == ()


def test_the_closed_division_is_the_closed_division_on_any_set() -> None:
    missed = (*MINE, "eval.target=0.7")
    checked = check("quick", *missed)
    assert (checked.verdict, checked.findings[0].name) == ("FAIL", "target-not-reached")
    assert "division=open takes any target" in checked.cause
    assert check("quick", *missed, "division=open").verdict == "PASS"


# --- learning rate and batch ---------------------------------------------------------------------


def test_the_readmes_first_trap() -> None:
    """`base` on eight ranks: batch 256 with the learning rate of 3,264, which said PASS."""
    checked = check("base", "system.ranks_per_node=8", "data.path=/scratch/imagenet")
    assert checked.verdict == "WARN"
    assert (
        "is 10.5, expected about 1.39 to 3.2 at a global batch of 256" in checked.cause
    )
    assert checked.facts["published_base_lr"] == [1.39, 3.2]
    assert (
        check("base", "system.ranks_per_node=8", "optimizer.base_lr=2.5").verdict
        == "PASS"
    )


@pytest.mark.parametrize(
    ("overrides", "low", "high"),
    [
        (["batch.per_rank=408"], 4.97, 11.4),
        (["batch.per_rank=408", "optimizer.eta=0.002"], 2.49, 5.71),
        (["batch.per_rank=1024", "optimizer.variant=sgd"], 3.2, 15.1),
    ],
)
def test_the_range_follows_optimizer_batch_and_eta(
    overrides: list[str], low: float, high: float
) -> None:
    run = load("dgxa100_8", overrides).run
    bounds = published_lr(run, 8 * run.batch.per_rank)
    assert bounds == pytest.approx((low, high), rel=0.01)


@pytest.mark.parametrize("name", ["quick", "smoke", "you_alexnet_32k"])
def test_other_networks_have_no_recipes(name: str) -> None:
    checked = check(name, "optimizer.base_lr=1000.0")
    assert "unusual-learning-rate" not in {finding.name for finding in checked.findings}
    assert "published_base_lr" not in checked.facts
