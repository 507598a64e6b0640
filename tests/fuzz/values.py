"""Values that somebody writes who wants a program to fail: scalars, trees, names, numbers."""

from __future__ import annotations

import json
import random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 100, 1000, 10**6, 10**9, 10**12, 2**31 - 1, 2**31, 2**32, 2**53, 2**62),
    *(2**63 - 1, 2**63, 2**64, -(2**63), 10**18, 10**30, 10**400, 500_000_000, 4611686018427387904),
    *(0.0, -0.0, 0.5, 1.5, 1e-9, 1e-300, 5e-324, 1e300, 1.7976931348623157e308, 0.1, 0.9999999999),
    *(float("nan"), float("inf"), -float("inf"), True, False),
)
TEXTS = (
    *("", " ", "x", "0", "1", "nan", "inf", "null", "true", "1e999", "../../outside/secret.txt"),
    *(
        "/etc/passwd",
        "/dev/zero",
        "/dev/stdin",
        "a\nb",
        "\x1b[2J\x1b]0;owned\x07",
        "\x00",
        "\x9b31m",
    ),
    *("\u202e\u2028\ufeff", "é" * 300, "x" * 5000, "%s%n{0.__class__}", "$(touch owned)`id`"),
    *("!!python/object/apply:os.system [id]", "<script>alert(1)</script>", "\ud800", "--help", "-"),
    *(
        "[red]x[/red]",
        "[/]",
        "[link=file:///]",
        "\t",
        "\\x1b",
        "'\"",
        "~",
        "~root/x",
        "NaN",
        "=",
        "#",
    ),
)
KEYS = ("", "value", "key", "\x1b[2J", "a.b", "__class__", "x" * 300, "metadata", "0", "\ud800")


def scalar(rng: random.Random) -> Any:
    """A number, a text, a truth value or nothing."""
    return rng.choice((rng.choice(NUMBERS), rng.choice(NUMBERS), rng.choice(TEXTS), None))


def tree(rng: random.Random, depth: int = 3) -> Any:
    """A JSON value of any shape."""
    kind = rng.random()
    if depth and kind < 0.12:
        return [tree(rng, depth - 1) for _ in range(rng.randrange(4))]
    if depth and kind < 0.24:
        return {rng.choice(KEYS): tree(rng, depth - 1) for _ in range(rng.randrange(4))}
    return scalar(rng)


def json_text(value: Any) -> str:
    """JSON as Python writes it: with NaN, infinities and lone surrogates as escapes."""
    return json.dumps(value)


def odd_json(rng: random.Random) -> str:
    """Text where JSON is expected, mostly JSON that a simple reader trips over."""
    deep = rng.choice((50, 900, 5000, 100_000))
    return rng.choice(
        (
            "",
            "{",
            "[" * deep + "]" * deep,
            '{"a":' * deep + "1" + "}" * deep,
            "[" * deep,
            "9" * rng.choice((20, 400, 4400, 100_000)),
            "-1e999",
            '"\\ud800"',
            "\x00" * 40,
            json_text(tree(rng)),
            json_text([tree(rng)] * 3),
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
        what = rng.randrange(7)
        if what == 0 and data:
            data[at % len(data)] = rng.randrange(256)
        elif what == 1:
            del data[at : at + length]
        elif what == 2:
            data[at:at] = rng.randbytes(length)
        elif what == 3:
            data[at:at] = data[at : at + length]
        elif what == 4:
            del data[at:]
        elif what == 5:
            data[at : at + length] = bytes(length)
        else:
            data[at : at + 1] = rng.choice(
                (b"\xff", b"\x00", b"-", b"9", b"{", b'"', b"\n", b"\x1b")
            )
    return bytes(data)
