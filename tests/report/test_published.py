"""Where a time stands among the published ones of the same accelerators."""

from pathlib import Path

import pytest

from rn50.config.load import load, load_system
from rn50.report.published import machine_of, standing, standing_of
from rn50.scaling.epochs import read_table
from tests.compliance.log_text import good_run, put, write
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
def test_a_log_says_where_it_stands(
    tmp_path: Path,
    imagenet: bool,
) -> None:
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
