"""The package's face for Python: docs/python.md's cells, and that the functions share their names
with rooms."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import assert_type

import rn50
import rn50.launch.job as imported_by_its_path
from rn50.config.load import Loaded
from rn50.launch.schedulers import SCHEDULERS
from rn50.logging.records import Result
from rn50.predict.predictor import Prediction
from tests.conftest import refused


@pytest.mark.slow
def test_the_cells_of_the_page_run_in_their_order(
    root: Path, tmp_path: Path, smoke_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/smoke").symlink_to(smoke_data)
    page = (root / "docs/python.md").read_text()
    cells = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(cells) == 6
    names: dict[str, Any] = {}
    for cell in cells:
        if "results/five" in cell:
            for number in range(5):
                shutil.copytree("results/mine", f"results/five/run_{number}")
        exec(compile(cell, "docs/python.md", "exec"), names)
    assert names["result"].status == "success"
    assert names["curve"][-1][1] == names["result"].eval_accuracy
    assert names["check"].verdict == "POLICY"
    assert names["log"].best_accuracy == names["result"].eval_accuracy
    assert Path("five.svg").stat().st_size > 1000


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'mxnet', 'pydantic', 'typer', 'matplotlib'} & set(sys.modules)"
    code = f"import sys, rn50; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_room_is_called_like_its_function_and_stays_a_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert callable(rn50.launch)
    assert imported_by_its_path.__name__ == "rn50.launch.job"
    monkeypatch.setattr("rn50.launch.schedulers.SCHEDULERS", ())
    from rn50.launch import schedulers

    assert not schedulers.SCHEDULERS
    monkeypatch.undo()
    assert schedulers.SCHEDULERS is SCHEDULERS
    answer = rn50.predict("abci_2048_open", gpus=1024)
    assert answer.job.gpus == 1024
    choices = {"epochs": None, "groups": None, "precision": None}
    assert rn50.predict("abci_2048_open", gpus=1024, **choices).job == answer.job


def test_wrong_input_is_the_commands_error(tmp_path: Path) -> None:
    with refused("sed: unknown key"):
        rn50.load_config("smoke", "sed=1")
    with refused("a folder expected, found none"):
        rn50.read_run(tmp_path / "none")
    with refused("CONFIG"):
        rn50.predict()
    with refused("--gpus: 1 to 1048576 expected, found 0"):
        rn50.predict("abci_2048_open", gpus=0)
    with refused("--batch-per-gpu: 1 to 160145 on 8 GPUs expected .* found -5"):
        rn50.predict(system="dgx1", gpus=8, batch_per_gpu=-5)
    with refused("a new folder expected"):
        rn50.launch("smoke", out=tmp_path)


def typed() -> None:
    """For mypy, which sees the functions where the rooms of their names stand too."""
    assert_type(rn50.launch("smoke"), Result)
    assert_type(rn50.predict("smoke"), Prediction)
    assert_type(rn50.load_config("smoke"), Loaded)


def test_its_types_are_seen_from_outside(root: Path) -> None:
    assert (root / "rn50/py.typed").is_file()
    assert 'rn50 = ["py.typed"]' in (root / "pyproject.toml").read_text()
