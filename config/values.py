"""Types of a config's values: what may be written, as a check and in words for people."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
)

from . import benchmark
from .choices import OneOf
from .duration import Duration


@dataclass(frozen=True)
class Form:
    """What may be written, where the type alone does not say it: in errors and in the reference."""

    text: str

    def __str__(self) -> str:
        return self.text


LOSS_SCALES = (2.0**-14, 2.0**24)
"""The range in which a dynamic loss scale moves."""
_DURATION = Form('a duration with its unit, such as "36 epochs" or "540 steps"')
_LOSS_SCALE = Form(
    "a number from 1e-15 to 1e15, dynamic, or dynamic(FIRST), FIRST from {:g} to {:.0f}, "
    "such as dynamic(0.5)".format(*LOSS_SCALES)
)
MOST_PROFILED = 1000
_PROFILED = Form(f"a number of steps or FIRST-LAST, at most {MOST_PROFILED:,} steps")
NAME = Form("letters, digits, dots, dashes (the first a letter or digit)")
_PRINTABLE = Form("printable text on one line")
_WORD = Form("one word of letters, digits and _ . , : = + @ / -")
_WALLTIME = Form('HH:MM:SS, in quotes, such as "01:00:00"')
_SETTING = Form("NAME=VALUE, NAME of letters, digits and underscores")
_MOUNT = Form("/FOLDER or /FOLDER:/FOLDER-INSIDE or with :ro behind, without commas")


def _parse_duration(value: Any) -> Duration:
    if isinstance(value, Duration):
        return value
    if not isinstance(value, str):
        raise ValueError(_DURATION)
    return Duration.parse(value)


def _parse_loss_scale(value: Any) -> float | str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and SMALLEST <= value <= LARGEST:
        return float(value)
    start = dynamic_start(value, 1)
    if start is None or not LOSS_SCALES[0] <= start <= LOSS_SCALES[1]:
        raise ValueError(_LOSS_SCALE)
    return str(value)


def dynamic_start(loss_scale: object, batch: int) -> float | None:
    """Where a dynamic loss scale starts; None for a constant one. By default at a power of two up
    to 65536 / batch: 65536 is where MXNet's and NVIDIA's AMP start, for the mean of the losses, and
    here gradients are sums over the global batch."""
    match = re.fullmatch(r"dynamic(?:\((\d{1,9}(?:\.\d{1,9})?)\))?", str(loss_scale))
    if match is None:
        return None
    return float(match[1]) if match[1] else 2.0 ** math.floor(math.log2(65536 / batch))


def _parse_profiled(value: Any) -> str:
    try:
        steps = profiled_steps(str(value))
    except ValueError:
        steps = range(0)
    if isinstance(value, bool | float) or not 0 < len(steps) <= MOST_PROFILED:
        raise ValueError(_PROFILED)
    return str(value)


def profiled_steps(text: str | None) -> range:
    """The steps of `log.profile`; those of a mere number begin after the first ten, in which caches
    fill. Raises ValueError: it is neither a number nor two."""
    if text is None:
        return range(0)
    match = re.fullmatch(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?", text)
    if match is None:
        raise ValueError(text)
    if match[2] is None:
        return range(11, 11 + int(match[1]))
    return range(int(match[1]), int(match[2]) + 1)


def _check_printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError(_PRINTABLE)
    return value


def _check_range(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("lowest <= highest")
    return value


def _matches(pattern: str, form: Form) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(form)
        return value

    return AfterValidator(check)


MOST = 10**9
"""The largest count. ImageNet-21k has 1.4e7 images; products of two such counts are exact."""
MOST_DRAWN = 10_000_000
"""The most images of a set that is drawn: eight times ImageNet."""
MOST_EPOCHS = 10_000
"""Published runs take up to 90. Plans and predictions list the epochs that are evaluated."""
MOST_RANKS = 1_000_000
"""The most ranks of a run. The largest published one has 4,096; simulations have a row each."""
MOST_WORKERS = 4096
"""The most threads and cores of a rank, batches in memory: no node has more cores."""
MOST_S = 1e9
"""The longest time, 31 years: the kernel's waits end at 9.2e9 s."""
SMALLEST, LARGEST = 1e-15, 1e15
"""The range of what is measured: a femtosecond, a petabyte a second. Squares and quotients of two
such numbers are far from where doubles overflow, so no infinity or NaN comes of a config."""

Int = Annotated[int, Field(strict=True, ge=-(2**53), le=2**53)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Drawn = Annotated[int, Field(strict=True, ge=1, le=MOST_DRAWN)]
Natural = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Pixels = Annotated[int, Field(strict=True, ge=8, le=1024)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Epoch = Annotated[int, Field(strict=True, ge=1, le=MOST_EPOCHS)]
Ranks = Annotated[int, Field(strict=True, ge=1, le=MOST_RANKS)]
Workers = Annotated[int, Field(strict=True, ge=1, le=MOST_WORKERS)]
Float = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST)]
NonNegative = Annotated[float, Field(strict=True, ge=0, le=LARGEST)]
Positive = Annotated[float, Field(strict=True, ge=SMALLEST, le=LARGEST)]
Seconds = Annotated[float, Field(strict=True, ge=SMALLEST, le=MOST_S)]
BelowOne = Annotated[float, Field(strict=True, ge=0, lt=1)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
Factor = Annotated[float, Field(strict=True, ge=0.01, le=100)]
Exponent = Annotated[float, Field(strict=True, ge=SMALLEST, le=4)]
"""The power of the batch in a step's time: 1 where an image takes the same at any batch."""
Bool = Annotated[bool, Field(strict=True)]
Name = Annotated[
    str,
    StringConstraints(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100),
    NAME,
]
Text = Annotated[
    str,
    StringConstraints(strict=True, min_length=1, max_length=400),
    AfterValidator(_check_printable),
    _PRINTABLE,
]
Word = Annotated[
    str,
    StringConstraints(strict=True, max_length=200),
    _matches(r"[A-Za-z0-9_][A-Za-z0-9_.,:=+@/-]*", _WORD),
    _WORD,
]
"""A word of a scheduler's directive line, where no quoting is safe."""
Setting = Annotated[Text, _matches(r"(?s)[A-Za-z_][A-Za-z0-9_]*=.*", _SETTING), _SETTING]
Mount = Annotated[Text, _matches(r"/[^:,]*(:/[^:,]*(:(ro|rw))?)?", _MOUNT), _MOUNT]
Walltime = Annotated[
    str,
    StringConstraints(strict=True),
    _matches(r"[0-9]{2,3}:[0-5][0-9]:[0-5][0-9]", _WALLTIME),
    _WALLTIME,
]
Length = Annotated[Duration, BeforeValidator(_parse_duration), PlainSerializer(str), _DURATION]
Profiled = Annotated[str, BeforeValidator(_parse_profiled), _PROFILED]
LossScale = Annotated[float | str, BeforeValidator(_parse_loss_scale), _LOSS_SCALE]
Triple = tuple[Float, Float, Float]
_Number = TypeVar("_Number", bound=float)
Range = Annotated[tuple[_Number, _Number], AfterValidator(_check_range)]


Ruleset = Annotated[
    str,
    OneOf(benchmark.RULESETS),
    BeforeValidator(lambda written: benchmark.ruleset_name(written) or written),
]


def default(value: Any, meaning: str) -> Any:
    """A key that may be left out: its default, and its meaning for the reference."""
    return Field(default=value, description=meaning)


class Section(BaseModel):
    """Base of all sections: frozen, and a key that is not declared is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def section_of(annotation: Any) -> tuple[type[Section] | None, bool]:
    """(the section that a field holds, whether it holds a list of them)."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    for part in get_args(annotation):
        found, many = section_of(part)
        if found is not None:
            return found, many or get_origin(annotation) is tuple
    return None, False
