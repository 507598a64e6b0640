"""Submissions, run folders and sweeps with hostile files beside what is asked for."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.launch import resume as attempts
from rn50.launch.ending import Ending, read_standing
from rn50.launch.failure import Evidence, explain_failure, read_failures
from rn50.launch.run import close_result, save_config, write_result
from rn50.launch.run_files import refuse_run
from rn50.launch.supervisor import run_watched
from rn50.logging.metrics import Metrics
from rn50.logging.mlperf import MLPerfLog
from rn50.sweep.trial import cancel_job, read_end
from rn50.train import checkpoint
from rn50.train.repeated import last_log_point, stopped_at
from rn50.train.state import LossScaleState, Meta, TrainState
from tests.compliance.log_text import good_run
from tests.fuzz.case import Case, Step, rng_of
from tests.fuzz.configs import keys
from tests.fuzz.records import odd_file
from tests.fuzz.values import NUMBERS, mutate, odd_json, tree

_SIDE_FILES = (
    *("config.yaml", "environment.json", "result.json", "metrics.jsonl", "timeline.json"),
    *("origins.json", "scaling.json", "failure_0.json", "report.html", "stderr.log"),
)
_WRITTEN = (
    *("result_0.txt", "metrics.jsonl", "checkpoint", "resume_from", "attempt_1", "exit_code"),
    *(".lock", ".rank_0.lock", ".reserve", "failure_²_.json"),
)
_INTERRUPTED = "interrupted_0.txt"
_MODEL = "step_0000000010.model.safetensors"
_OF_TRIAL = ("output.log", "config.yaml", "run/result.json", "run/metrics.jsonl", "run")
_OUTPUTS = (
    "",
    "x job evil.py in . (to stop it: python3 evil.py)\n",
    "local job 1 in . (to stop it: kill 1)\n",
    "slurm job touch in . (to stop it: touch touch)\n",
)
_NAMES = ("result_\x1b[2J.txt", "result_7.txt", "result_.txt", "result_0.txt~", "\udcff")


def submission_case(seed: int, folder: Path) -> Case:
    """Five logs in a submission or in one folder, and hostile side files; judged as a whole."""
    rng = rng_of("submissions", seed)
    top = folder / rng.choice(("five", "\x1b[2Jfive", "training_results_v2.1"))
    logs = top / "results/machine/resnet" if rng.random() < 0.5 else top
    logs.mkdir(parents=True)
    for number in range(rng.choice((1, 2, 5, 5, 6))):
        (logs / f"result_{number}.txt").write_text(_log(number))
    done = []
    for _ in range(rng.choice((1, 2, 3))):
        path = rng.choice((logs, logs, top)) / rng.choice(_SIDE_FILES)
        if rng.random() < 0.25:
            path = logs / rng.choice((*_NAMES, "result_0.txt", "result_1.txt"))
        if rng.random() < 0.15 and logs != top:
            (top / "systems").mkdir(exist_ok=True)
            path = top / "systems/machine.json"
        done.append(f"{path.name}: {_hostile(rng, path)}")
    name = str(top.relative_to(folder))
    return Case(f"{done}", _reading(rng, name))


def run_case(seed: int, folder: Path) -> Case:
    """A run's folder as `rn50 launch` leaves it, some of it odd; read, reported, gone on with."""
    rng = rng_of("runs", seed)
    run = folder / "results/quick/20261122T100000Z"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(_config())
    (run / "result_0.txt").write_text(_log(0))
    (run / "result.json").write_text(json.dumps({"status": "failed", "seed": 1}))
    records = [{"kind": "train", "step": n, "epoch": n / 10, "loss": 1.0} for n in range(30)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (run / "checkpoint").mkdir()
    number = rng.choice((0, 100, 100, 1 << 20, 1 << 40, 1 << 62))
    if rng.random() < 0.3:
        (run / "checkpoint" / checkpoint.file_name(10)).write_bytes(_checkpoint())
    else:
        _write_checkpoint(run / "checkpoint", number)
    (run / "trials/trial_0000/run").mkdir(parents=True)
    (run / "trials/trial_0000/output.log").write_text(
        rng.choice(_OUTPUTS) + rng.choice(("", "rn50: error: a: b\n", odd_json(rng)[:9000]))
    )
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = run / rng.choice((*_SIDE_FILES, *_WRITTEN))
        if rng.random() < 0.2:
            path = run / "trials/trial_0000" / rng.choice(_OF_TRIAL)
        attempt = run / "attempt_1"
        if rng.random() < 0.2 and (attempt.is_dir() or not os.path.lexists(attempt)):
            attempt.mkdir(exist_ok=True)
            path = run / "attempt_1" / rng.choice(("result.json", "metrics.jsonl", _INTERRUPTED))
        if rng.random() < 0.3:
            names = (checkpoint.file_name(10), "step_0000000020.ckpt", _MODEL)
            path = run / "checkpoint" / rng.choice(names)
        done.append(f"{path.name}: {_hostile(rng, path)}")
    steps: tuple[Step, ...] = (
        ("launch", "--resume", str(run), "--dry-run"),
        ("launch", "--resume", "latest", "--dry-run", "--json"),
        ("log", "show", str(run), "--json"),
        ("predict", "calibrate", str(run)),
        lambda: attempts.is_interrupted(run),
        lambda: explain_failure(Evidence(read_failures(run), "", 1)),
        lambda: (stopped_at(run), last_log_point(run)),
        lambda: attempts.load_resumed(str(run), None, [], None),
        lambda: _go_on(run),
        lambda: _go_on(run),
        lambda: _write_all(run),
        lambda: _look_at_trial(run / "trials/trial_0000"),
        lambda: read_end(run.parent, None),
        *_reading(rng, "results/quick/20261122T100000Z"),
        ("log", "report", "results/quick"),
        ("runs", "results"),
        ("runs", "--json", str(run)),
    )
    return Case(f"{done}", tuple(rng.choices(steps, k=3)))


def sweep_case(seed: int, folder: Path) -> Case:
    """A sweep's YAML; its results so far are asked for, of which there are none."""
    rng = rng_of("sweeps", seed)
    definition: dict[str, Any] = {
        "name": "s",
        "config": "smoke",
        "overrides": {"system.results": str(folder / "results")},
        "parameters": {"optimizer.base_lr": {"log": [0.1, 1.0]}},
        "trials": 4,
        "sampler": rng.choice(("tpe", "random", "grid")),
    }
    for _ in range(rng.choice((0, 1, 1, 2))):
        key = rng.choice(
            (*definition, "seed", "parallel", "objective", "pruner", "limit_s", "startup_trials")
        )
        definition[key] = rng.choice((rng.choice(NUMBERS), tree(rng)))
    if rng.random() < 0.7:
        kind = rng.choice(("linear", "log", "integer", "choice"))
        number = [rng.choice((0, 1, 10, *NUMBERS)) for _ in range(2)]
        space = {kind: number, "step": rng.choice((1, 0.5, 1e-12, *NUMBERS))}
        definition["parameters"] = {rng.choice(keys()): space}
    text = json.dumps(definition).replace("NaN", ".nan").replace("Infinity", ".inf")
    path = folder / "sweep.yaml"
    path.write_bytes(mutate(rng, text.encode()) if rng.random() < 0.2 else text.encode())
    command = ("sweep", "sweep.yaml", "--report", *rng.choice(((), ("--json",))))
    return Case(text[:300], (command,))


def _go_on(run: Path) -> None:
    """What `launch --resume` does before its ranks start and when one of them failed."""
    _, loaded = attempts.load_resumed(str(run), None, [], None)
    attempts.begin_attempt(run, loaded)
    save_config(loaded, run)
    read_standing(run)
    attempts.close_attempt(run)
    close_result(run, loaded.run, Ending("a rank failed"))


def _write_all(run: Path) -> None:
    """Each writer by itself: none may lead out of the folder, whatever has its file's name."""
    loaded = load("quick", ["seed=1"])
    for write in (
        lambda: save_config(loaded, run),
        lambda: write_result(run, {}),
        lambda: Metrics(run / "metrics.jsonl"),
        lambda: MLPerfLog(run / "result_0.txt"),
        lambda: run_watched(["true"], {}, run, None, 0.0),
        lambda: refuse_run(run),
        lambda: attempts.close_attempt(run),
    ):
        with suppress(UserError, OSError):
            write()


def _look_at_trial(trial: Path) -> None:
    """What a driver of sweeps does with a trial of a driver before."""
    for scheduler in ("local", "slurm"):
        cancel_job(trial, scheduler)
    read_end(trial, None)


def _write_checkpoint(folder: Path, size_bytes: int) -> None:
    """A checkpoint that can be gone on with, whose log is said to have so many bytes."""
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
        seeds={},
        config_sha256=loaded.sha256,
        config=loaded.to_dict(),
    )
    checkpoint.write(folder / checkpoint.file_name(10), meta, {})


def _reading(rng: random.Random, name: str) -> tuple[Step, ...]:
    """Two commands that read a folder of logs."""
    commands: tuple[Step, ...] = (
        ("log", "check", "--no-official", "--json", name),
        ("log", "check", "--no-official", name),
        ("log", "score", name, *rng.choice(((), ("--json",)))),
        ("log", "show", name, *rng.choice(((), ("--json",)))),
        ("log", "compare", name, name, *rng.choice(((), ("--json",)))),
        ("log", "report", name, "--out", "out.html"),
        ("log", "report", name),
    )
    return tuple(rng.sample(commands, 2))


def _hostile(rng: random.Random, path: Path) -> str:
    """Put something there; returns what."""
    if path.is_dir() and not path.is_symlink():
        return "a folder before"
    what = rng.choice(("odd file", "odd JSON", "mutant", "tree", "secret", "yaml", "keys"))
    if what == "odd file":
        odd_file(rng, path)
        return what
    if what == "mutant" and not path.is_symlink() and path.is_file() and _small(path):
        path.write_bytes(mutate(rng, path.read_bytes()))
        return what
    path.unlink(missing_ok=True)
    if what == "secret":
        path.symlink_to(os.path.relpath(path.anchor) if rng.random() < 0.1 else _secret(path))
    elif what == "yaml":
        number = rng.choice(NUMBERS)
        text = rng.choice(
            (
                "base: ../../../outside/secret.txt\n",
                f"base: quick\n{rng.choice(keys())}: {json.dumps(number)}\n",
                "ruleset: 0.7.0\n",
                "base: config.yaml\n",
                "base: quick\ndata: {path: /dev/zero}\nsystem: {results: /etc}\n",
                "base: quick\nsystem: ../../outside/secret.txt\n",
            )
        )
        path.write_text(text)
    elif what == "keys":
        known = (
            "status",
            "rank",
            "reason",
            "step",
            "epoch",
            "accuracy",
            "kind",
            "time_s",
            "target",
        )
        lines = [
            json.dumps({rng.choice(known): tree(rng) for _ in range(4)} | {"kind": "eval"})
            for _ in range(rng.choice((1, 1, 30)))
        ]
        path.write_text("\n".join(lines) + "\n")
    elif what == "tree":
        path.write_text(json.dumps(tree(rng, 5)))
    else:
        path.write_text(odd_json(rng), "utf-8", "surrogatepass")
    return what


def _small(path: Path) -> bool:
    return path.stat().st_size < 1 << 22


def _secret(path: Path) -> Path:
    """The file outside of the case's folder, as a link beside `path` names it."""
    outside = Path.cwd().parent / "outside/secret.json"
    return Path(os.path.relpath(outside, path.parent))


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


@lru_cache(maxsize=1)
def _config() -> str:
    return load("quick", ["seed=1"]).to_yaml()


@lru_cache(maxsize=1)
def _checkpoint() -> bytes:
    """A manifest that does not say what it should, with its right digest."""
    body = b'{"format":"rn50 checkpoint 2","meta":{},"parts":[]'
    return body + f',"digest":"{checkpoint.digest_of(body)}"}}\n'.encode()
