"""Closed-division rules on a config, before it burns any machine time: the facts of the log check.

One small function a rule. In the open division what the rules fix is free: there the same findings
are notes that name the choices. A set that is not ImageNet makes a rehearsal: what the rules say of
ImageNet, and of how to train on it, is left out, and one note says so. What makes sense in no
division, such as a learning rate for another batch, is found in all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import benchmark
from ..config.finding import ERROR, NOTE, POLICY, SEVERITIES, WARNING, Finding, plain, shown
from ..config.image_set import COUNTS
from ..config.load import Loaded
from ..config.manifest import FILE_NAME, load_manifest
from ..config.memory import rank_bytes
from ..config.names import is_file
from ..config.plan import Plan, build_plan
from ..config.schema import Run
from ..config.variants import optimizer_rule
from . import limits  # noqa: F401 (registers the limits that judge configs too)
from . import rcp as convergence
from .published_lr import family_of, published_range
from .rule import CLOSED_ONLY, CLOSED_POLICY, CONFIG, RULES_TEXT, Setting, Violation, rule, rules_on

NOT_IMAGENET = ("MLP762", "not-imagenet")
"""Code and name of the note on what is left out for another set."""
_TABLE = f"{RULES_TEXT} lines 834-857"
_REFERENCE = "the reference, retired_benchmarks/resnet-tf2"
_RCP = "mlcommons/logging 4.1.68, rcp_checker"


@dataclass(frozen=True)
class ConfigUnderCheck:
    """A config and what follows from it, with the settings that its log will have."""

    loaded: Loaded
    plan: Plan

    @property
    def run(self) -> Run:
        return self.loaded.run

    @property
    def batch(self) -> int:
        return self.plan.global_batch_size

    @property
    def ruleset(self) -> str:
        return self.run.ruleset

    @property
    def division(self) -> str:
        return self.run.division

    @property
    def optimizer(self) -> str | None:
        """lars or sgd; None for any other."""
        name = self.run.optimizer.name
        return name if name in benchmark.OPTIMIZERS else None

    def absent(self, _key: str) -> bool:
        """A config has a value for every key."""
        return False

    def settings(self, name: str) -> list[Setting]:
        """The value of a hyper-parameter as the log will have it; nothing for what is not the
        config's to say."""
        own = self.run.optimizer
        values: dict[str, tuple[str, Any]] = {
            "optimizer": ("optimizer.variant", own.name),
            "end_lr": ("schedule.end_lr", self.run.schedule.end_lr),
            "decay_power": ("schedule.power", self.run.schedule.power),
            "epsilon": ("optimizer.epsilon", optimizer_rule(own).epsilon),
            "weight_decay": ("optimizer.weight_decay", own.weight_decay),
            "base_lr": ("optimizer.base_lr", own.base_lr),
            f"{'sgd' if own.name == 'sgd' else 'lars'}_momentum": (
                "optimizer.momentum",
                own.momentum,
            ),
            "label_smoothing": ("model.label_smoothing", self.run.model.label_smoothing),
            "train_samples": ("data.train_samples", self.run.data.train_samples),
            "eval_samples": ("data.eval_samples", self.run.data.eval_samples),
            "submission_status": ("log.status", self.run.log.status),
        }
        return [self.setting(*values[name])] if name in values else []

    def setting(self, key: str, value: Any) -> Setting:
        """A value and where it comes from."""
        origin = self.loaded.origin(key)
        return Setting(f"{key} ({origin})", value, origin.line)

    def violation(self, key: str, actual: Any, expected: str, why: str = "") -> Violation:
        """That another value of a key was expected."""
        return self.setting(key, actual).violation(expected, why)


@dataclass(frozen=True)
class ConfigCheck:
    """PASS, WARN, POLICY or FAIL, the cause, the findings, and what the config means in numbers."""

    verdict: str
    cause: str
    division: str
    ruleset: str
    findings: tuple[Finding, ...]
    facts: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As `rn50 config check --json` prints it."""
        return {
            "verdict": self.verdict,
            "cause": self.cause,
            "division": self.division,
            "ruleset": self.ruleset,
            "facts": self.facts,
            "findings": [finding._asdict() for finding in self.findings],
        }


_VERDICTS = {ERROR: "FAIL", POLICY: "POLICY", WARNING: "WARN", NOTE: "PASS"}


def check_config(loaded: Loaded) -> ConfigCheck:
    """Hold a config to the closed division. Raises UserError where its parts contradict."""
    config = ConfigUnderCheck(loaded, build_plan(loaded.run))
    run = config.run
    findings = []
    for each in RULES:
        exempt = each.exempt_if_synthetic and not run.data.is_imagenet
        if exempt or each.optimizer not in (None, config.optimizer):
            continue
        # What the rules fix is free in the open division; what fits no division is not.
        in_open = each.open_severity if each.judges == CONFIG else NOTE
        for violation in each.check(config):
            findings.append(each.finding(violation, in_open if run.division == "open" else None))
    choices = len([finding for finding in findings if finding.severity == NOTE])
    if run.division == "closed" and not run.data.is_imagenet:
        findings.append(_another_set(loaded))
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    worst = findings[0].severity if findings else NOTE
    if worst != NOTE:
        cause = findings[0].message
    elif run.division == "open":
        cause = f"open; choices that the closed division does not leave: {choices}"
    elif not run.data.is_imagenet:
        cause = "within the closed division, as a rehearsal: the set is not ImageNet"
    else:
        cause = "within the closed division"
    return ConfigCheck(
        _VERDICTS[worst], cause, run.division, run.ruleset, tuple(findings), facts(config)
    )


def _another_set(loaded: Loaded) -> Finding:
    """The rules of the closed division that a set other than ImageNet leaves out, as one note."""
    classes, origin = loaded.run.data.classes, loaded.origin("data.classes")
    message = (
        f"left out for a set of {classes} classes ({origin}): the rules on ImageNet's size and "
        "images, on the network, the seed, eta and reference convergence; held to: those on "
        "hyper-parameters and evaluation"
    )
    expected = f"{benchmark.IMAGENET_CLASSES} classes"
    code, name = NOT_IMAGENET
    return Finding(code, NOTE, origin.line, expected, str(classes), message, name=name)


def facts(config: ConfigUnderCheck) -> dict[str, Any]:
    """What the config means in numbers."""
    plan, run = config.plan, config.run
    batches = math.ceil(plan.train_samples / config.batch)
    padding = batches * config.batch - plan.train_samples if run.data.last_batch == "pad" else 0
    memory = rank_bytes(run)
    found: dict[str, Any] = {
        "ranks": plan.ranks,
        "global_batch_size": config.batch,
        "steps_per_epoch": plan.steps_per_epoch,
        "padding_images": padding,
        "padding_percent": round(100 * padding / plan.train_samples, 3),
        "epochs": plan.epochs,
        "total_steps": plan.total_steps,
        "warmup_steps": plan.warmup_steps,
        "warmup_share": round(plan.warmup_steps / plan.total_steps, 4),
        "evaluations": len(plan.eval_epochs),
        "memory_per_rank_gb": None if memory is None else round(memory / 1e9, 2),
    }
    about = published_range(run, config.batch)
    if about is not None:
        found["published_base_lr"] = [float(f"{value:.3g}") for value in (about.low, about.high)]
    reference = convergence.reference(config.batch, run.ruleset)
    if reference is None or not run.data.is_imagenet or run.model.network != "resnet":
        return found
    known = not math.isnan(reference.mean)
    found["rcp"] = {
        "kind": reference.kind,
        "batches": list(reference.batches),
        "mean_epochs": reference.mean if known else None,
        "min_epochs": reference.minimum if known else None,
    }
    stop = next((epoch for epoch in plan.eval_epochs if epoch >= reference.minimum), None)
    if stop is not None:
        found["rcp"]["first_accepted_evaluation"] = stop
        found["rcp"]["factor_there"] = max(1.0, reference.mean / stop)
    return found


@rule("MLP754", "decay-shape", CLOSED_POLICY, _TABLE, judges=CONFIG)
def _shape(config: ConfigUnderCheck) -> Iterator[Violation]:
    """The learning rate decays by a polynomial."""
    if config.run.schedule.shape != "poly":
        yield config.violation("schedule.shape", config.run.schedule.shape, "poly")


@rule("MLP755", "lars-eta", CLOSED_POLICY, _TABLE, judges=CONFIG, exempt_if_synthetic=True)
def _eta(config: ConfigUnderCheck) -> Iterator[Violation]:
    """LARS has eta 0.001, as the reference."""
    if config.run.optimizer.name == "lars":
        actual = optimizer_rule(config.run.optimizer).eta
        if actual != benchmark.LARS_ETA:
            yield config.violation(
                "optimizer.eta", actual, f"{plain(benchmark.LARS_ETA)}, as the reference"
            )


@rule("MLP763", "free-momentum", NOTE, f"{RULES_TEXT} line 839", judges=CONFIG)
def _free_momentum(config: ConfigUnderCheck) -> Iterator[Violation]:
    """Where LARS may have any momentum, one other than 0.9 is pointed out in an open config."""
    actual, free = (
        config.run.optimizer.momentum,
        config.batch >= benchmark.MOMENTUM_FREE_BEYOND_DOUBT,
    )
    differs = config.optimizer == "lars" and actual != benchmark.MOMENTUM
    if differs and free and config.division == "open":
        why = f"free in the closed division too at a batch of {config.batch:,}"
        yield config.violation("optimizer.momentum", actual, plain(benchmark.MOMENTUM), why)


@rule("MLP803", "evaluation-cadence", CLOSED_POLICY, f"{RULES_TEXT} lines 939, 443", judges=CONFIG)
def _cadence(config: ConfigUnderCheck) -> Iterator[Violation]:
    """Evaluations come every 4 epochs."""
    actual = config.run.eval.period
    if actual != benchmark.EVAL_PERIOD_EPOCHS:
        yield config.violation("eval.period", actual, str(benchmark.EVAL_PERIOD_EPOCHS))


@rule("MLP304", "target-not-reached", CLOSED_ONLY, f"{RULES_TEXT} lines 441, 491", judges=CONFIG)
def _target(config: ConfigUnderCheck) -> Iterator[Violation]:
    """The run stops at 0.759 or above."""
    actual = config.run.eval.target
    if actual < benchmark.TARGET_ACCURACY:
        why = "a run that stops there is none of the closed division"
        if config.run.division == "closed":
            why += "; division=open takes any target"
        yield config.violation("eval.target", actual, f"at least {benchmark.TARGET_ACCURACY}", why)


@rule(
    *("MLP307", "trained-past-target", NOTE, f"{RULES_TEXT} line 491"),
    judges=CONFIG,
    exempt_if_synthetic=True,
)
def _late_target(config: ConfigUnderCheck) -> Iterator[Violation]:
    """The run does not go on past 0.759."""
    actual = config.run.eval.target
    if actual > benchmark.TARGET_ACCURACY:
        why = "training goes on past the target"
        yield config.violation("eval.target", actual, str(benchmark.TARGET_ACCURACY), why)


@rule(
    *("MLP756", "image-preparation", CLOSED_POLICY, _REFERENCE),
    judges=CONFIG,
    exempt_if_synthetic=True,
)
def _images(config: ConfigUnderCheck) -> Iterator[Violation]:
    """Images are prepared as in the reference: crop, area, aspect, flip, to the last epoch."""
    data = config.run.data
    slack = 1e-2  # the rules say 0.75 to 1.33
    if data.crop_px != benchmark.CROP_PX:
        yield config.violation("data.crop_px", data.crop_px, str(benchmark.CROP_PX))
    if data.eval_resize_px != benchmark.EVAL_RESIZE_PX:
        yield config.violation(
            "data.eval_resize_px", data.eval_resize_px, str(benchmark.EVAL_RESIZE_PX)
        )
    for key, actual, expected in (
        ("data.area", data.area, benchmark.CROP_AREA),
        ("data.aspect", data.aspect, benchmark.CROP_ASPECT),
    ):
        if any(abs(a - b) > slack for a, b in zip(actual, expected, strict=True)):
            said = " to ".join(plain(round(value, 4)) for value in actual)
            yield config.violation(
                key, said, " to ".join(plain(round(value, 4)) for value in expected)
            )
    for key, on in (("data.augment", data.augment), ("data.flip", data.flip)):
        if not on:
            yield config.violation(key, on, "true")
    if data.no_augment_from_epoch is not None:
        why = "augmentation ends before the run"
        key = "data.no_augment_from_epoch"
        yield config.violation(key, data.no_augment_from_epoch, "none", why)


@rule("MLP757", "network", CLOSED_POLICY, _REFERENCE, judges=CONFIG, exempt_if_synthetic=True)
def _network(config: ConfigUnderCheck) -> Iterator[Violation]:
    """The network is ResNet-50 v1.5 with the reference's batch norm."""
    model = config.run.model
    for key, actual, expected in (
        ("model.network", model.network, "resnet"),
        ("model.depth", model.depth, 50),
        ("model.width", model.width, 64),
        ("model.stem", model.stem, "imagenet"),
        ("model.norm", model.norm, "batch"),
        ("model.bn_momentum", model.bn_momentum, benchmark.BN_MOMENTUM),
        ("model.bn_epsilon", model.bn_epsilon, benchmark.BN_EPSILON),
    ):
        if actual != expected:
            yield config.violation(key, actual, shown(expected))


@rule("MLP758", "batch-changes", CLOSED_POLICY, _TABLE, judges=CONFIG)
def _batch_control(config: ConfigUnderCheck) -> Iterator[Violation]:
    """The batch stays the same through the run."""
    if config.run.batch.changes:
        actual = [change.per_rank for change in config.run.batch.changes]
        yield config.violation(
            "batch.changes", actual, "none", "a second batch size has no log key"
        )


@rule(
    *("MLP906", "seed-not-fresh", CLOSED_POLICY, f"{RULES_TEXT} lines 166-183"),
    judges=CONFIG,
    exempt_if_synthetic=True,
)
def _seed(config: ConfigUnderCheck) -> Iterator[Violation]:
    """The seed is drawn fresh for every run, not a constant."""
    if config.run.seed is not None:
        why = "the rules allow the clock or urandom, and no two runs the same"
        yield config.violation("seed", config.run.seed, "none (rn50 launch draws one)", why)


@rule(
    "MLP752", "batch-without-reference", CLOSED_ONLY, _RCP, judges=CONFIG, exempt_if_synthetic=True
)
def _rcp_covers(config: ConfigUnderCheck) -> Iterator[Violation]:
    """A reference convergence point covers the batch."""
    reference = convergence.reference(config.batch, config.run.ruleset)
    if reference is not None and reference.kind == "above":
        largest = reference.batches[0]
        yield config.violation(
            "batch.per_rank",
            config.run.batch.per_rank,
            f"a global batch up to {largest:,}",
            f"{config.batch:,} is above the largest point {largest:,}: needs its own RCP",
        )


@rule(
    "MLP753", "shorter-than-reference", CLOSED_ONLY, _RCP, judges=CONFIG, exempt_if_synthetic=True
)
def _rcp_reached(config: ConfigUnderCheck) -> Iterator[Violation]:
    """The run is long enough to converge within the reference's epochs."""
    reference = convergence.reference(config.batch, config.run.ruleset)
    if reference is None or math.isnan(reference.mean):
        return
    last = config.plan.eval_epochs[-1]
    if last < reference.minimum:
        why = (
            f"evaluated last after epoch {last}, the RCP test accepts from {reference.minimum:.2f}"
        )
        actual = str(config.run.schedule.length)
        yield config.violation(
            "schedule.length", actual, f"{math.ceil(reference.mean)} epochs or more", why
        )


@rule("MLP759", "score-scaled-down", NOTE, _RCP, judges=CONFIG, exempt_if_synthetic=True)
def _rcp_scaled(config: ConfigUnderCheck) -> Iterator[Violation]:
    """An evaluation that would be accepted but scaled down is pointed out."""
    reference = convergence.reference(config.batch, config.run.ruleset)
    if reference is None or math.isnan(reference.mean):
        return
    stop = next((e for e in config.plan.eval_epochs if e >= reference.minimum), None)
    if stop is not None and stop < reference.mean:
        yield config.violation(
            "eval.offset",
            config.run.eval.offset,
            f"an evaluation at the RCP mean, {reference.mean:.2f} epochs",
            f"converging at epoch {stop} multiplies the score by {reference.mean / stop:.6f}",
        )


@rule("MLP760", "long-warmup", NOTE, "likely a mistake", judges=CONFIG)
def _long_warmup(config: ConfigUnderCheck) -> Iterator[Violation]:
    """The warm-up takes less than half of the run."""
    plan = config.plan
    if plan.warmup_steps * 2 > plan.total_steps:
        actual = str(config.run.schedule.warmup)
        why = f"{plan.warmup_steps} of {plan.total_steps} steps"
        yield config.violation("schedule.warmup", actual, "less than half of the run", why)


@rule("MLP051", "image-set-counts", ERROR, "the manifest of the image set", judges=CONFIG)
def _counts(config: ConfigUnderCheck) -> Iterator[Violation]:
    """The config's counts are those of the image set, where that can be seen."""
    folder = Path(config.run.data.path)
    if not is_file(folder / FILE_NAME):
        return
    for key, count in zip(COUNTS, load_manifest(folder).counts, strict=True):
        actual = getattr(config.run.data, key.removeprefix("data."))
        if actual != count:
            yield config.violation(key, actual, str(count), f"as in {folder / FILE_NAME}")


@rule(
    "MLP751", "unusual-learning-rate", WARNING, "published recipes (docs/recipes.md)", judges=CONFIG
)
def _lr_for_batch(config: ConfigUnderCheck) -> Iterator[Violation]:
    """The base learning rate is in the range of the published recipes for optimizer and batch."""
    own = config.run.optimizer.base_lr
    about = published_range(config.run, config.batch)
    if about is None or about.supports(own):
        return
    low, high = (f"{value:.3g}" for value in (about.low, about.high))
    span = low if low == high else f"{low} to {high}"
    family = {"lars": "LARS", "sgd": "SGD"}.get(family_of(config.run.optimizer))
    named = f" with {family}" if family else ""
    near, other = about.same_lr, about.same_batch
    yield config.violation(
        "optimizer.base_lr",
        own,
        f"about {span} at a global batch of {config.batch:,}{named}",
        f"{near.base_lr:.3g} is made for a batch of {near.batch:,} ({near.source}), and the recipe "
        f"nearest to yours has {other.base_lr:.3g} at {other.batch:,} ({other.source})",
    )


RULES = rules_on(CONFIG)
