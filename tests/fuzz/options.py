"""Command lines with numbers and paths that are none; nothing is started."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from rn50.config.names import list_systems
from tests.fuzz.case import Case, rng_of
from tests.fuzz.configs import keys
from tests.fuzz.values import NUMBERS, TEXTS

_PRESETS = ("quick", "smoke", "abci_2048_open", "dgxa100_n128", "dgx1_8", "goyal_256", "sony_3456")
_USUAL = ("1", "2", "8", "64", "1000", "100000", "0.5", "40")
_ODD = ("1e400", "1e-400", "-0", "0x10", "1_000", "²", "1.0", "+5", "9" * 400)
_CADENCES = (
    *("eval.period", "eval.offset", "batch.per_rank", "system.nodes", "system.ranks_per_node"),
    *("data.train_samples", "data.eval_samples", "data.classes", "eval.batch_per_rank"),
    *("limits.epochs", "checkpoint.keep", "data.prefetch", "data.decode_threads", "log.every"),
)
"""Keys from which lists over epochs, steps and ranks are made."""


def case(seed: int, folder: Path) -> Case:
    """Two command lines with odd numbers or paths."""
    rng = rng_of("options", seed)
    words = tuple(rng.choice(_MAKERS)(rng) for _ in range(2))
    return Case(" | ".join(map(" ".join, words))[:400], words)


def number(rng: random.Random) -> str:
    """A number as a user types it."""
    return rng.choice((rng.choice(_USUAL), rng.choice(_ODD), str(rng.choice(NUMBERS))))


def _numbers_of_keys(rng: random.Random) -> tuple[str, ...]:
    """Numbers for keys of a good config: the bounds of the schema."""
    chosen = [rng.choice(keys()), rng.choice(_CADENCES), rng.choice(_CADENCES)]
    values = [rng.choice((number(rng), json.dumps(rng.choice(NUMBERS)))) for _ in chosen]
    words = [f"{key}={value}" for key, value in zip(chosen, values, strict=True)]
    command = rng.choice((("predict",), ("config", "check"), ("config", "show")))
    return (*command, rng.choice(_PRESETS), *words[: rng.randint(1, 3)], "--json")


def _prediction(rng: random.Random) -> tuple[str, ...]:
    words = ["predict", rng.choice(_PRESETS)]
    if rng.random() < 0.5:
        words[1:] = ["--system", rng.choice(list_systems())]
        words += ["--gpus", rng.choice(("8", number(rng))), "--batch-per-gpu", number(rng)]
    options = {
        "--epochs": number(rng),
        "--algorithm": rng.choice(("ring", "auto", "torus_2d(8x8)", "x", "")),
        "--groups": rng.choice(("single", "cubic(3)", "equal_count(9999)", "x", "[1]")),
        "--precision": rng.choice(("fp16", "tf32", "fp8", "")),
        "--ruleset": rng.choice(("0.5.0", "4.0.0", "nan", "9")),
    }
    for name in rng.sample(sorted(options), rng.randint(0, 3)):
        words += [name, options[name]]
    return (*words, "--json")


def _path(rng: random.Random) -> tuple[str, ...]:
    """A command that reads, given a path or a key that is none."""
    place = rng.choice((*TEXTS, ".", "..")).encode("utf-8", "replace").decode().replace("\x00", "")
    commands = (
        ("log", "check", "--no-official"),
        ("log", "score"),
        ("log", "show"),
        ("data", "verify", "--sample", number(rng), "--processes", "1"),
        ("config", "explain"),
        ("runs",),
    )
    return (*rng.choice(commands), "--", place)


_MAKERS: tuple[Callable[[random.Random], tuple[str, ...]], ...] = (
    *(_numbers_of_keys, _numbers_of_keys, _prediction, _path),
)
