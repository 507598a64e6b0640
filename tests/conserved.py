"""The law of a run's times, by its files alone: epochs, saves, evaluations, interruptions and what
lies between them add up to its clock, and its rate is images by the time that training took."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

INTERVALS = {
    "epoch_start": "epoch_stop",
    "checkpoint_start": "checkpoint_stop",
    "eval_start": "eval_stop",
}
MADE_BY_A_RUN = ("metrics.jsonl", "ranks.json", "timeline.json")
TOGETHER = {
    ("block_start", "epoch_start"),
    ("epoch_stop", "epoch_start"),
    ("epoch_stop", "checkpoint_start"),
    ("checkpoint_stop", "epoch_start"),
}
"""Records of one moment."""


def records_of(log: Path) -> list[dict[str, Any]]:
    """What lies on the clock; empty: the run was cut off."""
    token = ":::MLLOG "
    lines = log.read_text().splitlines()
    records = [json.loads(line.removeprefix(token)) for line in lines]
    keys = [record["key"] for record in records]
    if not {"run_start", "run_stop"} <= {*keys}:
        return []
    return records[keys.index("run_start") : keys.index("run_stop") + 1]


def check_times(folder: Path) -> None:
    """Raise AssertionError where the files of a run break the law."""
    records = records_of(folder / "result_0.txt")
    stamps = [record["time_ms"] for record in records]
    assert stamps == sorted(stamps), f"{folder}: stamps go back"
    opened: list[str] = []
    epochs = 0
    training_ms = 0
    since_the_last_epoch_ms = 0
    for earlier, record in pairwise(records):
        key = record["key"]
        passed_ms = record["time_ms"] - earlier["time_ms"]
        if key == "run_resumed" and opened[-1:] == ["checkpoint_start"]:
            opened.pop()  # what was trained after the checkpoint is gone
        elif opened and opened[-1] != "eval_start":
            since_the_last_epoch_ms += passed_ms
        if (earlier["key"], key) in TOGETHER:
            assert passed_ms == 0, f"{folder}: time before {record} that is nobody's"
        if key in INTERVALS:
            assert set(opened) <= {"epoch_start"}, f"{folder}: {record} in {opened}"
            opened.append(key)
        elif key in INTERVALS.values():
            assert INTERVALS[opened.pop()] == key, f"{folder}: {record}"
        if key == "epoch_stop":
            epochs += 1
            training_ms += since_the_last_epoch_ms
            since_the_last_epoch_ms = 0
    rate = json.loads((folder / "result.json").read_text()).get("images_per_s")
    expected = None
    if epochs:
        samples = next(r["value"] for r in records if r["key"] == "train_samples")
        expected = pytest.approx(1000 * samples * epochs / training_ms, rel=1e-9)
    assert rate == expected, folder


def check_all_times(root: Path, since_unix_s: float = 0.0) -> int:
    """Check every run below a folder that has begun since; returns how many there are. Tests make
    up older ones."""
    runs = [
        log.parent
        for log in root.rglob("result_0.txt")
        if all((log.parent / name).is_file() for name in MADE_BY_A_RUN)
        and any(r["time_ms"] >= 1000 * since_unix_s for r in records_of(log)[:1])
    ]
    for folder in runs:
        check_times(folder)
    return len(runs)
