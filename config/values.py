"""Types of a config's values: what may be written, as a check and in words for people."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictFloat,
    StrictInt,
)

from ..host.finding import number
from . import benchmark
from .choices import Form

# Far above what there is, and so small that products of two are exact and memory and waits end.
MOST = 10**9
MOST_EPOCHS = 10_000
MOST_RANKS = 1_000_000
MOST_WORKERS = 4096  # threads and cores of a rank, batches in memory
MOST_S = 1e9
SMALLEST = 1e-15
LARGEST = 1e15
"""The range of what is measured. Squares and quotients of two such numbers do not overflow."""
LOSS_SCALES = (2.0**-14, 2.0**24)
"""The range in which a dynamic loss scale moves."""
MOST_PROFILED = 1000
NORMS = "norms"
"""The `log.profile` that looks at tensors, not at operations."""
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:(epoch|step)s?|%)\s*")


@dataclass(frozen=True)
class Duration:
    """A length of training: a value and its unit (epochs, steps, or % of the whole run)."""

    value: float
    unit: str

    @classmethod
    def parse(cls, duration: str) -> Duration | None:
        """Read "36 epochs", "540 steps" (whole ones) or "2 %"; None: it is none of these."""
        match = _DURATION.fullmatch(duration.lower())
        if match is None:
            return None
        value = float(match[1])
        unit = f"{match[2]}s" if match[2] else "%"
        if value >= 10**12 or (unit == "steps" and not value.is_integer()):
            return None
        return cls(value, unit)

    def __str__(self) -> str:
        # Every digit and no exponent: the text is saved with a run, hashed, and read again.
        return f"{Decimal(repr(self.value)).normalize():f} {self.unit}"


def _read_duration(value: Any) -> Duration | None:
    if isinstance(value, Duration):
        return value
    return Duration.parse(str(value))


def _read_loss_scale(value: Any) -> float | str | None:
    factor = number(value)
    if factor is not None and SMALLEST <= factor <= LARGEST:
        return factor
    start = dynamic_start(value, 1)
    lowest, highest = LOSS_SCALES
    if start is not None and lowest <= start <= highest:
        return value
    return None


def dynamic_start(loss_scale: object, batch: int) -> float | None:
    """The first value of a dynamic loss scale; None for a constant one. By default a power of two
    up to 65536 / batch: 65536 is where MXNet's and NVIDIA's AMP start, for the mean of the losses,
    and here gradients are sums over the global batch."""
    match = re.fullmatch(r"dynamic(?:\((\d{1,9}(?:\.\d{1,9})?)\))?", str(loss_scale))
    if match is None:
        return None
    if match[1]:
        return float(match[1])
    return 2.0 ** math.floor(math.log2(65536 / batch))


def _read_profiled(value: Any) -> str | None:
    steps = str(value)
    # YAML reads `20` as a number and `101-120` as a text; `true` is neither
    is_text = type(value) in (int, str)
    if is_text and 0 < len(profiled_steps(steps)) <= MOST_PROFILED:
        return steps
    return NORMS if steps == NORMS else None


def profiled_steps(steps: str | None) -> range:
    """The steps of `log.profile`; those of a mere number begin after the first ten, in which caches
    fill. Empty where it names none."""
    match = re.fullmatch(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?", steps or "")
    if match is None:
        return range(0)
    first = int(match[1])
    if match[2] is None:
        return range(11, 11 + first)
    return range(first, int(match[2]) + 1)


def _check_range(value: tuple[float, float]) -> tuple[float, float]:
    lowest, highest = value
    if lowest > highest:
        raise ValueError("lowest <= highest")
    return value


def _text(form: str, pattern: str, most_characters: int = 400) -> Form:
    def read(value: Any) -> str | None:
        """The value, where it is a text of this form."""
        if not isinstance(value, str) or len(value) > most_characters:
            return None
        # ASCII: else \w and \d are letters and digits of every alphabet
        if value.isprintable() and re.fullmatch(pattern, value, re.ASCII):
            return value
        return None

    return Form(form, read)


class Measure(Form):
    """A number in its plain unit, within what machines have: far from `usual`, the middle of those
    described. A value in another of `units`, name to factor, is refused with what to write."""

    def __init__(
        self,
        unit: str,
        low: float,
        high: float,
        usual: float,
        units: Mapping[str, float],
    ) -> None:
        super().__init__(f"a number from {low:g} to {high:g} {unit}", number)
        self.low = low
        self.high = high
        self.usual = usual
        self.units = units

    def check(self, value: Any) -> float:
        """The number. Raises ValueError, with what to write: no machine has such a one."""
        measured = float(super().check(value))
        if self.low <= measured <= self.high:
            return measured
        raise ValueError(self.description + self._cure(measured))

    def _cure(self, measured: float) -> str:
        fitting = {}
        for name, factor in self.units.items():
            if self.low < measured * factor <= self.high:
                # the nearest by ratio, not by difference
                off = abs(math.log(measured * factor / self.usual))
                fitting[off] = (
                    f" ({measured:g} looks like {name}: write {measured * factor:.6g})"
                )
        return fitting[min(fitting)] if fitting else ""


Count = Annotated[StrictInt, Field(ge=1, le=MOST)]
Natural = Annotated[StrictInt, Field(ge=0, le=MOST)]
Pixels = Annotated[StrictInt, Field(ge=8, le=1024)]
Seed = Annotated[StrictInt, Field(ge=0, lt=2**63)]
Epoch = Annotated[StrictInt, Field(ge=1, le=MOST_EPOCHS)]
Ranks = Annotated[StrictInt, Field(ge=1, le=MOST_RANKS)]
Workers = Annotated[StrictInt, Field(ge=1, le=MOST_WORKERS)]
Float = Annotated[StrictFloat, Field(ge=-LARGEST, le=LARGEST)]
NonNegative = Annotated[StrictFloat, Field(ge=0, le=LARGEST)]
Positive = Annotated[StrictFloat, Field(ge=SMALLEST, le=LARGEST)]
Seconds = Annotated[StrictFloat, Field(ge=SMALLEST, le=MOST_S)]
BelowOne = Annotated[StrictFloat, Field(ge=0, lt=1)]
Fraction = Annotated[StrictFloat, Field(ge=0, le=1)]
Share = Annotated[StrictFloat, Field(gt=0, le=1)]
Factor = Annotated[StrictFloat, Field(ge=0.01, le=100)]
Bool = StrictBool
Name = Annotated[
    str, _text("letters, digits, dots, dashes", "[A-Za-z0-9][A-Za-z0-9._-]*", 100)
]
Text = Annotated[str, _text("printable text on one line", ".+")]
Place = Annotated[
    str, _text("a printable path, all of whose $VARIABLES are set", r"(?!.*\$[{\w]).+")
]
Word = Annotated[
    str, _text("a word of letters, digits, _.,:=+@/-", r"\w[\w.,:=+@/-]*", 200)
]
"""A word of a scheduler's directive line, where no quoting is safe."""
Setting = Annotated[str, _text("NAME=VALUE", r"[A-Za-z_]\w*=.*")]
Mount = Annotated[
    str, _text("/FOLDER or /FOLDER:/INSIDE[:ro]", "/[^:,]*(:/[^:,]*(:(ro|rw))?)?")
]
Walltime = Annotated[
    str, _text('HH:MM:SS, in quotes, as "01:00:00"', r"\d{2,3}:[0-5]\d:[0-5]\d")
]
_LENGTH = Form(
    'a duration of 0 or more with its unit, such as "36 epochs" or "540 steps"',
    _read_duration,
)
Length = Annotated[Duration, _LENGTH, PlainSerializer(str)]
_STEPS = f"a number of steps or FIRST-LAST, at most {MOST_PROFILED:,} steps, or {NORMS}"
Profiled = Annotated[str, Form(_STEPS, _read_profiled)]
_SCALE = (
    "a number from 1e-15 to 1e15, dynamic, or dynamic(FIRST), FIRST from {:g} to {:.0f}"
)
_LOSS_SCALE = Form(_SCALE.format(*LOSS_SCALES), _read_loss_scale)
LossScale = Annotated[float | str, _LOSS_SCALE]
_Number = TypeVar("_Number", bound=float)
Range = Annotated[tuple[_Number, _Number], AfterValidator(_check_range)]
_RULESET = Form(", ".join(benchmark.RULESETS), benchmark.ruleset_name)
Ruleset = Annotated[str, _RULESET]


class Section(BaseModel):
    """Base of all sections: frozen, and a key that is not declared is an error. What the docstring
    below a field says is the key's meaning."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True
    )


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a field holds: one, or a list of them, or one for each name."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    # such as `tuple[Milestone, ...]`, `Synthetic | None`, `Annotated[dict[str, Reference], ...]`
    sections = map(section_of, get_args(annotation))
    return next(filter(None, sections), None)
