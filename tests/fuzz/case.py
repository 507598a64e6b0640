"""What a generator makes: files in a folder, and what is done with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

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
