"""Configs: YAML files and overrides of every kind of wrongness, for every key of the schema."""

from __future__ import annotations

import json
import random
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from rn50.config.load import load
from rn50.config.names import list_presets, list_systems
from rn50.config.reference import all_keys
from tests.fuzz.values import NUMBERS, TEXTS, Case, mutate, odd_json, rng_of, tree

_WORDS = (
    "1 epochs",
    "999999999999 steps",
    "1e5 epochs",
    "-1 epochs",
    "0 steps",
    "500 %",
    "single",
    "9999 epochs",
    "cubic(9999)",
    "equal_count(9999)",
    "explicit(1)",
    "torus_2d(9999x9999)",
    "dynamic(0.5)",
    "closed",
    "open",
    "gpu",
    "cpu",
    "0.6.0",
    "4.0",
    "step",
    "sony_b",
    "poly",
    "akiba",
    "float16",
    "bfloat16",
    "alexnet",
    "tiny",
    "NHWC",
    "broadcast",
    "lr",
    "momentum",
)
_HOSTILE = (
    "base: loop.yaml",
    "base: ../../outside/secret.txt",
    "base: /dev/zero",
    "base: " + "a/" * 3000,
    "<<: *x",
    "a0: &a0 [x, x]\n"
    + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 10)),
    "? [a, b]\n: c",
    "- a\n- b",
    "--- \n...\n---\nbatch: {}",
    "batch.per_rank: 3\nbatch:\n  per_rank: 4",
    "".join(f"{' ' * n}a:\n" for n in range(400)),
    "\t\tbatch: 1",
    "%YAML 9.9\n---\nbatch: {}",
    "seed: 0x" + "f" * 400,
    "seed: " + "9" * 5000,
    "name: \x1b[2J",
    'name: "\\x1b[2J\\uD800"',
    "comm: {groups: [" + "1, " * 1500 + "1]}",
    "schedule: {shape: step, milestones: [{after_epoch: 1, factor: .inf}]}",
    "system: ../../outside/secret.txt",
    "data: {path: /dev/zero/x}",
    "data: {synthetic: {train_samples: 9223372036854775807}}",
)


@lru_cache(maxsize=1)
def keys() -> tuple[str, ...]:
    """Every key that holds a value."""
    return tuple(key.path for key in all_keys() if key.values)


def case(seed: int, folder: Path) -> Case:
    """A YAML with up to five wrong keys, or a hostile one; and two commands that read it."""
    rng = rng_of("configs", seed)
    (folder / "loop.yaml").write_text("base: own.yaml\n")
    content, description = _content(rng)
    path = folder / "own.yaml"
    path.write_bytes(content)
    words = [
        f"{rng.choice(keys())}={_written(rng)}"
        for _ in range(rng.choice((0, 0, 1, 2, 3)))
    ]
    config = rng.choice((str(path), str(path), rng.choice(list_presets()), "own.yaml"))
    commands = tuple(_command(rng, config, words) for _ in range(2))
    return Case(f"{description} {words}", commands)


def _command(rng: random.Random, config: str, words: list[str]) -> tuple[str, ...]:
    """A command that reads a config and starts nothing."""
    as_json = rng.choice(((), ("--json",)))
    return rng.choice(
        (
            ("config", "check", config, *words, *as_json),
            ("config", "show", config, *words, *as_json),
            (
                "predict",
                config,
                *words,
                *as_json,
                "--system",
                rng.choice(list_systems()),
            ),
            ("submit", config, *words, "--dry-run", "--scheduler", "slurm"),
        )
    )


def _written(rng: random.Random) -> str:
    """A value as a user types it."""
    text = rng.choice((json.dumps(_value(rng)), str(_value(rng)), rng.choice(_WORDS)))
    return text.replace("\x00", "")


def _value(rng: random.Random) -> Any:
    what = rng.random()
    if what < 0.5:
        return rng.choice(NUMBERS)
    if what < 0.65:
        return rng.choice(TEXTS).encode("utf-8", "replace").decode()
    return rng.choice(_WORDS) if what < 0.85 else tree(rng, 2)


def _content(rng: random.Random) -> tuple[bytes, str]:
    what = rng.random()
    if what < 0.15:
        text = rng.choice(_HOSTILE)
        return text.encode("utf-8", "replace"), f"hostile {text[:60]!r}"
    if what < 0.2:
        return odd_json(rng).encode("utf-8", "surrogatepass"), "odd JSON"
    preset = rng.choice(list_presets())
    if what < 0.3:
        return mutate(rng, _resolved(preset).encode()), f"a mutant of {preset}"
    flat = {rng.choice(keys()): _value(rng) for _ in range(rng.choice((1, 1, 2, 3, 5)))}
    text = json.dumps({"base": preset, **flat}, ensure_ascii=rng.random() < 0.5)
    text = text.replace("Infinity", ".inf").replace("NaN", ".nan")
    return text.encode("utf-8", "surrogatepass"), f"{preset} {text[:300]}"


@cache
def _resolved(preset: str) -> str:
    return load(preset).to_yaml()
