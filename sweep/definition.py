"""SWEEP.yaml: what a hyper-parameter search varies, what it looks for and how it runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
)
from pydantic import AfterValidator, Field, ValidationError, model_validator

from ..config.leaves import Leaf, Origins, flatten, nest
from ..config.load import Loaded, explain, load, merge, nearest_origin
from ..config.names import file_beside, nearest_name
from ..config.plan import build_plan
from ..config.recorded import load_named
from ..config.values import Count, Epoch, Float, Name, Positive, Section, Seed, Text
from ..config.yaml_file import read_layers
from ..host.errors import COMMAND_LINE, Problem, UserError
from ..host.finding import printable
from ..host.reading import JsonObject

KINDS = ("choice", "linear", "log")
FREE_KEYS = {"config", "trials"}
"""May differ when a sweep continues; the config itself counts, by its digest, not its name."""


def _check_scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str | None):
        raise ValueError("text, a number, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number")
    return value


Scalar = Annotated[Any, AfterValidator(_check_scalar)]


class Parameter(Section):
    """The source of one config key's values: exactly one of the three kinds.

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
        kinds = self.kinds
        if len(kinds) != 1:
            raise ValueError(
                f"{kinds[-1] if kinds else KINDS[0]}: exactly one of {', '.join(KINDS)} expected, "
                f"found {' and '.join(kinds) or 'none'}"
            )
        if self.step is not None and self.linear is None:
            raise ValueError("step: beside linear alone expected")
        try:
            _ = self.distribution
        except ValueError as error:
            raise ValueError(f"{kinds[0]}: {error}") from None
        return self

    @property
    def distribution(self) -> BaseDistribution:
        """The distribution from which Optuna draws. Raises ValueError: there is nothing to draw."""
        if self.choice is not None:
            return CategoricalDistribution(self.choice)
        return FloatDistribution(*self.ends, self.log is not None, self.step)

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value of a range."""
        return self.linear or self.log or (0.0, 0.0)

    @property
    def kinds(self) -> list[str]:
        """Which of the three kinds it is: one, once it is validated."""
        return [kind for kind in KINDS if getattr(self, kind) is not None]

    @property
    def samples(self) -> Sequence[Any]:
        """All choices; of a range its ends, and one value between them."""
        if self.choice is not None:
            return self.choice
        low, high = self.ends
        high = FloatDistribution(low, high, step=self.step).high  # on the grid
        between = low + (self.step or (high - low) / math.pi)
        return low, min(between, high), high

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

    def value(self, parameter_value: Any) -> float:
        """The key's value where its parameter has a value. Raises UserError: there is
        none."""
        try:
            return self.factor * math.pow(parameter_value, self.power)
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(
                f"{self.factor:g} x {parameter_value} ^ {self.power:g}: {error}"
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
    seed: Seed = 0
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    prune_from: Epoch | None = None
    """From this epoch on a trial ends whose accuracy is below the median of earlier trials."""

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

    def load_trial(self, values: Mapping[str, Any], *more: str) -> Loaded:
        """The config of a trial. Raises UserError where its values do not make one."""
        sweep = self.sweep
        values_by_key = sweep.overrides | {
            key: sweep.parameters[key].in_config(value) for key, value in values.items()
        }
        for key, dependent in sweep.dependent.items():
            if dependent.of in values:
                values_by_key[key] = dependent.value(values[dependent.of])
        return load(sweep.config, [*overrides(values_by_key), *more])

    def refusal(self, values: Mapping[str, Any]) -> list[str]:
        """Why some values, with the base's others, make no config; empty where they make one."""
        try:
            build_plan(self.load_trial(values).run)
        except UserError as error:
            return problems_of(error)
        return []

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
        content = line.sentence if is_ours else str(line)
        lines.append(printable(content))
    return lines


def overrides(values: Mapping[str, Any]) -> list[str]:
    """`key.path=value` that reads back as exactly the value: JSON is YAML, but for its
    surrogates."""
    return [
        f"{key}={json.dumps(value, ensure_ascii=False, default=str)}"
        for key, value in values.items()
    ]


def load_sweep(path: Path, machine: str | None = None) -> LoadedSweep:
    """Read a SWEEP.yaml and its config, and try what its parameters may draw.

    `config` is a path relative to the sweep's file or a preset's name, as `base` in a config. Paths
    among `overrides` are relative to the working folder. A sweep may have a `base:`.

    Args:
        path: the file.
        machine: a name or a YAML file, in the place of the one of `overrides` or the config.

    Raises:
        UserError: unreadable file, bad YAML, bad values, or values of which no trial can be made:
            every problem, one line each.
    """
    leaves = merge(read_layers(path))
    tree: JsonObject = {}
    for key, leaf in leaves.items():
        _place(tree, key, leaf)
    origins = {key: leaf.origin for key, leaf in leaves.items()}
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
        lines = problems_of(error)
        raise UserError(*(_of_base(line, origins, path) for line in lines)) from None
    loaded = LoadedSweep(sweep.model_copy(update={"config": config}), base)
    for find in (_wrong_keys, _wrong_values):
        problems = [
            Problem(str(nearest_origin(key, origins) or path), f"{key}: {message}")
            for key, message in find(loaded)
        ]
        if problems:
            raise UserError(*dict.fromkeys(problems))
    return loaded


def _of_base(line: str, origins: Origins, path: Path) -> Problem:
    """A problem of the config with its overrides, where the sweep has what makes it."""
    key = f"overrides.{line.partition(': ')[0]}"
    if key in origins:
        return Problem(str(origins[key]), f"overrides.{line}")
    return Problem(str(origins.get("config", path)), f"config: {line}")


def _wrong_keys(loaded: LoadedSweep) -> Iterator[tuple[str, str]]:
    """(key of the sweep, what is wrong) of parameters that do not fit the config or each other."""
    sweep = loaded.sweep
    names = [key for key, _ in flatten(loaded.base.to_dict())]
    if not sweep.parameters:
        yield "parameters", "at least one expected, found none"
    for section in ("parameters", "dependent"):
        for key in getattr(sweep, section):
            if key not in names:
                near = nearest_name(key, names) or "; `rn50 config show` lists them"
                yield f"{section}.{key}", f"a key of the config expected{near}"
    for key, dependent in sweep.dependent.items():
        if dependent.of not in sweep.parameters:
            expected = f"one of parameters ({', '.join(sweep.parameters)}) expected"
            yield f"dependent.{key}.of", f"{expected}, found {dependent.of}"
        if key in sweep.parameters:
            yield f"dependent.{key}", "also in parameters; remove one of the two"
    for key, parameter in sweep.parameters.items():
        if sweep.sampler == "grid" and parameter.choice is None:
            yield f"parameters.{key}.choice", "needed by sampler grid, found none"


def _wrong_values(loaded: LoadedSweep) -> Iterator[tuple[str, str]]:
    """(key of the sweep, what is wrong) of each choice, and of each range's values, that makes no
    config: neither with the base's other values nor with one that another parameter draws."""
    parameters = loaded.sweep.parameters
    for key, parameter in parameters.items():
        for value in parameter.samples:
            problems = loaded.refusal({key: value})
            # a value may fit only beside another that is drawn with it
            is_refused = all(
                loaded.refusal({another_key: sample, key: value})
                for another_key, another in parameters.items()
                for sample in another.samples
                if problems and another_key != key
            )
            for line in problems if is_refused else ():
                yield (
                    f"parameters.{key}.{parameter.kinds[0]}",
                    line.removeprefix(f"{key}: "),
                )


def _place(tree: JsonObject, key: str, leaf: Leaf) -> None:
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
