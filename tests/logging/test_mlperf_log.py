import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.config.schema import Run
from rn50.logging.clock import Clock
from rn50.logging.events import Event
from rn50.logging.mlperf import MLPerfLog
from rn50.logging.parse import read_events

ROOT = Path(__file__).resolve().parents[2]
RUN = load("quick", ["seed=1"]).run

EVENTS: dict[str, dict[str, Any]] = {
    "block_start": {"first_epoch_num": 1, "epoch_count": 4},
    "epoch_start": {"epoch_num": 1},
    "epoch_stop": {"epoch_num": 1},
    "eval_start": {"epoch_num": 1},
    "eval_stop": {"epoch_num": 1},
    "eval_accuracy": {"value": 0.5, "epoch_num": 1},
    "block_stop": {"first_epoch_num": 1},
}
CALLS = {
    "submission": methodcaller("submission", RUN),
    "cache_clear": methodcaller("event", "cache_clear", True),
    "init_start": methodcaller("event", "init_start"),
    "hyperparameters": methodcaller("hyperparameters", RUN, build_plan(RUN)),
    "init_stop": methodcaller("event", "init_stop"),
    "run_start": methodcaller("run_start", RUN),
    **{name: methodcaller("event", name, **more) for name, more in EVENTS.items()},
    "run_stop": methodcaller("run_stop", success=False),
}
ROAD = [*CALLS]
BLOCK = ROAD[ROAD.index("block_start") :]


def after(event: str, path: Path) -> MLPerfLog:
    """A log whose last event is `event` ("": none yet)."""
    log = MLPerfLog(path, Clock())
    for name in ROAD[: ROAD.index(event) + 1] if event else []:
        CALLS[name](log)
    return log


def full_log(
    path: Path, run: Run, *, reached: float = 0.8, weights: Sequence[str] = ()
) -> list[Event]:
    """Two blocks, of two epochs and of one, the second successful if it reached the target."""
    log = MLPerfLog(path, Clock())
    log.submission(run)
    log.event("cache_clear", True)
    log.event("init_start")
    log.hyperparameters(run, build_plan(run), weights)
    log.event("init_stop")
    log.run_start(run)
    for first, last, accuracy in ((1, 2, 0.5), (3, 3, reached)):
        epochs = last - first + 1
        log.event("block_start", first_epoch_num=first, epoch_count=epochs)
        for epoch in range(first, last + 1):
            log.event("epoch_start", epoch_num=epoch)
            log.event("epoch_stop", epoch_num=epoch)
        log.event("eval_start", epoch_num=last)
        log.event("eval_stop", epoch_num=last)
        log.event("eval_accuracy", accuracy, epoch_num=last)
        log.event("block_stop", first_epoch_num=first)
    log.run_stop(success=reached >= run.eval.target)
    return read_events(path)


def test_every_line_is_a_record_of_its_type(tmp_path: Path) -> None:
    """Their order is judged by our rules and the official checker."""
    types = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
    full_log(tmp_path / "log.txt", RUN)
    for line in (tmp_path / "log.txt").read_text().splitlines():
        record = json.loads(line.removeprefix(":::MLLOG "))
        last_word = record["key"].rpartition("_")[2]
        assert record["event_type"] == types.get(last_word, "POINT_IN_TIME")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "dgx1_8",
            {
                "sgd_opt_base_learning_rate": None,
                "opt_learning_rate_warmup_epochs": None,
                "lars_epsilon": 0,
                "lars_opt_learning_rate_warmup_epochs": pytest.approx(2, abs=1e-3),
                "lars_opt_base_learning_rate": 7.4,
                "lars_opt_end_learning_rate": 1e-4,
                "lars_opt_learning_rate_decay_poly_power": 2,
                "lars_opt_weight_decay": 1e-4,
                "global_batch_size": 1664,
            },
        ),
        # Only a polynomial has its power, its steps and where it counts from.
        (
            "sony_3456",
            {
                "opt_learning_rate_decay_shape": "sony_b",
                "opt_learning_rate_decay_from": None,
                "lars_opt_learning_rate_decay_poly_power": None,
                "lars_opt_learning_rate_decay_steps": None,
            },
        ),
        # 56 epochs of 69,632 images: 1,030.4 steps from the start of the run.
        (
            "sony_2176",
            {
                "lars_opt_learning_rate_warmup_epochs": 34,
                "lars_opt_learning_rate_decay_steps": 1030,
            },
        ),
    ],
)
def test_the_keys_of_a_run(tmp_path: Path, name: str, expected: dict[str, Any]) -> None:
    run = load(name, ["seed=1"]).run
    values = {event.key: event.value for event in full_log(tmp_path / "log.txt", run)}
    assert {key: values.get(key) for key in expected} == expected


def test_file_and_line_are_those_of_the_caller(tmp_path: Path) -> None:
    log = MLPerfLog(tmp_path / "log.txt", Clock())
    frame = inspect.currentframe()
    assert frame is not None
    for name in ROAD[: ROAD.index("block_start")]:
        CALLS[name](log)
    lines = [frame.f_lineno - 1]
    log.abort()
    lines.append(frame.f_lineno - 1)
    sources = [event.metadata for event in read_events(tmp_path / "log.txt")]
    assert {source["file"] for source in sources} == {
        "tests/logging/test_mlperf_log.py"
    }
    assert list(dict.fromkeys(source["lineno"] for source in sources)) == lines


def test_the_program_may_lie_in_any_folder(tmp_path: Path) -> None:
    """mlperf-logging takes the root folder for a regular expression."""
    home = tmp_path / "c++ [b](c)*\\1"
    for room in ("config", "logging"):
        shutil.copytree(ROOT / room, home / "rn50" / room)
    shutil.copy(ROOT / "rn50/__init__.py", home / "rn50")
    code = (
        "from pathlib import Path\n"
        "from rn50.logging.clock import Clock\n"
        "from rn50.logging.mlperf import MLPerfLog\n"
        "from rn50.config.schema import Run\n"
        "MLPerfLog(Path('log.txt'), Clock()).submission(Run())\n"
    )
    (home / "start.py").write_text(code)
    subprocess.run([sys.executable, "start.py"], cwd=home, check=True)
    events = read_events(home / "log.txt")
    assert len(events) == 5
    assert "rn50/logging/mlperf.py" not in {event.metadata["file"] for event in events}


def test_a_log_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("something old\n")
    after("submission", path)
    assert len(read_events(path)) == 5
    assert "old" not in path.read_text()


# --- the end of a run ---------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["", *ROAD[: ROAD.index("run_start")], "run_stop"])
def test_abort_before_the_clock_and_after_the_end_writes_nothing(
    tmp_path: Path, event: str
) -> None:
    log = after(event, tmp_path / "log.txt")
    content = (tmp_path / "log.txt").read_bytes()
    log.abort()
    assert (tmp_path / "log.txt").read_bytes() == content


@pytest.mark.parametrize("event", ["run_start", *BLOCK[:-1]])
def test_abort_stops_a_running_clock_once(tmp_path: Path, event: str) -> None:
    log = after(event, tmp_path / "log.txt")
    log.abort()
    log.abort()
    stops = [e for e in read_events(tmp_path / "log.txt") if e.key == "run_stop"]
    assert [stop.metadata["status"] for stop in stops] == ["aborted"]
