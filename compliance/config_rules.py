"""Closed-division rules on a config, before it burns any machine time: the facts of the log check.

One small function a rule. In the open division what the rules fix is free: there the same findings
are notes that name the choices. A set that is not ImageNet makes a rehearsal: what the rules say of
ImageNet, and of how to train on it, is left out, and one note says so. What makes sense in no
division, such as a learning rate for another batch, is found in all.
"""

import math
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from ..config import benchmark
from ..config.image_set import COUNTS
from ..config.load import Loaded
from ..config.manifest import FILE_NAME, load_manifest
from ..config.names import is_file
from ..config.plan import Plan, build_plan
from ..config.schema import Run
from ..config.values import Duration
from ..config.variants import VARIANTS, WEIGHTS
from ..host.finding import (
    ERROR,
    NOTE,
    POLICY,
    SEVERITIES,
    WARNING,
    Finding,
    number,
    plain,
    shown,
)
from ..host.reading import JsonObject
from . import limits  # noqa: F401 (registers the limits that judge configs too)
from . import rcp as convergence
from .rule import (
    CLOSED_ONLY,
    CLOSED_POLICY,
    CONFIG,
    RULES_TEXT,
    Setting,
    Violations,
    rule,
    rules_on,
)

_WITHOUT_DECAY = ("step", "sony_b")
"""Shapes of which `schedule.decay` says nothing."""
NOT_IMAGENET = Finding(
    "MLP762",
    NOTE,
    None,
    f"{benchmark.IMAGENET_CLASSES} classes",
    "",
    "",
    name="not-imagenet",
)
"""The note on what is left out for another set."""
config_rule = partial(rule, judges=CONFIG)
imagenet_rule = partial(config_rule, exempt_if_synthetic=True)
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
        """The values of the config."""
        return self.loaded.run

    @property
    def batch(self) -> int:
        """The global batch of the first segment."""
        return self.plan.global_batch_size

    @property
    def ruleset(self) -> str:
        """The round whose rules hold."""
        return self.run.ruleset

    @property
    def division(self) -> str:
        """The division, closed or open."""
        return self.run.division

    @property
    def optimizer(self) -> str | None:
        """lars or sgd; None for any other."""
        return benchmark.known_optimizer(self.run.optimizer.name)

    @property
    def eval_epochs(self) -> list[int]:
        """The epochs that are evaluated before the run's budget of epochs is spent."""
        last_epoch = self.run.limits.epochs or math.inf
        return [epoch for epoch in self.plan.eval_epochs if epoch <= last_epoch]

    def absent(self, _key: str) -> bool:
        """A config has a value for every key."""
        return False

    @property
    def reference(self) -> convergence.Reference | None:
        """What the RCP test holds the batch to."""
        return convergence.reference(self.batch, self.ruleset)

    def value(self, key: str) -> Any:
        """The value of a key by its dotted path; a duration as text."""
        value = attrgetter(key)(self.run)
        return str(value) if isinstance(value, Duration) else value

    def settings(self, name: str) -> list[Setting]:
        """The value of a hyper-parameter as the log will have it; nothing for what is not the
        config's to say."""
        optimizer = self.run.optimizer
        if name == "optimizer":
            return [self.setting("optimizer.variant", optimizer.name)]
        if name == "epsilon":
            return [self.setting("optimizer.epsilon", optimizer.rule.epsilon)]
        return [self.setting(_SETTINGS[name])] if name in _SETTINGS else []

    def setting(self, key: str, value: Any = None) -> Setting:
        """A value, by default the config's own, and where it comes from."""
        origin = self.loaded.origin(key)
        if value is None:
            value = self.value(key)
        return Setting(f"{key} ({origin})", value, origin.line)

    def violation(
        self, key: str, expected: str, why: str = "", actual: Any = None
    ) -> Finding:
        """That another value of a key was expected.

        Args:
            key: the dotted path.
            expected: what is right.
            why: the reason, at the end of the message.
            actual: what is found, where that is not the value itself.
        """
        return self.setting(key, actual).violation(expected, why)

    def held_to(
        self, key: str, expected: Any, why: str = "", said: str = ""
    ) -> Violations:
        """That a key has this value and no other.

        Args:
            key: the dotted path.
            expected: the value.
            why: the reason, at the end of the message.
            said: the value as the message has it; empty: as it is shown elsewhere.
        """
        if self.value(key) != expected:
            yield self.violation(key, said or shown(expected), why)


_SETTINGS = {
    "end_lr": "schedule.end_lr",
    "decay_shape": "schedule.shape",
    "decay_from": "schedule.decay_from",
    "decay_power": "schedule.power",
    "weight_decay": "optimizer.weight_decay",
    "base_lr": "optimizer.base_lr",
    "momentum": "optimizer.momentum",
    "label_smoothing": "model.label_smoothing",
    "train_samples": "data.train_samples",
    "eval_samples": "data.eval_samples",
    "submission_status": "log.status",
}
"""The keys of what a log has as well."""


class ConfigCheck(NamedTuple):
    """PASS, WARN, POLICY or FAIL, the cause, the findings, and what the config means in numbers."""

    verdict: str
    cause: str
    division: str
    ruleset: str
    facts: JsonObject
    findings: tuple[Finding, ...]

    def to_dict(self) -> JsonObject:
        """The check as `rn50 config check --json` prints it."""
        return self._asdict() | {
            "findings": [finding._asdict() for finding in self.findings]
        }


_VERDICTS = {ERROR: "FAIL", POLICY: "POLICY", WARNING: "WARN", NOTE: "PASS"}


def check_config(loaded: Loaded, plan: Plan | None = None) -> ConfigCheck:
    """Hold a config to the closed division. `plan`: of the config, where it is known. Raises
    UserError where its parts contradict."""
    config = ConfigUnderCheck(loaded, plan or build_plan(loaded.run))
    run = config.run
    findings = []
    for closed_rule in RULES:
        exempt = closed_rule.exempt_if_synthetic and not run.data.is_imagenet
        if exempt or closed_rule.optimizer not in (None, config.optimizer):
            continue
        severity = None
        if run.division == "open":
            # What the rules fix is free there; what fits no division is not.
            severity = (
                closed_rule.open_severity if closed_rule.judges == CONFIG else NOTE
            )
        for violation in closed_rule.check(config):
            findings.append(closed_rule.finding(violation, severity))
    choices = len([finding for finding in findings if finding.severity == NOTE])
    if run.division == "closed" and not run.data.is_imagenet:
        findings.append(_another_set(loaded))
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    worst = next((finding.severity for finding in findings), NOTE)
    if worst != NOTE:
        cause = findings[0].message
    elif run.division == "open":
        cause = f"open; choices that the closed division does not leave: {choices}"
    elif not run.data.is_imagenet:
        cause = "within the closed division, as a rehearsal: the set is not ImageNet"
    else:
        cause = "within the closed division"
    return ConfigCheck(
        _VERDICTS[worst],
        cause,
        run.division,
        run.ruleset,
        facts(config),
        tuple(findings),
    )


def _another_set(loaded: Loaded) -> Finding:
    """The rules of the closed division that a set other than ImageNet leaves out, as one note."""
    classes = loaded.run.data.classes
    origin = loaded.origin("data.classes")
    return NOT_IMAGENET._replace(
        line=origin.line,
        found=str(classes),
        message=(
            f"left out for a set of {classes} classes ({origin}): the rules on ImageNet's size and "
            "images, on the network, the seed, LARS and reference convergence; held to: those on "
            "hyper-parameters and evaluation"
        ),
    )


def facts(config: ConfigUnderCheck) -> JsonObject:
    """What the config means in numbers."""
    plan = config.plan
    run = config.run
    batches = math.ceil(plan.train_samples / config.batch)
    # "mix" fills the last batch from the next epoch: nothing is read twice
    padding = 0
    if run.data.last_batch == "pad":
        padding = batches * config.batch - plan.train_samples
    figures: JsonObject = {
        "ranks": plan.ranks,
        "global_batch_size": config.batch,
        "steps_per_epoch": plan.steps_per_epoch,
        "padding_images": padding,
        "padding_percent": round(100 * padding / plan.train_samples, 3),
        "epochs": plan.epochs,
        "total_steps": plan.total_steps,
        "warmup_steps": plan.warmup_steps,
        "warmup_share": round(plan.warmup_steps / plan.total_steps, 4),
        "evaluations": len(config.eval_epochs),
    }
    if run.schedule.shape not in _WITHOUT_DECAY:
        figures |= {
            "decay_steps": plan.decay_steps,
            "decay_from": run.schedule.decay_from,
        }
    suggested_lr = published_lr(run, config.batch)
    if suggested_lr:
        # three digits of a rule of thumb
        figures["published_base_lr"] = [float(f"{value:.3g}") for value in suggested_lr]
    reference = config.reference
    if not reference or not run.data.is_imagenet or run.model.network != "resnet":
        return figures
    figures["rcp"] = {
        "kind": reference.position,
        "batches": list(reference.batches),
        "mean_epochs": number(reference.mean),
        "min_epochs": number(reference.minimum),
    }
    # NaN, above all points, is never reached
    stop = next(
        (epoch for epoch in config.eval_epochs if epoch >= reference.minimum), None
    )
    if stop is not None:
        figures["rcp"]["first_accepted_evaluation"] = stop
        figures["rcp"]["factor_there"] = max(1.0, reference.mean / stop)
    return figures


@imagenet_rule("MLP755", "lars-as-reference", CLOSED_POLICY, _TABLE, optimizer="lars")
def _lars(config: ConfigUnderCheck) -> Violations:
    """LARS has eta 0.001 and the trust ratio of the reference, and scales and decays weights alone
    (NVIDIA's published entries decay the classifier's bias too)."""
    rule = config.run.optimizer.rule
    if rule.eta != benchmark.LARS_ETA:
        yield config.violation(
            "optimizer.eta",
            f"{plain(benchmark.LARS_ETA)}, as the reference",
            actual=rule.eta,
        )
    decays = (WEIGHTS, VARIANTS["nvidia"].decayed)
    other_ratio = rule.decay_times_base_lr or rule.epsilon_only_below
    if rule.scaled != WEIGHTS or rule.decayed not in decays or other_ratio:
        yield config.violation(
            "optimizer.variant",
            "reference or nvidia",
            "it scales or decays other tensors, or has another trust ratio",
        )


@config_rule(
    "MLP803", "evaluation-cadence", CLOSED_POLICY, f"{RULES_TEXT} lines 939, 443"
)
def _cadence(config: ConfigUnderCheck) -> Violations:
    """Evaluations come every 4 epochs."""
    return config.held_to("eval.period", benchmark.EVAL_PERIOD_EPOCHS)


@config_rule(
    "MLP304", "target-not-reached", CLOSED_ONLY, f"{RULES_TEXT} lines 441, 491"
)
def _target(config: ConfigUnderCheck) -> Violations:
    """The run stops at 0.759 or above."""
    if config.run.eval.target < benchmark.TARGET_ACCURACY:
        why = "a run that stops there is none of the closed division"
        if config.run.division == "closed":
            why += "; division=open takes any target"
        yield config.violation(
            "eval.target", f"at least {benchmark.TARGET_ACCURACY}", why
        )


@imagenet_rule("MLP307", "trained-past-target", NOTE, f"{RULES_TEXT} line 491")
def _late_target(config: ConfigUnderCheck) -> Violations:
    """The run does not go on past 0.759."""
    if config.run.eval.target > benchmark.TARGET_ACCURACY:
        yield config.violation(
            "eval.target",
            str(benchmark.TARGET_ACCURACY),
            "training goes on past the target",
        )


@imagenet_rule("MLP756", "image-preparation", CLOSED_POLICY, _REFERENCE)
def _images(config: ConfigUnderCheck) -> Violations:
    """Images are prepared as in the reference: crop, area, aspect, flip, to the last epoch."""
    slack = 1e-2  # the rules say 0.75 to 1.33
    yield from config.held_to("data.crop_px", benchmark.CROP_PX)
    yield from config.held_to("data.eval_resize_px", benchmark.EVAL_RESIZE_PX)
    for key, expected in (
        ("data.area", benchmark.CROP_AREA),
        ("data.aspect", benchmark.CROP_ASPECT),
    ):
        actual = config.value(key)
        if any(abs(a - b) > slack for a, b in zip(actual, expected, strict=True)):
            actual_text, range_text = (
                " to ".join(plain(round(value, 4)) for value in pair)
                for pair in (actual, expected)
            )
            yield config.violation(key, range_text, actual=actual_text)
    yield from config.held_to("data.augment", True)
    yield from config.held_to("data.flip", True)
    yield from config.held_to(
        "data.no_augment_from_epoch", None, "augmentation ends before the run", "none"
    )
    for name in config.run.data.augmentation.ranges:
        yield from config.held_to(f"data.augmentation.{name}", None, said="none")


@imagenet_rule("MLP757", "network", CLOSED_POLICY, _REFERENCE)
def _network(config: ConfigUnderCheck) -> Violations:
    """The network is ResNet-50 v1.5 with the reference's batch norm."""
    batch_norm = {
        "model.bn_momentum": benchmark.BN_MOMENTUM,
        "model.bn_epsilon": benchmark.BN_EPSILON,
    }
    for key, expected in (benchmark.NETWORK | batch_norm).items():
        yield from config.held_to(key, expected)


@config_rule("MLP758", "batch-changes", CLOSED_POLICY, _TABLE)
def _batch_control(config: ConfigUnderCheck) -> Violations:
    """The batch stays the same through the run."""
    batches = [change.per_rank for change in config.run.batch.changes]
    if batches:
        yield config.violation(
            "batch.changes",
            "none",
            "a second batch size has no log key",
            actual=batches,
        )


@imagenet_rule("MLP906", "seed-not-fresh", CLOSED_POLICY, f"{RULES_TEXT} lines 166-183")
def _seed(config: ConfigUnderCheck) -> Violations:
    """The seed is drawn fresh for every run, not a constant."""
    return config.held_to(
        "seed",
        None,
        "the rules allow the clock or urandom, and no two runs the same",
        "none (rn50 launch draws one)",
    )


@imagenet_rule("MLP752", "batch-without-reference", CLOSED_ONLY, _RCP)
def _rcp_covers(config: ConfigUnderCheck) -> Violations:
    """A reference convergence point covers the batch."""
    reference = config.reference
    if reference and reference.position == "above":
        largest = reference.batches[0]
        yield config.violation(
            "batch.per_rank",
            f"a global batch up to {largest:,}",
            f"{config.batch:,} is above the largest point {largest:,}: needs its own RCP",
        )


@imagenet_rule("MLP753", "shorter-than-reference", CLOSED_ONLY, _RCP)
def _rcp_reached(config: ConfigUnderCheck) -> Violations:
    """The run is long enough to converge within the reference's epochs; so is limits.epochs."""
    reference = config.reference
    last = max(config.eval_epochs, default=0)
    # of a batch above all points: NaN
    if reference and last < reference.minimum:
        accepts = f"the RCP test accepts from {reference.minimum:.2f}"
        why = f"evaluated last after epoch {last}, {accepts}"
        is_cut = last < config.plan.eval_epochs[-1]
        key = "limits.epochs" if is_cut else "schedule.length"
        evaluation = config.run.eval
        epoch = math.ceil(reference.minimum)
        epoch += (evaluation.offset - (epoch - 1)) % evaluation.period
        yield config.violation(key, f"{epoch} epochs or more", why)


@config_rule(
    "MLP716",
    "invalid-schedule-length",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 854",
    optimizer="sgd",
)
def _whole_warmup(config: ConfigUnderCheck) -> Violations:
    """The warm-up of SGD has whole epochs, to a step."""
    plan = config.plan
    samples = plan.samples_per_epoch(plan.segments[0])
    epochs = plan.warmup_images / samples
    # off by a step or more: a step may end beyond an epoch
    if abs(epochs - round(epochs)) * samples >= config.batch:
        yield config.violation(
            "schedule.warmup", "whole epochs for SGD", f"it has {epochs:g}"
        )


@config_rule("MLP051", "image-set-counts", ERROR, "the manifest of the image set")
def _counts(config: ConfigUnderCheck) -> Violations:
    """The config's counts are those of the image set, where that can be seen."""
    folder = Path(config.run.data.path)
    if is_file(folder / FILE_NAME):
        for key, count in zip(COUNTS, load_manifest(folder).counts, strict=True):
            yield from config.held_to(key, count, f"as in {folder / FILE_NAME}")


# Of the recipes in docs/recipes.md and the reference convergence points: the power of the global
# batch that base learning rates grow with, the lowest and highest rate over it, and the usual eta.
_PUBLISHED_LR = {
    "lars": (0.5, 0.087, 0.2, benchmark.LARS_ETA),
    "sony": (0.5, 0.123, 0.183, VARIANTS["sony"].eta),
    "sgd": (1.0, 0.00039, 0.00184, None),
    "akiba": (1.0, 0.000195, 0.000196, None),
}
_LR_SLACK = 2.0
"""Up to so many times outside the range is not commented on."""


def published_lr(run: Run, batch: int) -> tuple[float, float] | None:
    """The lowest and the highest base learning rate that recipes suggest for `run`'s optimizer at a
    global batch; None for other networks than ResNets of full width."""
    model = run.model
    if (model.network, model.width, model.stem) != ("resnet", 64, "imagenet"):
        return None
    optimizer = run.optimizer
    power, low, high, usual = (
        _PUBLISHED_LR.get(optimizer.variant) or _PUBLISHED_LR[optimizer.name]
    )
    scale = batch**power
    # LARS multiplies the learning rate by eta: half of it wants twice the rate
    if usual is not None:
        scale *= usual / optimizer.rule.eta
    return low * scale, high * scale


@config_rule(
    "MLP751", "unusual-learning-rate", WARNING, "published recipes (docs/recipes.md)"
)
def _lr_for_batch(config: ConfigUnderCheck) -> Violations:
    """The base learning rate is in the range of the published recipes for optimizer and batch, or
    up to twice outside it."""
    published = published_lr(config.run, config.batch)
    if not published:
        return
    low, high = published
    if not low / _LR_SLACK <= config.run.optimizer.base_lr <= high * _LR_SLACK:
        span = f"about {low:.3g} to {high:.3g}"
        yield config.violation(
            "optimizer.base_lr",
            f"{span} at a global batch of {config.batch:,}",
            "the range of the published recipes",
        )


RULES = rules_on(CONFIG)
