"""Logs, configs and run folders that are wrong in some way, and commands that read them.

What lies in the place of a file, and records that are not whole: tests/compliance.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from rn50.config import benchmark
from rn50.config.load import load
from rn50.config.names import list_presets, list_systems
from rn50.config.reference import all_keys
from tests.compliance.log_text import good_run

T = TypeVar("T")
Commands: TypeAlias = Sequence[tuple[str, ...]]
"""Words after `rn50`, of commands that start nothing."""
VALUES: tuple[Any, ...] = (
    0,
    -1,
    7,
    2**53,
    2**63,
    10**400,
    0.5,
    5e-324,
    1e300,
    float("nan"),
    -float("inf"),
    True,
    None,
    "",
    "nan",
    "1e999",
    "a\nb",
    "\x1b[2J\x1b]0;owned\x07",
    "\x00",
    "\x9b31m",
    "\u202e\u2028\ufeff",
    "\ud800",
    "x" * 5000,
    "../../../../outside/secret.txt",
    "/dev/zero",
    "<script>alert(1)</script>",
    1,
    16,
    0.1,
    1000.0,
    "10 steps",
    "$(touch owned)`id`",
    "[red]x[/red][/]",
    "~root/x",
    "999999999999 steps",
    "-1 epochs",
    "500 %",
    "torus_2d(9999x9999)",
    "explicit(1)",
    "float16",
    "sony_b",
    "gpu",
    [],
    {},
    [[{"a.b": None}]],
    {"__class__": {"": 1}},
)
"""Values that a program trips over, of any type and meaning."""
CONTENTS = (
    "",
    "{",
    "[" * 100_000,
    '{"a":' * 900 + "1" + "}" * 900,
    "9" * 5000,
    '"\\ud800"',
    "\x00" * 40,
    '{"a": 1, "a": 2, "status": "success", "status": NaN}',
    "\ufeff{}",
    "null",
    "base: own.yaml",
    "base: /dev/zero",
    "base: ../../../../outside/secret.txt",
    "<<: *x",
    "a: &a [x]\nb: [*a, *a]",
    "? [a, b]\n: c",
    "--- \n...\n---\nbatch: {}",
    "batch.per_rank: 3\nbatch: {per_rank: 4}",
    "\t\tbatch: 1",
    "%YAML 9.9\n---\nbatch: {}",
    'name: "\\x1b[2J\\uD800"',
    "schedule: {shape: step, milestones: [{after_epoch: 1, factor: .inf}]}",
    "data: {synthetic: {train_samples: 9223372036854775807}}",
)
"""Texts for a file that should hold a JSON object or a YAML mapping."""
_OF_A_RUN = (
    "config.yaml",
    "environment.json",
    "result.json",
    "metrics.jsonl",
    "timeline.json",
    "origins.json",
    "failure_0.json",
    "stderr.log",
    "result_0.txt",
    "exit_code",
    ".lock",
)


def log_case(rng: random.Random, folder: Path) -> Commands:
    """A log of any round with one wrong value, and edits of its records and of its bytes."""
    ruleset = rng.choice(benchmark.RULESETS)
    run = good_run(ruleset, rng.choice(benchmark.DIVISIONS))
    setattr(rng.choice(run), rng.choice(("value", "metadata")), rng.choice(VALUES))
    lines = [record.text(ruleset) for record in _edited(rng, run)]
    content = _edited(rng, list("\n".join(lines).encode()))
    place = rng.randrange(len(content))
    content[place : place + 4] = rng.randbytes(rng.choice((0, 4, 40)))
    path = folder / "result_0.txt"
    path.write_bytes(bytes(content))
    check = ("log", "check", "--no-official")
    commands = (
        (*check, path.name, "--ruleset", rng.choice(benchmark.RULESETS)),
        (*check, "--json", "."),
        ("log", "show", "--json", path.name),
        ("log", "score", "."),
        ("log", "compare", path.name, path.name),
        ("log", "report", path.name, "--out", "report.html"),
    )
    return rng.sample(commands, 2)


def _edited(rng: random.Random, parts: list[T]) -> list[T]:
    """The parts, of which a few neighbours are left out, repeated or moved, or none."""
    first = rng.randrange(len(parts))
    last = first + rng.choice((1, 10, 100))
    piece = parts[first:last]
    rest = parts[:first] + parts[last:]
    place = rng.choice((0, first, len(rest)))
    copies = piece * rng.choice((0, 1, 1, 50))
    return rest[:place] + copies + rest[place:]


def config_case(rng: random.Random, folder: Path) -> Commands:
    """A YAML file with wrong values, or a wrong file, and overrides."""
    preset = rng.choice(list_presets())
    content = {"base": preset, _key(rng): rng.choice(VALUES)}
    text = json.dumps(content).replace("NaN", ".nan").replace("Infinity", ".inf")
    if rng.random() < 0.3:
        text = rng.choice(CONTENTS)
    elif rng.random() < 0.2:
        text = "".join(_edited(rng, list(load(preset).to_yaml())))
    (folder / "own.yaml").write_text(text, "utf-8")
    override = f"{_key(rng)}={rng.choice(VALUES)}".replace("\x00", "")
    config = rng.choice((("own.yaml",), ("quick", override)))
    system = rng.choice(list_systems())
    commands = (
        ("config", "check", "--json", *config),
        ("config", "show", *config),
        ("predict", "--json", *config, "--system", system),
        ("submit", *config, "--dry-run", "--scheduler", "slurm"),
    )
    return rng.sample(commands, 2)


def _key(rng: random.Random) -> str:
    paths = [key.path for key in all_keys() if key.values]
    return rng.choice(paths)


def run_case(rng: random.Random, folder: Path) -> Commands:
    """A run's folder as `rn50 launch` leaves it, one file of it odd."""
    name = "results/quick/20261122T100000Z"
    run = folder / name
    run.mkdir(parents=True)
    records = [record.text("4.0.0") for record in good_run()]
    step = json.dumps({"kind": "train", "step": 1, "loss": 1.0})
    files = {
        "config.yaml": load("quick", ["seed=1"]).to_yaml(),
        "result_0.txt": "\n".join(records),
        "result.json": json.dumps({"status": "failed", "seed": 1}),
        "metrics.jsonl": f"{step}\n" * 9,
    }
    odd = rng.choice(_OF_A_RUN)
    wrong = dict.fromkeys(("status", "seed", "kind"), rng.choice(VALUES))
    files[odd] = rng.choice((*CONTENTS, json.dumps(wrong)))
    for file, content in files.items():
        (run / file).write_text(content, "utf-8")
    commands = (
        ("launch", "--resume", name, "--dry-run"),
        ("log", "check", "--no-official", name),
        ("log", "score", name, "--json"),
        ("log", "compare", name, name),
        ("log", "report", "results/quick"),
        ("runs", "results"),
        ("runs", "--json", name),
    )
    return rng.sample(commands, 3)


CASES: dict[str, Callable[[random.Random, Path], Commands]] = {
    "logs": log_case,
    "configs": config_case,
    "runs": run_case,
}
