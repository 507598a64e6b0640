"""A run from a saved config.yaml says whether it repeated the recorded one."""

import re
import shutil
from pathlib import Path

import pytest

from rn50.report.reproduction import compare_with_recorded, repeat_line
from tests.conftest import Rn50, read_json

GOLDEN = Path(__file__).parent.parent / "golden" / "smoke_result_0.txt"


def record(folder: Path, accuracy: str) -> Path:
    """A folder with the golden log and this accuracy in it."""
    folder.mkdir()
    pattern = r'("key": "eval_accuracy", "value": )[\d.]+'
    (folder / "result_0.txt").write_text(
        re.sub(pattern, rf"\g<1>{accuracy}", GOLDEN.read_text())
    )
    return folder


@pytest.mark.parametrize("now", ["0.75", "0.7500000000000001"])  # the last bit counts
def test_curves_are_compared_bit_for_bit(tmp_path: Path, now: str) -> None:
    then = record(tmp_path / "then", "0.75")
    repeat = compare_with_recorded(then, record(tmp_path / "now", now))
    assert (repeat.same, repeat.compared) == (now == "0.75", 1)
    assert ("not reproduced" in repeat_line(repeat)) == (not repeat.same)


@pytest.mark.slow
def test_a_run_is_repeated_from_its_own_folder(
    rn50: Rn50, whole: Path, small_data: Path, tmp_path: Path
) -> None:
    """The real command again: the same bits wherever the data lies."""
    recorded = tmp_path / "recorded"
    moved = tmp_path / "moved"
    shutil.copytree(whole, recorded)
    shutil.copytree(small_data, moved)
    places = (f"data.path={moved}", f"system.results={rn50.results}")
    done = rn50("launch", str(recorded / "config.yaml"), *places)
    assert f"recorded run: {recorded}" in done.stdout, done.stderr
    same = r"\nreproduced: the same in every bit of \d+ losses and accuracies; recorded"
    assert re.search(same, done.stdout)
    result = read_json(rn50.run_folder() / "result.json")
    assert result["repeats"]["same"] is True
    assert result["repeats"]["compared"] > 3
    assert result["repeats"]["recorded"] == str(recorded)

    config = recorded / "config.yaml"
    config.write_text(config.read_text().replace(" per_rank: 10", " per_rank: 9"))
    repeat = compare_with_recorded(recorded, rn50.run_folder())
    # the bits are what they are; that the config is not the same is told
    assert repeat.same is True
    assert repeat_line(repeat).endswith(
        f"there): batch.per_rank (10, 9); recorded run: {recorded}"
    )
