"""Types of a config's values: what may be written, as a check and in words for people."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from . import benchmark
from .choices import Form
from .duration import Duration

MOST = 10**9
"""The largest count. ImageNet-21k has 1.4e7 images; products of two such counts are exact."""
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
LOSS_SCALES = (2.0**-14, 2.0**24)
"""The range in which a dynamic loss scale moves."""
MOST_PROFILED = 1000


def _read_duration(value: Any) -> Duration | None:
    if isinstance(value, Duration):
        return value
    return Duration.parse(value) if isinstance(value, str) else None


def _read_loss_scale(value: Any) -> float | str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and SMALLEST <= value <= LARGEST:
        return float(value)
    start = dynamic_start(value, 1)
    return value if start is not None and LOSS_SCALES[0] <= start <= LOSS_SCALES[1] else None


def dynamic_start(loss_scale: object, batch: int) -> float | None:
    """Where a dynamic loss scale starts; None for a constant one. By default at a power of two up
    to 65536 / batch: 65536 is where MXNet's and NVIDIA's AMP start, for the mean of the losses, and
    here gradients are sums over the global batch."""
    match = re.fullmatch(r"dynamic(?:\((\d{1,9}(?:\.\d{1,9})?)\))?", str(loss_scale))
    if match is None:
        return None
    return float(match[1]) if match[1] else 2.0 ** math.floor(math.log2(65536 / batch))


def _read_profiled(value: Any) -> str | None:
    text = str(value) if type(value) in (int, str) else ""
    return text if 0 < len(profiled_steps(text)) <= MOST_PROFILED else None


def profiled_steps(text: str | None) -> range:
    """The steps of `log.profile`; those of a mere number begin after the first ten, in which caches
    fill. None: neither a number nor two."""
    match = re.fullmatch(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?", text or "")
    if match is None:
        return range(0)
    if match[2] is None:
        return range(11, 11 + int(match[1]))
    return range(int(match[1]), int(match[2]) + 1)


def _check_range(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("lowest <= highest")
    return value


def _text(form: str, pattern: str, most: int = 400) -> Form:
    def read(value: Any) -> str | None:
        fits = isinstance(value, str) and len(value) <= most and value.isprintable()
        return value if fits and re.fullmatch(pattern, value, re.ASCII) else None

    return Form(form, read)


Int = Annotated[int, Field(strict=True, ge=-(2**53), le=2**53)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
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
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Factor = Annotated[float, Field(strict=True, ge=0.01, le=100)]
Exponent = Annotated[float, Field(strict=True, ge=SMALLEST, le=4)]
"""The power of the batch in a step's time: 1 where an image takes the same at any batch."""
Bool = Annotated[bool, Field(strict=True)]
Name = Annotated[str, _text("letters, digits, dots, dashes", "[A-Za-z0-9][A-Za-z0-9._-]*", 100)]
Text = Annotated[str, _text("printable text on one line", ".+")]
Word = Annotated[str, _text("a word of letters, digits, _.,:=+@/-", r"\w[\w.,:=+@/-]*", 200)]
"""A word of a scheduler's directive line, where no quoting is safe."""
Setting = Annotated[str, _text("NAME=VALUE", r"[A-Za-z_]\w*=.*")]
Mount = Annotated[str, _text("/FOLDER or /FOLDER:/INSIDE[:ro]", "/[^:,]*(:/[^:,]*(:(ro|rw))?)?")]
Walltime = Annotated[str, _text('HH:MM:SS, in quotes, as "01:00:00"', r"\d{2,3}:[0-5]\d:[0-5]\d")]
_DURATION = Form('a duration with its unit, such as "36 epochs" or "540 steps"', _read_duration)
Length = Annotated[Duration, _DURATION, PlainSerializer(str)]
_STEPS = f"a number of steps or FIRST-LAST, at most {MOST_PROFILED:,} steps"
Profiled = Annotated[str, Form(_STEPS, _read_profiled)]
_SCALE = "a number from 1e-15 to 1e15, dynamic, or dynamic(FIRST), FIRST from {:g} to {:.0f}"
LossScale = Annotated[float | str, Form(_SCALE.format(*LOSS_SCALES), _read_loss_scale)]
_Number = TypeVar("_Number", bound=float)
Range = Annotated[tuple[_Number, _Number], AfterValidator(_check_range)]
Ruleset = Annotated[str, Form(", ".join(benchmark.RULESETS), benchmark.ruleset_name)]


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
