"""Small logs for tests: a complete run that every rule passes, as a list of records to edit."""

import contextlib
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from mlperf_logging.compliance_checker import mlp_compliance

from rn50.compliance.score import Score, score_checks
from rn50.compliance.submission import judge_path
from rn50.config import benchmark

START_MS = {
    "0.6.0": 1_560_000_000_000,
    "0.7.0": 1_593_000_000_000,
    "1.0.0": 1_621_500_000_000,
    "1.1.0": 1_634_000_000_000,
    "2.0.0": 1_652_000_000_000,
    "2.1.0": 1_664_500_000_000,
    "3.0.0": 1_683_700_000_000,
    "3.1.0": 1_695_900_000_000,
    "4.0.0": 1_714_000_000_000,
}
"""A moment of each round."""

LARS = {
    "lars_opt_base_learning_rate": 10.5,
    "lars_opt_end_learning_rate": 0.0001,
    "lars_opt_learning_rate_decay_poly_power": 2,
    "lars_opt_learning_rate_decay_steps": 13755,
    "lars_epsilon": 0,
    "lars_opt_learning_rate_warmup_epochs": 2,
    "lars_opt_momentum": 0.9,
    "lars_opt_weight_decay": 5e-05,
}
SGD = {
    "sgd_opt_base_learning_rate": 9.5,
    "sgd_opt_end_learning_rate": 0.0001,
    "sgd_opt_learning_rate_decay_poly_power": 2,
    "sgd_opt_learning_rate_decay_steps": 13755,
    "sgd_opt_weight_decay": 5e-05,
    "sgd_opt_momentum": 0.9,
    "model_bn_span": 408,
    "opt_learning_rate_warmup_epochs": 2,
}
OLD = {
    "opt_base_learning_rate": 10.5,
    "opt_learning_rate_warmup_epochs": 2,
    "model_bn_span": 408,
    "lars_opt_learning_rate_decay_steps": 13755,
    "lars_opt_learning_rate_decay_poly_power": 2,
    "lars_opt_weight_decay": 5e-05,
    "lars_epsilon": 0,
}


class Record:
    """One record, mutable."""

    def __init__(self, key: str, value: Any, time_ms: float, **metadata: Any) -> None:
        self.key = key
        self.value = value
        self.time_ms = time_ms
        self.metadata: Any = {"file": "train.py", "lineno": 7, **metadata}

    def text(self, ruleset: str) -> str:
        if ruleset == "0.6.0":
            body = json.dumps({"value": self.value, "metadata": self.metadata})
            return f":::MLL {self.time_ms / 1000:.3f} {self.key}: {body}"
        content = {
            "namespace": "",
            "time_ms": self.time_ms,
            "event_type": "POINT_IN_TIME",
            "key": self.key,
            "value": self.value,
            "metadata": self.metadata,
        }
        return f":::MLLOG {json.dumps(content)}"

    def later(self, by_ms: float) -> "Record":
        """A copy with another stamp."""
        return Record(self.key, self.value, self.time_ms + by_ms, **self.metadata)


Run = list[Record]
Edit = Callable[[Run], object]


def good_run(
    ruleset: str = "4.0.0", division: str = "closed", optimizer: str = "lars"
) -> Run:
    """A run that converges at epoch 35, evaluated after epochs 3, 7, ... 35."""
    now_ms = float(START_MS[ruleset])
    run: Run = []

    def add(key: str, value: Any = None, after_ms: float = 1, **metadata: Any) -> None:
        nonlocal now_ms
        now_ms += after_ms
        run.append(Record(key, value, now_ms, **metadata))

    add("submission_benchmark", "resnet")
    add("submission_org", "us")
    add("submission_division", division)
    add("submission_status", "onprem")
    add("submission_platform", "one machine")
    if ruleset == "0.6.0":
        add("submission_poc_name", "me")
        add("submission_entry", "one")
    add("cache_clear", True)
    add("init_start")
    add("seed", 4711)
    add("global_batch_size", 3264)
    add("opt_name", optimizer)
    if ruleset != "0.6.0":
        add("gradient_accumulation_steps", 1)
    hyperparameters = (
        OLD if ruleset == "0.6.0" else {"lars": LARS, "sgd": SGD}[optimizer]
    )
    for key, value in hyperparameters.items():
        add(key, value)
    if ruleset in benchmark.WEIGHT_NAMES_RULESETS:
        for name in sorted(benchmark.weight_names()):
            add("weights_initialization", None, tensor=name)
    add("init_stop", None, 60_000)
    add("run_start", None, 10)
    if ruleset != "0.6.0":
        add("train_samples", 1_281_167)
        add("eval_samples", 50_000)
    first = 1
    for last in range(3, 36, 4):
        add("block_start", None, first_epoch_num=first, epoch_count=last - first + 1)
        for epoch in range(first, last + 1):
            add("epoch_start", None, epoch_num=epoch)
            add("epoch_stop", None, 1_000, epoch_num=epoch)
        add("eval_start", None, epoch_num=last)
        add("eval_stop", None, 500, epoch_num=last)
        correct = 37960 if last == 35 else round(50_000 * (0.2 + last / 70))
        add("eval_accuracy", correct / 50_000, epoch_num=last)
        add("block_stop", None, first_epoch_num=first)
        first = last + 1
    add("run_stop", None, status="success")
    return run


def vary(run: Run, number: int) -> Run:
    """Another run of the same length: a seed, times and accuracies of its own."""
    random = Random(number)
    put("seed", 1000 + number)(run)
    early_ms = 0
    for record in run:
        if record.key == "epoch_stop":
            early_ms = random.randrange(400)
        if record.key != "run_stop":
            record.time_ms -= early_ms
        if record.key == "eval_accuracy":
            reached = record.value >= benchmark.TARGET_ACCURACY
            images = random.randrange(50) if reached else random.randrange(-200, 200)
            record.value = round(record.value * 50_000 + images) / 50_000
    return run


def all_of(run: Run, key: str) -> Run:
    """The records of a key."""
    return [record for record in run if record.key == key]


def find(run: Run, key: str) -> Record:
    """The first record of a key."""
    return all_of(run, key)[0]


def last(run: Run, key: str) -> Record:
    """The last record of a key."""
    return all_of(run, key)[-1]


def drop(*keys: str) -> Edit:
    """Remove all records of some keys."""

    def edit(run: Run) -> None:
        run[:] = [record for record in run if record.key not in keys]

    return edit


def put(key: str, value: Any) -> Edit:
    """Give all records of a key a value."""

    def edit(run: Run) -> None:
        for record in all_of(run, key):
            record.value = value

    return edit


def meta(key: str, name: str, value: Any) -> Edit:
    """Give all records of a key an entry of metadata; ... removes it."""

    def edit(run: Run) -> None:
        for record in all_of(run, key):
            record.metadata.pop(name, None)
            if value is not ...:
                record.metadata[name] = value

    return edit


def move(key: str, successor: str) -> Edit:
    """Move the first record of a key to before another; stamps stay with their places."""

    def edit(run: Run) -> None:
        stamps = [record.time_ms for record in run]
        record = find(run, key)
        run.remove(record)
        run.insert(run.index(find(run, successor)), record)
        for record, stamp in zip(run, stamps, strict=True):
            record.time_ms = stamp

    return edit


def shift(key: str, by_ms: float) -> Edit:
    """Stamp the last record of a key and all after it differently."""

    def edit(run: Run) -> None:
        index = run.index(last(run, key))
        for record in run[index:]:
            record.time_ms += by_ms

    return edit


def again(key: str, by_ms: float = 0, **changes: Any) -> Edit:
    """Repeat the last record of a key after itself."""

    def edit(run: Run) -> None:
        copy = last(run, key).later(by_ms)
        copy.value = changes.get("value", copy.value)
        copy.metadata |= changes.get("metadata", {})
        run.insert(run.index(last(run, key)) + 1, copy)

    return edit


def write(path: Path, run: Run, ruleset: str = "4.0.0") -> Path:
    """Write a run as a log of a round; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(record.text(ruleset) + "\n" for record in run))
    return path


def score_folder(folder: Path) -> Score:
    """The score of a folder of logs, as `rn50 log score` has it."""
    return score_checks(judge_path(folder, official=False))


def official(path: Path, ruleset: str) -> str:
    """The verdict of the official checker, in this process, for speed."""
    logging.disable(logging.CRITICAL)  # it warns of every rule that a log breaks
    mlp_compliance.enqueued_configs.clear()  # what a crash before has left
    checker = mlp_compliance.make_checker("training", ruleset, True, False)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            valid, *_ = mlp_compliance.main(
                str(path), f"training_{ruleset}/common.yaml", checker
            )
    except Exception:
        return "CRASH"
    finally:
        logging.disable(logging.NOTSET)
    return "PASS" if valid else "FAIL"
