"""A run from a saved config.yaml says whether it repeated the recorded one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from rn50.report.reproduction import Repeat, compare_with_recorded, find_recorded

GOLDEN = Path(__file__).parent.parent / "golden" / "smoke_result_0.txt"
QUICK_RUN = ("schedule.length=3 epochs", "eval.period=1", "eval.offset=0", "eval.target=0.999")


def record(folder: Path, *accuracies: float, epochs: tuple[float, ...] = ()) -> Path:
    """A folder with the golden log and these accuracies in it, one evaluation each."""
    folder.mkdir()
    head, tail = [], []
    for line in GOLDEN.read_text().splitlines():
        (tail if '"run_stop"' in line else head).append(line)
    template = next(line for line in head if '"eval_accuracy"' in line)
    head.remove(template)
    made = [
        re.sub(
            r'"epoch_num": \d+',
            f'"epoch_num": {(epochs or range(4, 400, 4))[number]}',
            re.sub(r'"value": [\d.]+', f'"value": {accuracy!r}', template),
        )
        for number, accuracy in enumerate(accuracies)
    ]
    (folder / "result_0.txt").write_text("\n".join([*head, *made, *tail]) + "\n")
    return folder


def held(tmp_path: Path, then: tuple[float, ...], now: tuple[float, ...]) -> Repeat:
    return compare_with_recorded(record(tmp_path / "then", *then), record(tmp_path / "now", *now))


def test_equal_curves(tmp_path: Path) -> None:
    repeat = held(tmp_path, (0.5, 0.75), (0.5, 0.75))
    assert (repeat.same, repeat.compared) == (True, 2)
    assert repeat.line.startswith(
        "reproduced: same accuracy curve, bit for bit (2 evaluations, 0.75 at the end)"
    )


@pytest.mark.parametrize(
    ("now", "where"),
    [
        ((0.5, 0.7500000000000001), "epoch 8 on: 0.7500000000000001 here, 0.75 there; within 3"),
        ((0.25, 0.75), "epoch 4 on: 0.25 here, 0.5 there; beyond 3"),
    ],
)
def test_the_last_bit_counts(tmp_path: Path, now: tuple[float, ...], where: str) -> None:
    repeat = held(tmp_path, (0.5, 0.75), now)
    assert repeat.same is False
    assert repeat.line.startswith(f"not reproduced: other accuracy curve from {where}")


def test_other_epochs_are_another_curve(tmp_path: Path) -> None:
    then = record(tmp_path / "then", 0.5, epochs=(4,))
    now = record(tmp_path / "now", 0.5, epochs=(3,))
    assert "from epoch 3 on: 0.5 here, 0.5 there (epoch 4)" in compare_with_recorded(then, now).line


def test_an_interrupted_record_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    repeat = held(tmp_path, (0.5,), (0.5, 0.75))
    assert (repeat.same, repeat.compared) == (True, 1)
    assert "as far as both go (1 evaluation; the new run has 2)" in repeat.line


def test_nothing_to_compare_is_not_a_verdict(tmp_path: Path) -> None:
    repeat = held(tmp_path, (), (0.5,))
    assert repeat.same is None
    assert repeat.line.startswith("cannot tell if reproduced: no evaluation in the recorded log")


def test_a_record_that_is_no_log_is_no_verdict(tmp_path: Path) -> None:
    then = record(tmp_path / "then", 0.5)
    (then / "result_0.txt").write_bytes(b"\xff\x00nonsense\x1b[31m")
    repeat = compare_with_recorded(then, record(tmp_path / "now", 0.5))
    assert repeat.same is None and "\x1b" not in repeat.line and "\n" not in repeat.line


def test_a_record_is_a_config_yaml_with_a_log_beside_it(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", 0.5)
    for name in ("config.yaml", "other.yaml"):
        (folder / name).write_text("base: x\n")
    (tmp_path / "config.yaml").write_text("base: x\n")
    assert find_recorded(str(folder / "config.yaml")) == folder
    assert find_recorded(str(folder / "other.yaml")) is None
    assert find_recorded(str(tmp_path / "config.yaml")) is None
    assert find_recorded("quick") is None


@pytest.mark.slow
def test_a_run_is_repeated_from_its_own_folder(rn50, small_data: Path, tmp_path: Path) -> None:
    """The real command twice: the same bits wherever the data lies."""
    places = (f"data.path={small_data}", f"system.results={rn50.results}")
    assert rn50("launch", "smoke", "seed=1", *QUICK_RUN, *places).returncode == 1  # no target
    recorded = rn50.run_folder()
    moved = tmp_path / "moved"
    shutil.copytree(small_data, moved)
    done = rn50("launch", str(recorded / "config.yaml"), f"data.path={moved}", places[1])
    assert f"recorded run: {recorded}" in done.stdout, done.stderr
    assert "reproduced: same accuracy curve, bit for bit (3 evaluations, " in done.stdout
    assert re.search(r"; all \d+ losses and accuracies logged are equal; recorded", done.stdout)
    result = json.loads((rn50.run_folder() / "result.json").read_text())
    assert result["repeats"]["same"] is True and result["repeats"]["compared"] == 3
    assert result["repeats"]["recorded"] == str(recorded)

    config = recorded / "config.yaml"
    config.write_text(config.read_text().replace(" per_rank: 10", " per_rank: 9"))
    repeat = compare_with_recorded(recorded, rn50.run_folder())
    assert repeat.same is True  # the curve is what it is; that the config is not the same is told
    assert repeat.line.endswith(f"here, there: batch.per_rank (10, 9); recorded run: {recorded}")
