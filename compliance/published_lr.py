"""Base learning rate against global batch: what the published recipes support.

The recipes are the presets, the reference convergence points, and the few below that have no
preset. LARS follows the square root of the batch, SGD the batch itself: between 408 and 67,840
images LR / sqrt(batch) of these LARS recipes lies between 0.087 and 0.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from pydantic import ValidationError

from ..config import benchmark
from ..config.errors import UserError
from ..config.leaves import tree_of
from ..config.load import merge
from ..config.names import PRESETS, list_presets
from ..config.plan import build_plan
from ..config.schema import Model, Optimizer, Run
from ..config.variants import VARIANTS
from ..config.yaml_file import read_layers
from . import rcp as convergence

SLACK = 2.0
"""Recipes of one batch differ by a third among themselves (21.2 and 29 at 32,768): up to so many
times outside their range is not commented on."""
_NEAR = 4.0
"""Recipes up to so many times the batch, or that part of it, count for its range."""


class Recipe(NamedTuple):
    """A base learning rate that somebody published, with the global batch that it was for."""

    family: str
    batch: int
    base_lr: float
    source: str


class Range(NamedTuple):
    """What recipes suggest for a batch: lowest and highest base LR, and two recipes to name."""

    low: float
    high: float
    same_lr: Recipe
    """The recipe whose base LR is nearest to the config's."""
    same_batch: Recipe
    """The recipe whose batch is nearest to the config's."""

    def supports(self, base_lr: float) -> bool:
        return self.low / SLACK <= base_lr <= self.high * SLACK


# MLPerf entries without a preset here: training_results_v0.7, NVIDIA dgxa100 (SGD), and the small
# batches of several vendors in v1.0 to v4.0.
_BESIDE = (
    Recipe("sgd", 3264, 6.0, "NVIDIA's DGX A100 in MLPerf v0.7"),
    Recipe("lars", 408, 3.0, "MLPerf v1.0 to v4.0"),
    Recipe("lars", 816, 5.2, "MLPerf v1.0 to v4.0"),
)
_POINT = "a reference convergence point"
_EXPONENTS = {"sgd": 1.0, "akiba": 1.0, "lars": 0.5, "sony": 0.5}


def family_of(optimizer: Optimizer) -> str:
    """Recipes of which learning rates can be compared: Sony's is printed with ten times the eta."""
    return "sony" if optimizer.variant == "sony" else optimizer.name


@lru_cache(maxsize=1)
def published() -> tuple[Recipe, ...]:
    """All recipes, by family and batch; LARS's as for the family's usual eta."""
    points = (
        Recipe("lars", point.batch, point.base_lr, _POINT)
        for point in convergence.points(benchmark.RULESETS[-1])
    )
    return tuple(sorted([*_presets(), *points, *_BESIDE]))


def published_range(run: Run, batch: int) -> Range | None:
    """What the recipes suggest for `run`'s optimizer at a global batch; None for other networks."""
    if not is_resnet(run.model) or batch < 1:
        return None
    family = family_of(run.optimizer)
    unit = _eta_ratio(run.optimizer)
    recipes = [
        recipe._replace(base_lr=recipe.base_lr / unit)
        for recipe in published()
        if recipe.family == family
    ]

    def distance(recipe: Recipe) -> float:
        return abs(math.log(recipe.batch / batch))

    same_batch = min(recipes, key=distance)
    near = [recipe for recipe in recipes if distance(recipe) <= math.log(_NEAR)] or [same_batch]
    scaled = [r.base_lr * (batch / r.batch) ** _EXPONENTS[family] for r in near]
    own = run.optimizer.base_lr
    # Of equal ones a preset, which can be run, before a point.
    same_lr = min(recipes, key=lambda r: (abs(math.log(r.base_lr / own)), r.source == _POINT))
    return Range(min(scaled), max(scaled), same_lr, same_batch)


def is_resnet(model: Model) -> bool:
    """Is it a ResNet of full width for images of ImageNet's size, as all recipes train?"""
    return (model.network, model.width, model.stem) == ("resnet", 64, "imagenet")


def _presets() -> Iterator[Recipe]:
    """The presets that name a base LR for the set that they are published for."""
    for name in list_presets():
        leaves = merge(read_layers(PRESETS / f"{name}.yaml"))
        try:
            run = Run.model_validate(tree_of(leaves))
        except ValidationError:
            raise UserError(f"{name}: a valid preset expected") from None
        if run.data.synthetic is None and is_resnet(run.model) and "optimizer.base_lr" in leaves:
            batch = build_plan(run).global_batch_size
            own, ratio = run.optimizer.base_lr, _eta_ratio(run.optimizer)
            eta = run.optimizer.rule.eta
            source = name if ratio == 1 else f"{name}, {own:g} at eta {eta:g}"
            yield Recipe(family_of(run.optimizer), batch, own * ratio, source)


def _eta_ratio(optimizer: Optimizer) -> float:
    """LARS's trust coefficient over the usual one of its family; 1 where there is none."""
    family = family_of(optimizer)
    if family not in ("lars", "sony"):
        return 1.0
    usual = VARIANTS["sony"].eta if family == "sony" else benchmark.LARS_ETA
    return optimizer.rule.eta / usual
