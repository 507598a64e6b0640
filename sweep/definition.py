"""SWEEP.yaml: what a hyper-parameter search varies, what it looks for and how it runs."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from ..config.choices import LauncherName, SchedulerName
from ..config.errors import UserError
from ..config.leaves import Leaf, Origin, flatten, nest
from ..config.load import Loaded, explain, load, merge
from ..config.names import file_beside
from ..config.plan import build_plan
from ..config.recorded import load_named
from ..config.values import Epoch, Float, Fraction, Int, Name, Positive, Seconds, Section, Text
from ..config.yaml_file import read_layers

KINDS = ("choice", "linear", "log", "integer")
_MAX_CHOICES = 1000
_MAX_TRIALS = 100_000  # of a sweep, and combinations of a grid: Optuna lists them all
# May differ when a sweep goes on; the config itself counts, by its digest, not its name.
FREE_KEYS = ("config", "trials", "parallel", "limit_s", "scheduler", "launcher")


def _check_scalar(value: Any) -> Any:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError("text, a number, true, false or null")
    if isinstance(value, float) and value - value != 0:
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
            if not 1 <= len(self.choice) <= _MAX_CHOICES:
                raise ValueError(f"choice: 1 to {_MAX_CHOICES} values expected")
            if len({repr(value) for value in self.choice}) < len(self.choice):
                raise ValueError(f"choice: each value once expected, found {list(self.choice)}")
        else:
            low, high = self.limits
            if low >= high:
                raise ValueError(f"{self.kind}: [lowest, highest] expected, found {[low, high]}")
            if self.log is not None and low <= 0:
                raise ValueError(f"log: numbers above 0 expected, found {[low, high]}")
        self._check_step()
        if self.unit is not None and self.choice is not None:
            raise ValueError(f"unit: none beside choice expected, found {self.unit}")
        return self

    def _check_step(self) -> None:
        if self.step is None:
            return
        if self.kind not in ("linear", "integer"):
            raise ValueError(f"step: beside linear or integer alone expected, found {self.kind}")
        if self.kind == "integer" and not float(self.step).is_integer():
            raise ValueError(f"step: a whole number beside integer expected, found {self.step}")
        if self.step > self.limits[1] - self.limits[0]:
            raise ValueError(f"step: at most highest - lowest expected, found {self.step}")

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def limits(self) -> tuple[float, float]:
        """Lowest and highest of a kind that has them."""
        found = self.linear or self.log or self.integer
        assert found is not None
        return found

    @property
    def grid_count(self) -> int:
        """How many values a parameter that has countably many has."""
        if self.choice is not None:
            return len(self.choice)
        low, high = self.limits
        if self.integer is not None:
            return int(high - low) // int(self.step or 1) + 1
        return int((high - low) / (self.step or high - low) + 1e-9) + 1

    def first(self) -> Any:
        """A value of it, to try the config with."""
        return self.choice[0] if self.choice is not None else self.limits[0]

    def in_config(self, value: Any) -> Any:
        """A drawn value as the config takes it: with its unit."""
        return value if self.unit is None else f"{value!r} {self.unit}"


class Dependent(Section):
    """The value of one config key by that of a parameter: a table, or factor x value ^ power."""

    of: Text
    table: tuple[tuple[Scalar, Scalar], ...] | None = None
    factor: Float | None = None
    power: Float = 1.0

    @model_validator(mode="after")
    def _check(self) -> Dependent:
        if (self.table is None) == (self.factor is None):
            found = "none" if self.table is None else "both"
            raise ValueError(f"of: a table or a factor beside it expected, found {found}")
        return self

    def problem(self, parameters: Mapping[str, Parameter]) -> str | None:
        """Why it has no value for some value of its parameter."""
        parameter = parameters.get(self.of)
        if parameter is None:
            return f"of: one of parameters ({', '.join(parameters)}) expected, found {self.of}"
        values = parameter.choice or (parameter.limits if self.table is None else ())
        if self.table is None:
            bad = [v for v in values if isinstance(v, bool | str) or v is None or v <= 0]
            return f"factor: numbers above 0 in {self.of} expected, found {bad[0]}" if bad else None
        missing = [value for value in values if value not in dict(self.table)]
        if missing or not values:
            wanted = f"a row for {missing[0]}" if missing else "a choice"
            return f"table: {wanted} of {self.of} expected, found none"
        return None

    def value(self, of: Any) -> Any:
        return (
            dict(self.table)[of] if self.table is not None else (self.factor or 0) * of**self.power
        )


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
    """When a running trial is stopped early, judged by its accuracy at each evaluation.

    median: worse than the median of earlier trials at that epoch, once there are `startup_trials`;
    halving: not among the best 1 / `reduction` at `from_epoch`, `from_epoch` x `reduction`, ...;
    threshold: below `least`. None of them looks before `from_epoch`.
    """

    kind: Literal["none", "median", "halving", "threshold"] = "none"
    startup_trials: Annotated[int, Field(strict=True, ge=0, le=_MAX_TRIALS)] = 5
    from_epoch: Epoch = 1
    reduction: Annotated[int, Field(strict=True, ge=2, le=1000)] = 3
    least: Fraction | None = None

    @model_validator(mode="after")
    def _check(self) -> Pruner:
        if (self.kind == "threshold") != (self.least is not None):
            raise ValueError(
                f"least: an accuracy for kind threshold alone expected, found {self.least} "
                f"for {self.kind}"
            )
        return self


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
    scheduler: SchedulerName = "local"
    launcher: LauncherName | None = None
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
                if not (parameter.choice or parameter.integer or parameter.step):
                    raise ValueError(
                        f"parameters.{key}: a choice, an integer or a step for sampler grid "
                        f"expected, found {parameter.kind}"
                    )
            combinations = math.prod(parameter.grid_count for parameter in self.parameters.values())
            if combinations > _MAX_TRIALS:
                raise ValueError(
                    f"parameters: at most {_MAX_TRIALS:,} combinations for sampler grid expected, "
                    f"found {combinations:,}"
                )
        if self.scheduler != "local" and self.launcher is not None:
            raise ValueError(
                f"launcher: none with a scheduler (the job has its own) expected, "
                f"found {self.launcher}"
            )
        return self


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
        """What must be the same when a sweep goes on; all trials are then comparable."""
        tree = self.sweep.model_dump(mode="json")
        kept = {key: value for key, value in tree.items() if key not in FREE_KEYS}
        if not kept["dependent"]:  # of a sweep that began before there was any
            del kept["dependent"]
        return {**kept, "resolved_config_sha256": self.base.sha256}


def override(key: str, value: Any) -> str:
    """`key.path=value` that reads back as exactly `value`: JSON is YAML, but for its surrogates."""
    return f"{key}={json.dumps(value, ensure_ascii=False)}"


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The keys in which two definitions differ, as `key: was A, is B`."""
    before, after = dict(flatten(dict(old))), dict(flatten(dict(new)))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return [
        f"{key}: was {json.dumps(before.get(key))}, is {json.dumps(after.get(key))}" for key in keys
    ]


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
