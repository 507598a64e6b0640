"""What published runs say beside a log."""

from pathlib import Path

import pytest

from rn50.cli.log import log_compare
from rn50.config.load import load
from rn50.report.published import accelerators_of, beside_published
from rn50.report.run_records import read_subjects
from tests.cli.test_check import log
from tests.compliance.test_rules import nth
from tests.conftest import write_json
from tests.report.conftest import images_of, write_config
from tests.report.test_report import page_of


def test_the_config_of_a_run_says_how_many_accelerators_it_has(tmp_path: Path) -> None:
    run = load("dgxh100_8").run
    assert accelerators_of(tmp_path, run) == 8


def test_the_folder_of_a_published_log_says_how_many_accelerators_it_has(
    tmp_path: Path,
) -> None:
    path = log(tmp_path / "eos_ngc24.04_mxnet")
    assert accelerators_of(path, None) == 8
    assert accelerators_of(tmp_path, None) is None


def evaluated(folder: Path, preset: str, *overrides: str, epoch: int = 90) -> Path:
    """The folder of a run whose last evaluation is that of an epoch."""
    write_config(folder, *overrides, preset=preset)
    end = nth("eval_accuracy", -1, value=0.7123, epoch_num=epoch)
    return log(folder, end).parent


def test_a_run_of_fujitsus_preset_is_shown_beside_the_published_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under another name too, which the origins of its values tell."""
    label = "Fujitsu, MLPerf v0.6, 5 runs"
    sentence = f"Accuracy 0.7123 after epoch 90, published 0.7593 to 0.7611 ({label})"
    ours = evaluated(tmp_path / "ours", "abci_2048_open")
    assert f"{sentence}." in page_of(ours)
    renamed = evaluated(tmp_path / "renamed", "abci_2048_open", "name=mine")
    assert label not in page_of(renamed)
    write_json(renamed / "origins.json", {"seed": "config/abci_2048_open.yaml:3"})
    assert any(label in image for image in images_of(page_of(renamed)))
    unpublished = evaluated(tmp_path / "other", "dgxa100_8")
    assert label not in page_of(unpublished)
    log_compare([ours, unpublished])
    assert f"\nA: {sentence}\n" in capsys.readouterr().out
    (early,) = read_subjects(evaluated(tmp_path / "early", "abci_2048_open", epoch=3))
    assert not beside_published(early)  # no published run has that epoch
