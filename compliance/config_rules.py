"""Closed-division rules on a config, before it burns any machine time: the facts of the log check.

One small function a rule. In the open division what the rules fix is free: there the same findings
are notes that name the choices. A set that is not ImageNet makes a rehearsal: what the rules say of
ImageNet, and of how to train on it, is left out, and one note says so. What makes sense in no
division, such as a learning rate for another batch, is found in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
from . import constraints
from . import rcp as convergence
from .published_lr import family_of, published_range


class Breach(NamedTuple):
    """What a rule found at a key of the config; `severity` where it differs from the rule's."""

    key: str
    found: Any
    expected: str
    why: str = ""
    severity: str | None = None


class Draft(NamedTuple):
    """A config and what follows from it."""

    run: Run
    plan: Plan

    @property
    def batch(self) -> int:
        return self.plan.global_batch_size


@dataclass(frozen=True)
class ConfigRule:
    """`scope`: the closed division, the closed division on ImageNet, or always."""

    id: str
    severity: str
    scope: Literal["closed", "imagenet", "always"]
    check: Callable[[Draft], Iterator[Breach]]

    @property
    def what(self) -> str:
        """What it checks: the function's docstring."""
        return " ".join((self.check.__doc__ or "").split())


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
    draft = Draft(loaded.run, build_plan(loaded.run))
    run = draft.run
    findings = []
    for rule in RULES:
        if rule.scope == "imagenet" and not run.data.is_imagenet:
            continue
        for breach in rule.check(draft):
            severity = breach.severity or rule.severity
            if run.division == "open" and rule.scope != "always":
                severity = NOTE
            findings.append(_finding(rule.id, severity, breach, loaded))
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
        _VERDICTS[worst], cause, run.division, run.ruleset, tuple(findings), facts(draft)
    )


def _finding(rule: str, severity: str, breach: Breach, loaded: Loaded) -> Finding:
    origin = loaded.origin(breach.key)
    why = f": {breach.why}" if breach.why else ""
    text = shown(breach.found)
    message = f"{breach.key} ({origin}) is {text}, expected {breach.expected}{why}"
    return Finding(rule, severity, origin.line, breach.expected, text, message)


def _another_set(loaded: Loaded) -> Finding:
    """The rules of the closed division that a set other than ImageNet leaves out, as one note."""
    classes, origin = loaded.run.data.classes, loaded.origin("data.classes")
    message = (
        f"left out for a set of {classes} classes ({origin}): the rules on ImageNet's size and "
        "images, on the network, the seed, eta and reference convergence; held to: those on "
        "hyper-parameters and evaluation"
    )
    expected = f"{benchmark.IMAGENET_CLASSES} classes"
    return Finding("R05", NOTE, origin.line, expected, str(classes), message)


def facts(draft: Draft) -> dict[str, Any]:
    """What the config means in numbers."""
    plan, run = draft.plan, draft.run
    batches = math.ceil(plan.train_samples / draft.batch)
    padding = batches * draft.batch - plan.train_samples if run.data.last_batch == "pad" else 0
    memory = rank_bytes(run)
    found: dict[str, Any] = {
        "ranks": plan.ranks,
        "global_batch_size": draft.batch,
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
    about = published_range(run, draft.batch)
    if about is not None:
        found["published_base_lr"] = [float(f"{value:.3g}") for value in (about.low, about.high)]
    reference = convergence.reference(draft.batch, run.ruleset)
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


def _optimizer(draft: Draft) -> Iterator[Breach]:
    """The optimizer is lars or sgd."""
    if draft.run.optimizer.name not in benchmark.OPTIMIZERS:
        allowed = " or ".join(benchmark.OPTIMIZERS)
        yield Breach("optimizer.variant", draft.run.optimizer.variant, f"a variant of {allowed}")


def _end_lr(draft: Draft) -> Iterator[Breach]:
    """The end learning rate is 0.0001."""
    found = draft.run.schedule.end_lr
    if found != benchmark.END_LR:
        yield Breach("schedule.end_lr", found, plain(benchmark.END_LR))


def _power(draft: Draft) -> Iterator[Breach]:
    """The learning rate decays with power 2."""
    found = draft.run.schedule.power
    if found != benchmark.DECAY_POWER:
        severity = POLICY if draft.run.optimizer.name == "sgd" else None
        yield Breach("schedule.power", found, plain(benchmark.DECAY_POWER), severity=severity)


def _shape(draft: Draft) -> Iterator[Breach]:
    """The learning rate decays by a polynomial."""
    if draft.run.schedule.shape != "poly":
        yield Breach("schedule.shape", draft.run.schedule.shape, "poly")


def _epsilon(draft: Draft) -> Iterator[Breach]:
    """LARS has epsilon 0."""
    if draft.run.optimizer.name == "lars":
        found = optimizer_rule(draft.run.optimizer).epsilon
        if found != benchmark.LARS_EPSILON:
            yield Breach("optimizer.epsilon", found, plain(benchmark.LARS_EPSILON))


def _eta(draft: Draft) -> Iterator[Breach]:
    """LARS has eta 0.001, as the reference."""
    if draft.run.optimizer.name == "lars":
        found = optimizer_rule(draft.run.optimizer).eta
        if found != benchmark.LARS_ETA:
            yield Breach("optimizer.eta", found, f"{plain(benchmark.LARS_ETA)}, as the reference")


def _weight_decay(draft: Draft) -> Iterator[Breach]:
    """The weight decay is 0.0001 x 2^N."""
    found = draft.run.optimizer.weight_decay
    if not constraints.weight_decay_fits(found):
        unit = plain(benchmark.WEIGHT_DECAY_UNIT)
        near = constraints.nearest_weight_decays(found)
        yield Breach("optimizer.weight_decay", found, f"{unit} x 2^N", near)


def _base_lr(draft: Draft) -> Iterator[Breach]:
    """The base learning rate of SGD is 0.001 x k."""
    found = draft.run.optimizer.base_lr
    if draft.run.optimizer.name == "sgd" and not constraints.sgd_lr_fits(found):
        yield Breach("optimizer.base_lr", found, "0.001 x k, k an integer")


def _momentum(draft: Draft) -> Iterator[Breach]:
    """Momentum is 0.9: for SGD always, for LARS below a batch of 32k."""
    name, found = draft.run.optimizer.name, draft.run.optimizer.momentum
    severity = constraints.momentum_severity(name, found, draft.batch)
    if severity is not None:
        why = f"the batch is {draft.batch:,}"
        yield Breach("optimizer.momentum", found, constraints.momentum_rule(name), why, severity)
    elif name == "lars" and found != benchmark.MOMENTUM and draft.run.division == "open":
        why = f"free in the closed division too at a batch of {draft.batch:,}"
        yield Breach("optimizer.momentum", found, plain(benchmark.MOMENTUM), why)


def _label_smoothing(draft: Draft) -> Iterator[Breach]:
    """Label smoothing is 0 or 0.1."""
    found = draft.run.model.label_smoothing
    if found not in benchmark.LABEL_SMOOTHING:
        yield Breach("model.label_smoothing", found, "0 or 0.1")


def _cadence(draft: Draft) -> Iterator[Breach]:
    """Evaluations come every 4 epochs."""
    found = draft.run.eval.period
    if found != benchmark.EVAL_PERIOD_EPOCHS:
        yield Breach("eval.period", found, str(benchmark.EVAL_PERIOD_EPOCHS))


def _target(draft: Draft) -> Iterator[Breach]:
    """The run stops at 0.759 or above."""
    found = draft.run.eval.target
    if found < benchmark.TARGET_ACCURACY:
        why = "a run that stops there is none of the closed division"
        if draft.run.division == "closed":
            why += "; division=open takes any target"
        yield Breach("eval.target", found, f"at least {benchmark.TARGET_ACCURACY}", why)


def _late_target(draft: Draft) -> Iterator[Breach]:
    """The run does not go on past 0.759."""
    found = draft.run.eval.target
    if found > benchmark.TARGET_ACCURACY:
        why = "training goes on past the target"
        yield Breach("eval.target", found, str(benchmark.TARGET_ACCURACY), why)


def _samples(draft: Draft) -> Iterator[Breach]:
    """The data set is ImageNet's: 1,281,167 and 50,000 images in 1,000 classes."""
    data = draft.run.data
    for key, found, expected in (
        ("data.train_samples", data.train_samples, benchmark.IMAGENET_TRAIN_SAMPLES),
        ("data.eval_samples", data.eval_samples, benchmark.IMAGENET_EVAL_SAMPLES),
        ("data.classes", data.classes, benchmark.IMAGENET_CLASSES),
    ):
        if found != expected:
            yield Breach(key, found, str(expected))


def _images(draft: Draft) -> Iterator[Breach]:
    """Images are prepared as in the reference: crop, area, aspect, flip, to the last epoch."""
    data = draft.run.data
    slack = 1e-2  # the rules say 0.75 to 1.33
    if data.crop_px != benchmark.CROP_PX:
        yield Breach("data.crop_px", data.crop_px, str(benchmark.CROP_PX))
    if data.eval_resize_px != benchmark.EVAL_RESIZE_PX:
        yield Breach("data.eval_resize_px", data.eval_resize_px, str(benchmark.EVAL_RESIZE_PX))
    for key, found, expected in (
        ("data.area", data.area, benchmark.CROP_AREA),
        ("data.aspect", data.aspect, benchmark.CROP_ASPECT),
    ):
        if any(abs(a - b) > slack for a, b in zip(found, expected, strict=True)):
            said = " to ".join(plain(round(value, 4)) for value in found)
            yield Breach(key, said, " to ".join(plain(round(value, 4)) for value in expected))
    for key, on in (("data.augment", data.augment), ("data.flip", data.flip)):
        if not on:
            yield Breach(key, on, "true")
    if data.no_augment_from_epoch is not None:
        why = "augmentation ends before the run"
        yield Breach("data.no_augment_from_epoch", data.no_augment_from_epoch, "none", why)


def _network(draft: Draft) -> Iterator[Breach]:
    """The network is ResNet-50 v1.5 with the reference's batch norm."""
    model = draft.run.model
    for key, found, expected in (
        ("model.network", model.network, "resnet"),
        ("model.depth", model.depth, 50),
        ("model.width", model.width, 64),
        ("model.stem", model.stem, "imagenet"),
        ("model.norm", model.norm, "batch"),
        ("model.bn_momentum", model.bn_momentum, benchmark.BN_MOMENTUM),
        ("model.bn_epsilon", model.bn_epsilon, benchmark.BN_EPSILON),
    ):
        if found != expected:
            yield Breach(key, found, shown(expected))


def _batch_control(draft: Draft) -> Iterator[Breach]:
    """The batch stays the same through the run."""
    if draft.run.batch.changes:
        found = [change.per_rank for change in draft.run.batch.changes]
        yield Breach("batch.changes", found, "none", "a second batch size has no log key")


def _seed(draft: Draft) -> Iterator[Breach]:
    """The seed is drawn fresh for every run, not a constant."""
    if draft.run.seed is not None:
        why = "the rules allow the clock or urandom, and no two runs the same"
        yield Breach("seed", draft.run.seed, "none (rn50 launch draws one)", why)


def _rcp_covers(draft: Draft) -> Iterator[Breach]:
    """A reference convergence point covers the batch."""
    reference = convergence.reference(draft.batch, draft.run.ruleset)
    if reference is not None and reference.kind == "above":
        largest = reference.batches[0]
        yield Breach(
            "batch.per_rank",
            draft.run.batch.per_rank,
            f"a global batch up to {largest:,}",
            f"{draft.batch:,} is above the largest point {largest:,}: needs its own RCP",
        )


def _rcp_reached(draft: Draft) -> Iterator[Breach]:
    """The run is long enough to converge within the reference's epochs."""
    reference = convergence.reference(draft.batch, draft.run.ruleset)
    if reference is None or math.isnan(reference.mean):
        return
    last = draft.plan.eval_epochs[-1]
    if last < reference.minimum:
        why = (
            f"evaluated last after epoch {last}, the RCP test accepts from {reference.minimum:.2f}"
        )
        found = str(draft.run.schedule.length)
        yield Breach("schedule.length", found, f"{math.ceil(reference.mean)} epochs or more", why)


def _rcp_scaled(draft: Draft) -> Iterator[Breach]:
    """An evaluation that would be accepted but scaled down is pointed out."""
    reference = convergence.reference(draft.batch, draft.run.ruleset)
    if reference is None or math.isnan(reference.mean):
        return
    stop = next((e for e in draft.plan.eval_epochs if e >= reference.minimum), None)
    if stop is not None and stop < reference.mean:
        yield Breach(
            "eval.offset",
            draft.run.eval.offset,
            f"an evaluation at the RCP mean, {reference.mean:.2f} epochs",
            f"converging at epoch {stop} multiplies the score by {reference.mean / stop:.6f}",
        )


def _long_warmup(draft: Draft) -> Iterator[Breach]:
    """The warm-up takes less than half of the run."""
    plan = draft.plan
    if plan.warmup_steps * 2 > plan.total_steps:
        found = str(draft.run.schedule.warmup)
        why = f"{plan.warmup_steps} of {plan.total_steps} steps"
        yield Breach("schedule.warmup", found, "less than half of the run", why)


def _status(draft: Draft) -> Iterator[Breach]:
    """The submission status is one of the round's words."""
    allowed = benchmark.statuses(draft.run.ruleset)
    if draft.run.log.status not in allowed:
        yield Breach("log.status", draft.run.log.status, ", ".join(allowed))


def _counts(draft: Draft) -> Iterator[Breach]:
    """The config's counts are those of the image set, where that can be seen."""
    folder = Path(draft.run.data.path)
    if not is_file(folder / FILE_NAME):
        return
    for key, count in zip(COUNTS, load_manifest(folder).counts, strict=True):
        found = getattr(draft.run.data, key.removeprefix("data."))
        if found != count:
            yield Breach(key, found, str(count), f"as in {folder / FILE_NAME}")


def _lr_for_batch(draft: Draft) -> Iterator[Breach]:
    """The base learning rate is in the range of the published recipes for optimizer and batch."""
    own = draft.run.optimizer.base_lr
    about = published_range(draft.run, draft.batch)
    if about is None or about.supports(own):
        return
    low, high = (f"{value:.3g}" for value in (about.low, about.high))
    span = low if low == high else f"{low} to {high}"
    family = {"lars": "LARS", "sgd": "SGD"}.get(family_of(draft.run.optimizer))
    named = f" with {family}" if family else ""
    near, other = about.same_lr, about.same_batch
    yield Breach(
        "optimizer.base_lr",
        own,
        f"about {span} at a global batch of {draft.batch:,}{named}",
        f"{near.base_lr:.3g} is made for a batch of {near.batch:,} ({near.source}), and the recipe "
        f"nearest to yours has {other.base_lr:.3g} at {other.batch:,} ({other.source})",
    )


RULES = (
    ConfigRule("COUNTS", ERROR, "always", _counts),
    ConfigRule("LR_FOR_BATCH", WARNING, "always", _lr_for_batch),
    ConfigRule("OPT_NAME", ERROR, "closed", _optimizer),
    ConfigRule("END_LR", ERROR, "closed", _end_lr),
    ConfigRule("POWER", ERROR, "closed", _power),
    ConfigRule("EPSILON", ERROR, "closed", _epsilon),
    ConfigRule("WEIGHT_DECAY", ERROR, "closed", _weight_decay),
    ConfigRule("SGD_BASE_LR", ERROR, "closed", _base_lr),
    ConfigRule("SUBMISSION_VALUES", ERROR, "closed", _status),
    ConfigRule("R02", ERROR, "closed", _target),
    ConfigRule("RCP", ERROR, "imagenet", _rcp_covers),
    ConfigRule("RCP_LENGTH", ERROR, "imagenet", _rcp_reached),
    ConfigRule("R07", POLICY, "closed", _momentum),
    ConfigRule("R11", POLICY, "closed", _label_smoothing),
    ConfigRule("R04", POLICY, "closed", _cadence),
    ConfigRule("SHAPE", POLICY, "closed", _shape),
    ConfigRule("ETA", POLICY, "imagenet", _eta),
    ConfigRule("R05", POLICY, "imagenet", _samples),
    ConfigRule("IMAGES", POLICY, "imagenet", _images),
    ConfigRule("NETWORK", POLICY, "imagenet", _network),
    ConfigRule("BATCH_CONTROL", POLICY, "closed", _batch_control),
    ConfigRule("S2", POLICY, "imagenet", _seed),
    ConfigRule("R03", NOTE, "imagenet", _late_target),
    ConfigRule("RCP_FACTOR", NOTE, "imagenet", _rcp_scaled),
    ConfigRule("WARMUP", NOTE, "closed", _long_warmup),
)
