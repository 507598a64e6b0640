"""Where a time stands among the published ones of the same accelerators."""

from pathlib import Path

import pytest

from rn50.cli.log import log_compare
from rn50.config.load import load, load_system
from rn50.predict.epochs import read_table
from rn50.report.published import beside_published, machine_of, standing, standing_of
from rn50.report.run_records import read_subjects
from tests.compliance.log_text import good_run, last, put, write
from tests.conftest import write_json
from tests.report.conftest import write_config
from tests.report.test_report import page_of
from tests.report.test_show import shown, summary_of


def test_a_machine_of_ours_is_that_of_the_table() -> None:
    """Every published entry of a described machine is found by the name in the machine's file."""
    # too little said to be sure
    vague = {"A100", "V100", "accelerator"}
    compared = 0
    for row in read_table("mlperf_runs.csv"):
        machine = row["machine"]
        accelerator = row["accelerator"]
        if machine and accelerator not in vague:
            system = load_system(machine)
            count = int(row["n_accelerators"])
            peers = standing(system.accelerator, count, 1.0)
            assert peers is not None
            systems = {entry.system for entry in peers.entries}
            assert row["system"] in systems
            names = {entry.accelerator for entry in peers.entries}
            assert names == {accelerator}
            compared += 1
    assert compared > 150


def test_a_time_has_its_place() -> None:
    h100 = "NVIDIA H100 SXM5 80 GB"
    peers = standing(h100, 8, 800.0)
    assert peers is not None
    times_s = [entry.score_s for entry in peers.entries]
    assert times_s == sorted(times_s)
    faster = [time_s for time_s in times_s if time_s < 800.0]
    assert peers.place == len(faster) + 1
    assert f"best published {times_s[0]:,.1f} s" in peers.text
    assert standing(h100, 7, 800.0) is None


@pytest.mark.parametrize("imagenet", [True, False])
def test_a_log_says_where_it_stands(tmp_path: Path, imagenet: bool) -> None:
    """By the name of its system's folder; a run on other images stands nowhere."""
    run = good_run()
    if not imagenet:
        put("train_samples", 1000)(run)
    folder = tmp_path / "eos_ngc24.04_mxnet"
    folder.mkdir()
    log = write(folder / "result_0.txt", run)
    assert bool(shown(log)["published"]) == imagenet
    assert ("Time to train by round" in page_of(log)) == imagenet
    elsewhere = write(tmp_path / "result_0.txt", good_run())
    assert shown(elsewhere)["published"] is None


def test_the_config_of_a_run_names_its_machine(tmp_path: Path) -> None:
    run = load("dgxh100_8").run
    assert machine_of(tmp_path, run) == ("NVIDIA H100 SXM5 80 GB", 8)
    path = write(tmp_path / "result_0.txt", good_run())
    summary = summary_of(path)
    assert standing_of(tmp_path, run, [summary]) is not None
    easier = summary._replace(target=0.7)
    assert standing_of(tmp_path, run, [easier]) is None


def evaluated(folder: Path, preset: str, *overrides: str, epoch: int = 90) -> Path:
    """The folder of a run whose last evaluation is that of an epoch."""
    folder.mkdir()
    write_config(folder, *overrides, preset=preset)
    run = good_run()
    accuracy = last(run, "eval_accuracy")
    accuracy.value = 0.7123
    accuracy.metadata["epoch_num"] = epoch
    write(folder / "result_0.txt", run)
    return folder


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
    assert page_of(renamed).count(label) > 2  # the charts, in two sizes
    other = evaluated(tmp_path / "other", "dgxa100_8")
    assert label not in page_of(other)
    log_compare([ours, other])
    printed = capsys.readouterr().out
    assert f"\nA: {sentence}\n" in printed
    (early,) = read_subjects(evaluated(tmp_path / "early", "abci_2048_open", epoch=3))
    assert not beside_published(early)  # no published run has that epoch
