from pathlib import Path

import pytest

from rn50.config.load import load, load_system, system_yaml
from rn50.config.names import PRESETS, list_presets
from rn50.config.plan import build_plan

SYSTEMS = sorted((PRESETS / "system").glob("*.yaml"))


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_can_be_planned_and_reads_back_the_same(
    tmp_path: Path, name: str
) -> None:
    """Its counts are ImageNet's, or those of the set that it draws."""
    loaded = load(name, ["seed=3", "schedule.warmup=7 steps", "log.org=' #: on'"])
    data = loaded.run.data
    assert loaded.run.name == name
    assert build_plan(loaded.run).total_steps > 0
    images = (1_281_167, 50_000, 1000)
    if synthetic := data.synthetic:
        images = (synthetic.train_samples, synthetic.eval_samples, synthetic.classes)
    assert (data.train_samples, data.eval_samples, data.classes) == images
    (tmp_path / "saved.yaml").write_text(loaded.to_yaml())
    reloaded = load(tmp_path / "saved.yaml")
    assert reloaded.run == loaded.run
    assert reloaded.sha256 == loaded.sha256


@pytest.mark.parametrize("path", SYSTEMS, ids=lambda path: path.stem)
def test_a_machine_reads_back_the_same(path: Path, tmp_path: Path) -> None:
    """Also without what its file leaves at the default."""
    system = load_system(str(path))
    saved = tmp_path / "again.yaml"
    saved.write_text(system_yaml(system))
    assert load_system(str(saved)) == system


@pytest.mark.parametrize(
    "path", [*PRESETS.glob("*.yaml"), *SYSTEMS], ids=lambda path: path.stem
)
def test_the_first_line_of_a_file_is_whole_sentences(path: Path) -> None:
    """`rn50 config list` shows that line alone."""
    assert path.read_text().splitlines()[0].endswith(".")
