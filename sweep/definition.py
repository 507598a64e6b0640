"""SWEEP.yaml: what a hyper-parameter search varies, what it looks for and how it runs."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from ..config.errors import UserError
from ..config.leaves import Leaf, Origin, flatten, nest
from ..config.load import Loaded, explain, load, merge
from ..config.names import file_beside
from ..config.plan import build_plan
from ..config.recorded import load_named
from ..config.values import Epoch, Float, Int, Name, Positive, Seconds, Section, Text
from ..config.yaml_file import read_layers

KINDS = ("choice", "linear", "log", "integer")
_MAX_VALUES = 1000
_MAX_TRIALS = 100_000  # of a sweep, and combinations of a grid: Optuna lists them all
FREE_KEYS = {"config", "trials", "parallel", "limit_s"}
"""May differ when a sweep continues; the config itself counts, by its digest, not its name."""


def _check_scalar(value: Any) -> Any:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError("text, a number, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number")
    return value


Scalar = Annotated[Any, AfterValidator(_check_scalar)]


class Parameter(Section):
    """Where the values of one config key come from: exactly one of the four kinds.

    choice: one of a list; linear: evenly between two numbers, on a grid of `step` if given; log:
    evenly in the logarithm; integer: whole numbers. `unit` makes durations: `2` -> `2 epochs`.
    """

    choice: tuple[Scalar, ...] | None = None
    linear: tuple[Float, Float] | None = None
    log: tuple[Float, Float] | None = None
    integer: tuple[Int, Int] | None = None
    step: Positive | None = None
    unit: Literal["epochs", "steps", "%"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Parameter:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{given[-1] if given else KINDS[0]}: exactly one of {', '.join(KINDS)} expected, "
                f"found {' and '.join(given) or 'none'}"
            )
        if self.choice is not None:
            if not 1 <= len({repr(value) for value in self.choice}) == len(self.choice):
                raise ValueError(f"choice: each value once expected, found {list(self.choice)}")
            if self.unit is not None or self.step is not None:
                raise ValueError("choice: no unit and no step beside it expected, found one")
            return self
        low, high = self.limits
        if low >= high:
            raise ValueError(f"{given[0]}: [lowest, highest] expected, found {[low, high]}")
        if self.log is not None and low <= 0:
            raise ValueError(f"log: numbers above 0 expected, found {[low, high]}")
        if self.step is not None:
            if self.log is not None or (self.integer is not None and self.step % 1):
                raise ValueError("step: beside linear, or whole beside integer, expected")
            if not 1 <= (high - low) / self.step <= _MAX_VALUES:
                raise ValueError(
                    f"step: 1 to {_MAX_VALUES} steps between lowest and highest expected, "
                    f"found {self.step}"
                )
        return self

    @property
    def limits(self) -> tuple[float, float]:
        """Lowest and highest of a kind that has them."""
        found = self.linear or self.log or self.integer
        assert found is not None
        return found

    @property
    def values(self) -> Sequence[Any]:
        """All values of a parameter that has countably many; empty for the others."""
        if self.choice is not None:
            return self.choice
        if self.integer is not None:
            return range(self.integer[0], self.integer[1] + 1, int(self.step or 1))
        if self.step is None:
            return ()
        (low, high), step = self.limits, self.step
        count = int((high - low) / step + 1e-9) + 1
        return [min(high, round(low + step * number, 12)) for number in range(count)]

    def in_config(self, value: Any) -> Any:
        """A drawn value as the config takes it: with its unit."""
        return value if self.unit is None else f"{value!r} {self.unit}"


class Dependent(Section):
    """The value of one config key by that of a parameter: factor x value ^ power."""

    of: Text
    factor: Float
    power: Float = 1.0

    def problem(self, parameters: Mapping[str, Parameter]) -> str | None:
        """Why it has no value for some value of its parameter; None where it has one for each."""
        parameter = parameters.get(self.of)
        if parameter is None:
            return f"of: one of parameters ({', '.join(parameters)}) expected, found {self.of}"
        for value in parameter.choice or parameter.limits:
            try:
                self.value(value)
            except (TypeError, ValueError, OverflowError):
                return f"of: a parameter of numbers above 0 expected, found {self.of} {value}"
        return None

    def value(self, of: Any) -> float:
        """The key's value where its parameter has the value `of`. Raises TypeError, ValueError or
        OverflowError: there is none."""
        return self.factor * math.pow(of, self.power)


class Objective(Section):
    """What makes a trial good: top-1 at an epoch (most), or seconds or epochs to target (least)."""

    measure: Literal["accuracy", "time_to_target", "epochs_to_target"] = "time_to_target"
    at_epoch: Epoch | None = None

    @model_validator(mode="after")
    def _check(self) -> Objective:
        if (self.measure == "accuracy") != (self.at_epoch is not None):
            raise ValueError(
                f"at_epoch: an epoch for measure accuracy alone expected, found {self.at_epoch} "
                f"for {self.measure}"
            )
        return self

    @property
    def is_accuracy(self) -> bool:
        return self.measure == "accuracy"


class Pruner(Section):
    """When a running trial is stopped early: median: its accuracy is worse than the median of
    earlier trials at that epoch, once there are `startup_trials`; never before `from_epoch`."""

    kind: Literal["none", "median"] = "none"
    startup_trials: Annotated[int, Field(strict=True, ge=0, le=_MAX_TRIALS)] = 5
    from_epoch: Epoch = 1


class Sweep(Section):
    """One search: the root of the tree. Keys of a config are dotted in it."""

    name: Name
    config: Text = "quick"
    overrides: dict[str, Any] = Field(default_factory=dict)
    parameters: dict[str, Parameter]
    dependent: dict[str, Dependent] = Field(default_factory=dict)
    objective: Objective = Objective()
    trials: Annotated[int, Field(strict=True, ge=1, le=_MAX_TRIALS)] = 20
    parallel: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    # Drawn at random before TPE.
    startup_trials: Annotated[int, Field(strict=True, ge=1, le=_MAX_TRIALS)] = 10
    pruner: Pruner = Pruner()
    limit_s: Seconds | None = None

    @model_validator(mode="after")
    def _check(self) -> Sweep:
        if not self.parameters:
            raise ValueError("parameters: at least one expected, found none")
        for key, dependent in self.dependent.items():
            if key in self.parameters:
                raise ValueError(f"dependent.{key}: a key beside those of parameters expected")
            if problem := dependent.problem(self.parameters):
                raise ValueError(f"dependent.{key}.{problem}")
        if self.sampler == "grid":
            for key, parameter in self.parameters.items():
                if not parameter.values:
                    raise ValueError(
                        f"parameters.{key}: a choice, an integer or a step for sampler grid "
                        "expected, found none"
                    )
            if self.combinations > _MAX_TRIALS:
                raise ValueError(
                    f"parameters: at most {_MAX_TRIALS:,} combinations for sampler grid expected, "
                    f"found {self.combinations:,}"
                )
        return self

    @property
    def combinations(self) -> int:
        """How many combinations a grid over all parameters has."""
        return math.prod(len(parameter.values) for parameter in self.parameters.values())

    @property
    def wanted_trials(self) -> int:
        """How many trials there will be: a grid has no more than its combinations."""
        return min(self.trials, self.combinations) if self.sampler == "grid" else self.trials


@dataclass(frozen=True)
class LoadedSweep:
    """A validated sweep, the config it starts from, and where each key was written."""

    sweep: Sweep
    base: Loaded
    origins: Mapping[str, Origin]

    def overrides_of(self, values: Mapping[str, Any]) -> list[str]:
        """`key.path=value` of the sweep's overrides, a trial's drawn values and what depends on
        them."""
        drawn = {key: self.sweep.parameters[key].in_config(value) for key, value in values.items()}
        more = {key: one.value(values[one.of]) for key, one in self.sweep.dependent.items()}
        given = {**self.sweep.overrides, **drawn, **more}
        return [override(key, value) for key, value in given.items()]

    def load_trial(self, config: Path | str, values: Mapping[str, Any], *more: str) -> Loaded:
        """The config of a trial. Raises UserError where its values do not make one."""
        loaded = load(config, [*self.overrides_of(values), *more])
        build_plan(loaded.run)
        return loaded

    def definition(self) -> dict[str, Any]:
        """What must be the same when a sweep continues, by key; all trials are then comparable."""
        tree = self.sweep.model_dump(mode="json", exclude=FREE_KEYS)
        return {**dict(flatten(tree)), "resolved_config_sha256": self.base.sha256}


def override(key: str, value: Any) -> str:
    """`key.path=value` that reads back as exactly `value`: JSON is YAML, but for its surrogates."""
    return f"{key}={json.dumps(value, ensure_ascii=False)}"


def load_sweep(path: Path, machine: str | None = None) -> LoadedSweep:
    """Read a SWEEP.yaml, its config and its parameters' keys.

    `config` is a path relative to the sweep's file or a preset's name, as `base` in a config; paths
    among `overrides` and `parameters` are relative to it too. A sweep may have a `base:`.

    Args:
        path: the file.
        machine: a name or a YAML file, in the place of the one of `overrides` or the config.

    Raises:
        UserError: unreadable file, bad YAML or bad values: every problem, one line each.
    """
    leaves = merge(read_layers(path))
    tree: dict[str, Any] = {}
    for key, leaf in leaves.items():
        _place(tree, key, leaf)
    try:
        sweep = Sweep.model_validate(tree)
    except ValidationError as error:
        raise UserError(*explain(error, leaves, str(path), Sweep)) from None
    if machine is not None:
        sweep = sweep.model_copy(update={"overrides": {**sweep.overrides, "system": machine}})
    origins = {key: leaf.origin for key, leaf in leaves.items()}
    config = str(file_beside(sweep.config, path.parent) or sweep.config)
    base = load_named(config, [override(key, value) for key, value in sweep.overrides.items()])
    problems = list(_unknown_keys(sweep, base, origins))
    if problems:
        raise UserError(*problems)
    loaded = LoadedSweep(sweep.model_copy(update={"config": config}), base, origins)
    plan = build_plan(base.run)
    epoch = sweep.objective.at_epoch
    # A parameter may change which epochs are evaluated; each trial is checked as well.
    if epoch is not None and epoch not in plan.eval_epochs:
        where = origins["objective.at_epoch"]
        near = min(plan.eval_epochs, key=lambda other: abs(other - epoch))
        raise UserError(
            f"{where}: objective.at_epoch: an epoch with an evaluation expected "
            f"(such as {near}), found {epoch}"
        )
    return loaded


def _place(tree: dict[str, Any], key: str, leaf: Leaf) -> None:
    """Put a leaf into the sweep's tree; config keys stay dotted, however they were nested."""
    section, _, rest = key.partition(".")
    if section == "overrides" and rest:
        tree.setdefault("overrides", {})[rest] = leaf.value
    elif section in ("parameters", "dependent") and "." in rest:
        path, _, kind = rest.rpartition(".")
        nest(tree.setdefault(section, {}).setdefault(path, {}), kind, leaf.value)
    else:
        nest(tree, key, leaf.value)


def _unknown_keys(sweep: Sweep, base: Loaded, origins: Mapping[str, Origin]) -> Iterator[str]:
    """A line for each key to vary that is none of a config, or one the sweep itself sets."""
    known = [key for key, _ in flatten(base.to_dict())]
    varied = [("parameters", key) for key in sweep.parameters]
    for section, key in (*varied, *(("dependent", key) for key in sweep.dependent)):
        where = next(o for k, o in origins.items() if k.startswith(f"{section}.{key}"))
        if key in ("name", "system.results"):
            yield f"{where}: {section}.{key}: a key that the sweep does not set itself expected"
        elif key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; `rn50 config show` lists them"
            yield f"{where}: {section}.{key}: a key of the config expected{hint}"
