"""Run folders with hostile content in the files beside the log. Links, FIFOs and holes in their
place: tests/compliance/test_hostile_folder.py."""

from __future__ import annotations

import json
import random
from pathlib import Path

from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.train import checkpoint
from rn50.train.state import LossScaleState, Meta, TrainState
from tests.compliance.log_text import good_run, write
from tests.fuzz.values import Case, Step, mutate, odd_json, rng_of, tree

_SIDE_FILES = (
    *("config.yaml", "environment.json", "result.json", "metrics.jsonl", "timeline.json"),
    *("origins.json", "failure_0.json", "stderr.log"),
)
_WRITTEN = (
    *("result_0.txt", "checkpoint", "attempt_1", "exit_code", ".lock"),
    "checkpoint/step_0000000010.ckpt",
)


def run_case(seed: int, folder: Path) -> Case:
    """A run's folder as `rn50 launch` leaves it, some of it odd; read, reported, resumed."""
    rng = rng_of("runs", seed)
    name = "results/quick/20261122T100000Z"
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(load("quick", ["seed=1"]).to_yaml())
    write(run / "result_0.txt", good_run("4.0.0"))
    (run / "result.json").write_text(json.dumps({"status": "failed", "seed": 1}))
    records = [{"kind": "train", "step": n, "epoch": n / 10, "loss": 1.0} for n in range(30)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (run / "checkpoint").mkdir()
    _write_checkpoint(run / "checkpoint", rng.choice((0, 100, 1 << 20, 1 << 62)))
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = run / rng.choice((*_SIDE_FILES, *_WRITTEN))
        if path.parent.is_dir():
            done.append(f"{path.name}: {_hostile(rng, path)}")
    steps: tuple[Step, ...] = (
        ("launch", "--resume", name, "--dry-run"),
        ("launch", "--resume", "latest", "--dry-run", "--json"),
        ("log", "show", name, "--json"),
        ("log", "report", "results/quick"),
        ("runs", "results"),
        ("runs", "--json", name),
        *_reading(rng, name),
    )
    return Case(f"{done}", tuple(rng.choices(steps, k=3)))


def _write_checkpoint(folder: Path, size_bytes: int) -> None:
    """A checkpoint that a run can resume from, whose log is recorded with so many bytes."""
    loaded = load("quick", ["seed=1"])
    plan = build_plan(loaded.run)
    meta = Meta(
        state=TrainState(step=10, samples=plan.images_after(10), training_s=1.0),
        log_bytes=size_bytes,
        metrics_bytes=size_bytes,
        run_started_unix_s=1e9,
        previous_lr=0.1,
        loss_scale=LossScaleState(value=1.0),
        ranks=plan.ranks,
        statistics_rows=1,
        config_sha256=loaded.sha256,
        config=loaded.to_dict(),
        image_set="none here",
    )
    checkpoint.write(folder / checkpoint.file_name(10), meta, {})


def _reading(rng: random.Random, name: str) -> tuple[Step, ...]:
    """Two commands that read a folder of logs."""
    as_json = rng.choice(((), ("--json",)))
    commands: tuple[Step, ...] = (
        ("log", "check", "--no-official", name, *as_json),
        ("log", "score", name, *as_json),
        ("log", "show", name, *as_json),
        ("log", "compare", name, name, *as_json),
        ("log", "report", name, "--out", "out.html"),
        ("log", "report", name),
    )
    return tuple(rng.sample(commands, 2))


def _hostile(rng: random.Random, path: Path) -> str:
    """Put something there; returns what."""
    if path.is_dir():
        return "a folder before"
    what = rng.choice(("odd JSON", "mutant", "tree"))
    if what == "mutant":
        path.write_bytes(mutate(rng, path.read_bytes() if path.is_file() else b"{}"))
    else:
        text = odd_json(rng) if what == "odd JSON" else json.dumps(tree(rng, 5))
        path.write_text(text, "utf-8", "surrogatepass")
    return what
