from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rn50.config.load import load
from rn50.config.machine import System
from rn50.config.names import PRESETS, list_presets
from rn50.config.plan import build_plan

SYSTEMS = sorted((PRESETS / "system").glob("*.yaml"))


@pytest.mark.parametrize("name", list_presets())
def test_preset_loads_and_can_be_planned(name: str) -> None:
    loaded = load(name)
    assert loaded.run.name == name
    assert build_plan(loaded.run).total_steps > 0


@pytest.mark.parametrize("path", SYSTEMS, ids=lambda path: path.stem)
def test_a_system_file_speaks_of_the_machine_alone(path: Path) -> None:
    keys = set(YAML(typ="safe", pure=True).load(path))
    assert keys
    assert keys <= {*System.model_fields, "base"}


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_takes_the_counts_of_its_set(name: str) -> None:
    """ImageNet's, or those of the set that it draws."""
    data = load(name).run.data
    found = (data.train_samples, data.eval_samples, data.classes)
    drawn = data.synthetic
    assert found == (
        (1_281_167, 50_000, 1000)
        if drawn is None
        else (drawn.train_samples, drawn.eval_samples, drawn.classes)
    )
