"""Command lines: predictions, numbers of options, hostfiles and machines; nothing is started."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from rn50.config.names import list_presets, list_systems
from tests.fuzz.case import Case, rng_of
from tests.fuzz.configs import keys
from tests.fuzz.values import NUMBERS, TEXTS, mutate, odd_json

_MORE = ("1e400", "1e-400", "-0", "0x10", "1_000", "²", "1.0", "+5", "5e8", "9" * 400, "nan", "inf")
_PRESETS = ("quick", "smoke", "abci_2048_open", "dgxa100_n128", "dgx1_8", "goyal_256", "sony_3456")


def case(seed: int, folder: Path) -> Case:
    """One or two command lines with numbers that nobody means."""
    rng = rng_of("options", seed)
    words = tuple(rng.choice(_MAKERS)(rng, folder) for _ in range(2))
    return Case(" | ".join(map(" ".join, words))[:400], words)


def number(rng: random.Random) -> str:
    """A number as somebody types it."""
    if rng.random() < 0.5:
        return rng.choice(("1", "2", "3", "8", "64", "1000", "100000", "0.5", "1.5", "40"))
    return rng.choice((*_MORE, *(str(value) for value in NUMBERS)))


def _steps(rng: random.Random) -> str:
    """Few steps or far too many: what lies between is long work that somebody asked for."""
    text = number(rng)
    return "40" if text.isdecimal() and 40 < int(text) < 10_000_000 else text


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\x00", "")


def _number_of_a_key(rng: random.Random, folder: Path) -> tuple[str, ...]:
    """A number for one key of a good config: the bounds of the schema, one by one."""
    word = f"{rng.choice(keys())}={rng.choice((number(rng), json.dumps(rng.choice(NUMBERS))))}"
    command = rng.choice((("predict",), ("config", "check"), ("config", "show")))
    return (*command, rng.choice(_PRESETS), word, *rng.choice(((), ("--json",))))


def _cadence(rng: random.Random, folder: Path) -> tuple[str, ...]:
    """What lists over epochs, steps and ranks are made of."""
    keys = (
        *("eval.period", "eval.offset", "batch.per_rank", "system.nodes", "system.ranks_per_node"),
        *("data.train_samples", "data.eval_samples", "data.classes", "eval.batch_per_rank"),
        *("limits.epochs", "checkpoint.keep", "data.prefetch", "data.decode_threads", "log.every"),
    )
    lengths = ("1 steps", "1 epochs", "10000 epochs", "999999999999 steps", "1e9 epochs", "50 %")
    words = [f"{rng.choice(keys)}={number(rng)}" for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        key = rng.choice(("length", "warmup", "decay"))
        words.append(f"schedule.{key}={rng.choice(lengths)}")
    command = rng.choice((("predict",), ("config", "check"), ("config", "show")))
    return (*command, rng.choice(_PRESETS), *words, *rng.choice(((), ("--json",))))


def _predict(rng: random.Random, folder: Path) -> tuple[str, ...]:
    options = {
        "--gpus": number,
        "--batch-per-gpu": number,
        "--epochs": number,
        "--algorithm": lambda rng: rng.choice(
            ("ring", "auto", "torus_2d", "torus_2d(8x8)", "x", "")
        ),
        "--groups": lambda rng: rng.choice(("single", "cubic(3)", "equal_count(9999)", "x", "[1]")),
        "--precision": lambda rng: rng.choice(("fp16", "fp32", "tf32", "fp8", "")),
        "--ruleset": lambda rng: rng.choice(("0.5.0", "0.7", "4.0.0", "nan", "9")),
        "--slow-node": number,
        "--slow-link": number,
        "--fail-step": number,
        "--steps": _steps,
        "--seed": number,
    }
    machine = rng.random() < 0.5
    simulated = rng.random() < 0.4
    words = ["predict", *(["simulate"] if simulated else [])]
    if machine:
        words += ["--system", rng.choice((*list_systems(), "machine.yaml"))]
        words += ["--gpus", rng.choice(("8", "64", number(rng)))]
        words += ["--batch-per-gpu", rng.choice(("32", number(rng)))]
        (folder / "machine.yaml").write_text(_machine(rng))
    else:
        words.append(rng.choice(_PRESETS))
    if simulated:
        words += ["--steps", rng.choice(("1", "3", _steps(rng)))]
    for name in rng.sample(sorted(options), rng.randint(0, 3)):
        words += [name, _plain(options[name](rng))]
    return (*words, *rng.choice(((), ("--json",))))


def _machine(rng: random.Random) -> str:
    """A machine's file with a few constants that are none."""
    if rng.random() < 0.1:
        return _plain(odd_json(rng))
    point = {"gpus": 8, "batch": 32, "step_s": 0.05, "source": "x"}
    point[rng.choice(("gpus", "batch", "step_s"))] = rng.choice(
        (1, 2, *NUMBERS[:20], 1e-300, 1e300)
    )
    names = [key for key in keys() if key.startswith("system.performance.") and "." in key]
    performance = {
        "fp16": {"points": [point], "fixed_s": rng.choice((0.0, 0.01, 1e-300, 1e300))},
    }
    for key in rng.sample(names, rng.randint(0, 3)):
        name = key.removeprefix("system.performance.")
        if "." not in name:
            performance[name] = rng.choice(NUMBERS)
    text = json.dumps({"nodes": 1, "ranks_per_node": 8, "performance": performance})
    return text.replace("NaN", ".nan").replace("Infinity", ".inf")


def _data(rng: random.Random, folder: Path) -> tuple[str, ...]:
    command = rng.choice(("verify", "stage", "pack"))
    if command == "verify":
        return ("data", "verify", "none", "--sample", number(rng), "--processes", "1")
    if command == "stage":
        return ("data", "stage", "quick", "--to", "none/x", "--remove", "--wait-s", number(rng))
    (folder / "images").mkdir(exist_ok=True)
    words = ("--hold-out", number(rng), "--skip-bad", number(rng), "--shuffle-seed", number(rng))
    return ("data", "pack", "images", "out", *words, "--processes", "1")


def _log(rng: random.Random, folder: Path) -> tuple[str, ...]:
    """Paths that are none, rulesets that are none."""
    place = _plain(rng.choice((*TEXTS, ".", "..", "own", "\udcff")))
    command = rng.choice((("check", "--no-official"), ("score",), ("show",), ("compare",)))
    ruleset = ("--ruleset", _plain(rng.choice(TEXTS))) if rng.random() < 0.3 else ()
    if command[0] in ("show", "compare"):
        ruleset = ()
    return ("log", *command, "--", place) if not ruleset else ("log", *command, *ruleset, place)


def _explain(rng: random.Random, folder: Path) -> tuple[str, ...]:
    (folder / "page.md").write_bytes(mutate(rng, b"<!-- keys: begin -->\n<!-- keys: end -->\n"))
    word = _plain(rng.choice((*TEXTS, "batch", "a.b.c", "x" * 9000)))
    return rng.choice(
        (("config", "explain", "--", word), ("config", "explain", "--write", "page.md"))
    )


_MAKERS: tuple[Callable[[random.Random, Path], tuple[str, ...]], ...] = (
    *(_number_of_a_key, _number_of_a_key, _cadence, _cadence, _predict, _predict, _predict),
    *(_data, _log, _explain),
)
assert set(_PRESETS) <= set(list_presets())
