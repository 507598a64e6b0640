"""SWEEP.yaml: what a hyper-parameter search varies, what it looks for and how it runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
)
from pydantic import AfterValidator, Field, ValidationError, model_validator

from ..config.errors import COMMAND_LINE, Problem, UserError
from ..config.finding import printable
from ..config.leaves import Leaf, flatten, nest
from ..config.load import Loaded, explain, load, merge
from ..config.names import file_beside
from ..config.reading import JsonObject
from ..config.recorded import load_named
from ..config.values import (
    Count,
    Epoch,
    Float,
    Name,
    Positive,
    Section,
    Seed,
    Text,
    Workers,
)
from ..config.yaml_file import read_layers

KINDS = ("choice", "linear", "log")
FREE_KEYS = {"config", "trials", "parallel"}
"""May differ when a sweep continues; the config itself counts, by its digest, not its name."""


def _check_scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str | None):
        raise ValueError("text, a number, true, false or null")
    return value


Scalar = Annotated[Any, AfterValidator(_check_scalar)]


class Parameter(Section):
    """Where the values of one config key come from: exactly one of the three kinds.

    choice: one of a list; linear: evenly between two numbers, on a grid of `step` if given; log:
    evenly in the logarithm. `unit` makes durations: `2` -> `2 epochs`.
    """

    choice: tuple[Scalar, ...] | None = None
    linear: tuple[Float, Float] | None = None
    log: tuple[Float, Float] | None = None
    step: Positive | None = None
    unit: Literal["epochs", "steps", "%"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Parameter:
        given = [
            range_name for range_name in KINDS if getattr(self, range_name) is not None
        ]
        if len(given) != 1:
            raise ValueError(
                f"{given[-1] if given else KINDS[0]}: exactly one of {', '.join(KINDS)} expected, "
                f"found {' and '.join(given) or 'none'}"
            )
        if self.step is not None and self.linear is None:
            raise ValueError("step: beside linear alone expected")
        try:
            _ = self.distribution
        except ValueError as error:
            raise ValueError(f"{given[0]}: {error}") from None
        return self

    @property
    def distribution(self) -> BaseDistribution:
        """The distribution from which Optuna draws. Raises ValueError: there is nothing to draw."""
        if self.choice is not None:
            return CategoricalDistribution(self.choice)
        low, high = self.linear or self.log or (0.0, 0.0)
        return FloatDistribution(low, high, self.log is not None, self.step)

    def in_config(self, value: Any) -> Any:
        """A drawn value as the config takes it: with its unit, and whole where it is whole."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return value if self.unit is None else f"{value!r} {self.unit}"


class Dependent(Section):
    """The value of one config key by that of a parameter: factor x value ^ power."""

    of: Text
    factor: Float
    power: Float = 1.0

    def value(self, of: Any) -> float:
        """The key's value where its parameter has the value `of`. Raises UserError: there is
        none."""
        try:
            return self.factor * math.pow(of, self.power)
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(
                f"{self.factor:g} x {of} ^ {self.power:g}: {error}"
            ) from None


class Sweep(Section):
    """One search: the root of the tree. Keys of a config are dotted in it."""

    name: Name
    config: Text = "quick"
    overrides: JsonObject = Field(default_factory=dict)
    parameters: dict[str, Parameter]
    dependent: dict[str, Dependent] = Field(default_factory=dict)
    objective: Literal["accuracy", "time_to_target", "epochs_to_target"] = (
        "time_to_target"
    )
    """What makes a trial good: top-1 at its end (most), or seconds or epochs to target (least)."""
    trials: Count = 20
    parallel: Workers = 1
    seed: Seed = 0
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    prune_from: Epoch | None = None
    """From this epoch on a trial ends whose accuracy is below the median of earlier trials."""

    @model_validator(mode="after")
    def _check(self) -> Sweep:
        if not self.parameters:
            raise ValueError("parameters: at least one expected, found none")
        for key, dependent in self.dependent.items():
            if dependent.of not in self.parameters:
                names = ", ".join(self.parameters)
                raise ValueError(
                    f"dependent.{key}.of: one of parameters ({names}) expected, "
                    f"found {dependent.of}"
                )
            if key in self.parameters:
                raise ValueError(
                    f"dependent.{key}: also in parameters; remove one of the two"
                )
        for key, parameter in self.parameters.items():
            if self.sampler == "grid" and parameter.choice is None:
                raise ValueError(
                    f"parameters.{key}.choice: needed by sampler grid, found none"
                )
        return self

    @property
    def wanted_trials(self) -> int:
        """How many trials there will be: a grid has no more than its combinations."""
        if self.sampler != "grid":
            return self.trials
        choices = [parameter.choice or () for parameter in self.parameters.values()]
        return min(self.trials, math.prod(map(len, choices)))


@dataclass(frozen=True)
class LoadedSweep:
    """A validated sweep and the config that it starts from."""

    sweep: Sweep
    base: Loaded

    def load_trial(
        self,
        values: Mapping[str, Any],
        *more: str,
    ) -> Loaded:
        """The config of a trial. Raises UserError where its values do not make one."""
        sweep = self.sweep
        given = dict(sweep.overrides)
        for key, value in values.items():
            given[key] = sweep.parameters[key].in_config(value)
        for key, dependent in sweep.dependent.items():
            given[key] = dependent.value(values[dependent.of])
        return load(sweep.config, [*overrides(given), *more])

    def definition(self) -> JsonObject:
        """What must be the same when a sweep continues, by key; all trials are then comparable."""
        tree = self.sweep.model_dump(mode="json", exclude=FREE_KEYS)
        tree["resolved_config_sha256"] = self.base.sha256
        return dict(flatten(tree))


def problems_of(error: UserError) -> list[str]:
    """The lines of a config's error; what a sweep sets is on no command line."""
    lines = []
    for line in error.args:
        is_ours = isinstance(line, Problem) and line.origin == COMMAND_LINE
        text = line.text if is_ours else str(line)
        lines.append(printable(text))
    return lines


def overrides(values: Mapping[str, Any]) -> list[str]:
    """`key.path=value` that reads back as exactly the value: JSON is YAML, but for its
    surrogates."""
    return [
        f"{key}={json.dumps(value, ensure_ascii=False, default=str)}"
        for key, value in values.items()
    ]


def load_sweep(
    path: Path,
    machine: str | None = None,
) -> LoadedSweep:
    """Read a SWEEP.yaml, its config and its parameters' keys.

    `config` is a path relative to the sweep's file or a preset's name, as `base` in a config. Paths
    among `overrides` are relative to the working folder. A sweep may have a `base:`.

    Args:
        path: the file.
        machine: a name or a YAML file, in the place of the one of `overrides` or the config.

    Raises:
        UserError: unreadable file, bad YAML or bad values: every problem, one line each.
    """
    leaves = merge(read_layers(path))
    tree: JsonObject = {}
    for key, leaf in leaves.items():
        _place(tree, key, leaf)
    try:
        sweep = Sweep.model_validate(tree)
    except ValidationError as error:
        problems = explain(error, leaves, str(path), Sweep)
        raise UserError(*problems) from None
    if machine is not None:
        sweep.overrides["system"] = machine
    config = str(file_beside(sweep.config, path.parent) or sweep.config)
    try:
        base = load_named(config, overrides(sweep.overrides))
    except UserError as error:
        lines = [f"{path}: {line}" for line in problems_of(error)]
        raise UserError(*lines) from None
    known = [key for key, _ in flatten(base.to_dict())]
    for key in (*sweep.parameters, *sweep.dependent):
        if key not in known:
            raise UserError(
                f"{path}: {key}: a key of the config expected; `rn50 config show` lists them"
            )
    sweep = sweep.model_copy(update={"config": config})
    return LoadedSweep(sweep, base)


def _place(
    tree: JsonObject,
    key: str,
    leaf: Leaf,
) -> None:
    """Put a leaf into the sweep's tree; config keys stay dotted, however they were nested."""
    section, _, rest = key.partition(".")
    if section == "overrides" and rest:
        tree.setdefault(section, {})[rest] = leaf.value
    elif section in ("parameters", "dependent") and "." in rest:
        path, _, field = rest.rpartition(".")
        fields = tree.setdefault(section, {}).setdefault(path, {})
        nest(fields, field, leaf.value)
    else:
        nest(tree, key, leaf.value)
