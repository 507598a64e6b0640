"""What a generator makes, and values that a program trips over: scalars, trees."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Step = Sequence[str] | Callable[[], object]
"""The words after `rn50`, or a call that may raise UserError and nothing else."""


class Case(NamedTuple):
    """One case. `description` says what is wrong in it, `steps` are taken in turn."""

    description: str
    steps: tuple[Step, ...]


Generator = Callable[[int, Path], Case]
"""Pure: the seed alone decides what is written into the folder, which is the working folder."""


def rng_of(kind: str, seed: int) -> random.Random:
    """The random stream of a case."""
    return random.Random(f"{kind} {seed}")


NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    7,
    1000,
    10**6,
    10**9,
    10**12,
    2**31 - 1,
    2**31,
    2**53,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**30,
    10**400,
    500_000_000,
    0.0,
    -0.0,
    0.5,
    1e-9,
    1e-300,
    5e-324,
    1e300,
    0.1,
    float("nan"),
    float("inf"),
    -float("inf"),
    True,
    False,
)
TEXTS = (
    "",
    " ",
    "x",
    "0",
    "1",
    "nan",
    "inf",
    "null",
    "true",
    "1e999",
    "../../outside/secret.txt",
    "/etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "a\nb",
    "\x1b[2J\x1b]0;owned\x07",
    "\x00",
    "\x9b31m",
    "\u202e\u2028\ufeff",
    "é" * 300,
    "x" * 5000,
    "%s%n{0.__class__}",
    "$(touch owned)`id`",
    "!!python/object/apply:os.system [id]",
    "<script>alert(1)</script>",
    "\ud800",
    "--help",
    "-",
    "[red]x[/red]",
    "[/]",
    "\t",
    "\\x1b",
    "'\"",
    "~",
    "~root/x",
    "NaN",
    "=",
    "#",
)
KEYS = (
    "",
    "value",
    "key",
    "\x1b[2J",
    "a.b",
    "__class__",
    "x" * 300,
    "metadata",
    "0",
    "\ud800",
)


def scalar(rng: random.Random) -> Any:
    """A number, a text, a truth value or nothing."""
    return rng.choice(
        (rng.choice(NUMBERS), rng.choice(NUMBERS), rng.choice(TEXTS), None)
    )


def tree(rng: random.Random, depth: int = 3) -> Any:
    """A JSON value of any shape."""
    kind = rng.random()
    if depth and kind < 0.12:
        return [tree(rng, depth - 1) for _ in range(rng.randrange(4))]
    if depth and kind < 0.24:
        return {rng.choice(KEYS): tree(rng, depth - 1) for _ in range(rng.randrange(4))}
    return scalar(rng)


def odd_json(rng: random.Random) -> str:
    """Text where JSON is expected, mostly JSON that a simple reader trips over."""
    deep = rng.choice((50, 900, 5000, 100_000))
    return rng.choice(
        (
            "",
            "{",
            "[" * deep + "]" * deep,
            '{"a":' * deep + "1" + "}" * deep,
            "9" * rng.choice((20, 400, 4400, 100_000)),
            '"\\ud800"',
            "\x00" * 40,
            json.dumps(tree(rng)),
            '{"a": 1, "a": 2, "status": "success", "status": NaN}',
            "\ufeff{}",
            "null",
        )
    )


def mutate(rng: random.Random, content: bytes, most: int = 4) -> bytes:
    """Bytes with a few places changed, taken out, put in, doubled or cut."""
    data = bytearray(content)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(data) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 40, 400))
        what = rng.randrange(6)
        if what == 0:
            data[at : at + 1] = rng.choice(
                (b"\xff", b"\x00", b"-", b"9", b"{", b'"', b"\n")
            )
        elif what == 1:
            del data[at : at + length]
        elif what == 2:
            data[at:at] = rng.randbytes(length)
        elif what == 3:
            data[at:at] = data[at : at + length]
        elif what == 4:
            del data[at:]
        else:
            data[at : at + length] = bytes(length)
    return bytes(data)
