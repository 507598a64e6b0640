"""Run folders with hostile content in the files beside the log. Links, FIFOs and holes in their
place: tests/compliance/test_hostile_folder.py."""

from __future__ import annotations

import json
import random
from pathlib import Path

from rn50.config.load import load
from tests.compliance.log_text import good_run, write
from tests.fuzz.values import Case, Step, mutate, odd_json, rng_of, tree

_FILES = (
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


def run_case(seed: int, folder: Path) -> Case:
    """A run's folder as `rn50 launch` leaves it, some of it odd; read, reported. A
    checkpoint's: tests/train/test_checkpoint.py."""
    rng = rng_of("runs", seed)
    name = "results/quick/20261122T100000Z"
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(load("quick", ["seed=1"]).to_yaml())
    write(run / "result_0.txt", good_run("4.0.0"))
    (run / "result.json").write_text(json.dumps({"status": "failed", "seed": 1}))
    records = [
        {"kind": "train", "step": n, "epoch": n / 10, "loss": 1.0} for n in range(30)
    ]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records)
    )
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = run / rng.choice(_FILES)
        done.append(f"{path.name}: {_hostile(rng, path)}")
    commands: tuple[Step, ...] = (
        ("launch", "--resume", name, "--dry-run"),
        ("log", "check", "--no-official", name),
        ("log", "score", name, "--json"),
        ("log", "show", name, "--json"),
        ("log", "compare", name, name),
        ("log", "report", "results/quick"),
        ("runs", "results"),
        ("runs", "--json", name),
    )
    return Case(f"{done}", tuple(rng.sample(commands, 3)))


def _hostile(rng: random.Random, path: Path) -> str:
    """Put something there; returns what."""
    what = rng.choice(("odd JSON", "mutant", "tree"))
    if what == "mutant":
        path.write_bytes(mutate(rng, path.read_bytes() if path.is_file() else b"{}"))
    else:
        text = odd_json(rng) if what == "odd JSON" else json.dumps(tree(rng, 5))
        path.write_text(text, "utf-8", "surrogatepass")
    return what
