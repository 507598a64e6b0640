"""Submissions and run folders with hostile files beside what is asked for."""

from __future__ import annotations

import json
import os
import random
from functools import lru_cache
from pathlib import Path

from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.train import checkpoint
from rn50.train.state import LossScaleState, Meta, TrainState
from tests.compliance.log_text import good_run
from tests.fuzz.configs import keys
from tests.fuzz.values import NUMBERS, Case, Step, mutate, odd_file, odd_json, rng_of, tree

_SIDE_FILES = (
    *("config.yaml", "environment.json", "result.json", "metrics.jsonl", "timeline.json"),
    *("origins.json", "failure_0.json", "stderr.log"),
)
_WRITTEN = (
    *("result_0.txt", "checkpoint", "attempt_1", "exit_code", ".lock"),
    "checkpoint/step_0000000010.ckpt",
)
_NAMES = ("result_\x1b[2J.txt", "result_7.txt", "result_.txt", "result_0.txt~", "\udcff")


def submission_case(seed: int, folder: Path) -> Case:
    """Five logs in a submission or in one folder, and hostile side files; judged as a whole."""
    rng = rng_of("submissions", seed)
    top = folder / rng.choice(("five", "\x1b[2Jfive", "training_results_v2.1"))
    logs = top / "results/machine/resnet" if rng.random() < 0.5 else top
    logs.mkdir(parents=True)
    for number in range(rng.choice((1, 5, 5, 6))):
        (logs / f"result_{number}.txt").write_text(_log(number))
    done = []
    for _ in range(rng.choice((1, 2, 3))):
        path = rng.choice((logs, logs, top)) / rng.choice(_SIDE_FILES)
        if rng.random() < 0.25:
            path = logs / rng.choice((*_NAMES, "result_0.txt", "result_1.txt"))
        done.append(f"{path.name}: {_hostile(rng, path)}")
    return Case(f"{done}", _reading(rng, str(top.relative_to(folder))))


def run_case(seed: int, folder: Path) -> Case:
    """A run's folder as `rn50 launch` leaves it, some of it odd; read, reported, resumed."""
    rng = rng_of("runs", seed)
    name = "results/quick/20261122T100000Z"
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(load("quick", ["seed=1"]).to_yaml())
    (run / "result_0.txt").write_text(_log(0))
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
    if path.is_dir() and not path.is_symlink():
        return "a folder before"
    what = rng.choice(("odd file", "odd JSON", "mutant", "tree", "secret", "yaml", "records"))
    if what == "odd file":
        odd_file(rng, path)
        return what
    plain = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 22
    before = path.read_bytes() if plain else b"{}"
    path.unlink(missing_ok=True)
    if what == "mutant":
        path.write_bytes(mutate(rng, before))
    elif what == "secret":
        path.symlink_to(os.path.relpath(Path.cwd().parent / "outside/secret.json", path.parent))
    elif what == "yaml":
        texts = (
            "base: ../../../outside/secret.txt\n",
            f"base: quick\n{rng.choice(keys())}: {json.dumps(rng.choice(NUMBERS))}\n",
            "base: config.yaml\n",
            "base: quick\ndata: {path: /dev/zero}\nsystem: {results: /etc}\n",
        )
        path.write_text(rng.choice(texts))
    elif what == "records":
        known = ("status", "rank", "reason", "step", "epoch", "accuracy", "time_s", "target")
        lines = [
            json.dumps({rng.choice(known): tree(rng) for _ in range(4)} | {"kind": "eval"})
            for _ in range(rng.choice((1, 30)))
        ]
        path.write_text("\n".join(lines) + "\n")
    else:
        text = odd_json(rng) if what == "odd JSON" else json.dumps(tree(rng, 5))
        path.write_text(text, "utf-8", "surrogatepass")
    return what


@lru_cache(maxsize=8)
def _log(number: int) -> str:
    run = good_run("4.0.0")
    for record in run:
        record.time_ms += number * 86_400_000 + number * (record.time_ms % 7)
        if record.key == "seed":
            record.value = number + 1
        if record.key == "eval_accuracy" and record.value < 0.7:
            record.value = round(record.value + number / 1000, 5)
    return "".join(f"{record.text('4.0.0')}\n" for record in run)
