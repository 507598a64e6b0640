"""What is trained a second time after an interruption, by what the last attempt left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rn50.compliance.check_log import check_log
from rn50.train.resume import steps_repeated

GOLDEN = Path(__file__).parent.parent / "golden" / "smoke_result_0.txt"


def attempt(out: Path, number: int, *, stopped: str | None = None, reached: int = 0) -> None:
    folder = out / f"attempt_{number}"
    folder.mkdir()
    lines = [{"kind": "train", "step": step} for step in range(20, reached + 1, 20)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if stopped:
        (folder / "result.json").write_text(json.dumps({"stopped": stopped}))


def test_a_run_that_stopped_at_its_checkpoint_trains_nothing_twice(tmp_path: Path) -> None:
    attempt(tmp_path, 1, stopped="budget of 1 epochs (limits.epochs) spent at step 50", reached=40)
    assert steps_repeated(tmp_path, 50) == 0


def test_a_killed_run_from_below(tmp_path: Path) -> None:
    assert steps_repeated(tmp_path, 100) is None
    attempt(tmp_path, 9, reached=60)
    assert steps_repeated(tmp_path, 100) is None  # it may have gone on after its last log point
    attempt(tmp_path, 10, reached=160)  # the newest counts, by number
    assert steps_repeated(tmp_path, 100) == 60


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ('{"steps_repeated": 60}', "60 or more steps"),
        ('{"ranks": 2, "ranks_before": 3}', "2 ranks instead of 3"),
    ],
)
def test_log_check_says_no_more_than_is_known(tmp_path: Path, metadata: str, said: str) -> None:
    resumed = (
        ':::MLLOG {"namespace": "", "time_ms": 1795249970551, "event_type": "POINT_IN_TIME", '
        f'"key": "run_resumed", "value": 100, "metadata": {metadata}}}'
    )
    lines = GOLDEN.read_text().splitlines()
    log = tmp_path / "result_0.txt"
    log.write_text("\n".join([*lines[:-1], resumed, lines[-1]]) + "\n")
    found = [f for f in check_log(log, "4.0.0", official=False).findings if f.name == "resumed-run"]
    assert len(found) == 1
    assert said in found[0].message
