"""A run from a saved config.yaml says whether it repeated the recorded one."""

import re
import shutil
from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.predict.work import gradient_bytes
from rn50.report.reproduction import compare_with_recorded, repeat_line
from tests.conftest import Rn50, metrics, read_json
from tests.ranks.test_launch import spans


def joined_while_loading(folder: Path) -> bool:
    loading = spans(folder)["load MXNet and Horovod"]
    joining = spans(folder)["join ranks"]
    return joining["ts"] < loading["ts"] + loading["dur"]


@pytest.mark.slow
def test_a_run_is_repeated_from_its_own_folder(
    rn50: Rn50, uninterrupted: Path, small_data: Path, tmp_path: Path
) -> None:
    """The real command again: the same bits wherever the data lies and however it starts up,
    overlapped or serial, weights seeded or broadcast; measured or not."""
    recorded = tmp_path / "recorded"
    moved = tmp_path / "moved"
    shutil.copytree(uninterrupted, recorded)
    shutil.copytree(small_data, moved)
    settings = (f"data.path={moved}", f"system.results={rn50.results}")
    serial = ("log.profile=norms", "startup={serial: true, weights: broadcast}")
    done = rn50("launch", str(recorded / "config.yaml"), *settings, *serial)
    assert f"recorded run: {recorded}" in done.stdout, done.stderr
    same = r"\nreproduced: the same in every bit of \d+ losses and accuracies"
    assert re.search(same, done.stdout)
    folder = rn50.run_folder()
    first = read_json(uninterrupted / "result.json")
    result = read_json(folder / "result.json")
    assert result["weights_digest"] == first["weights_digest"]
    assert result["repeats"]["same"] is True
    assert result["repeats"]["compared"] > 3
    assert result["repeats"]["recorded"] == str(recorded)
    run = load(uninterrupted / "config.yaml").run
    sent_bytes = gradient_bytes(run.model, run.data, "fp32")
    # a group is filled up for its engine
    assert first["allreduce_bytes"] == pytest.approx(sent_bytes, rel=1e-3)
    assert "mfu" not in first  # nothing says what a core could do
    assert metrics(folder, "norm_ratio")
    assert joined_while_loading(uninterrupted)
    assert not joined_while_loading(folder)

    config = recorded / "config.yaml"
    config.write_text(config.read_text().replace(" per_rank: 10", " per_rank: 9"))
    repeat = compare_with_recorded(recorded, folder)
    # the bits are what they are; that the config is not the same is told
    assert repeat.same is True
    line = repeat_line(repeat)
    assert "differences (here, there): batch.per_rank (10, 9), startup.serial" in line
    assert line.endswith(f"; recorded run: {recorded}")
