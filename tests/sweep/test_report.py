"""What a sweep leaves behind, from a journal of known trials."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest
from optuna.trial import TrialState

from rn50.compliance.config_rules import check_config
from rn50.config.load import load
from rn50.sweep.definition import LoadedSweep, load_sweep
from rn50.sweep.report import table, write_results
from rn50.sweep.study import Study
from tests.conftest import read_json

TEXT = """
name: a
config: smoke
parameters:
  optimizer.base_lr: {log: [0.01, 1]}
  schedule.warmup: {linear: [0.5, 2], unit: epochs}
  batch.per_rank: {choice: [5, 10]}
objective: MEASURE
sampler: random
"""


def searched(
    folder: Path, measure: str, values: list[float]
) -> tuple[LoadedSweep, Study]:
    folder.mkdir()
    path = folder / "sweep.yaml"
    path.write_text(TEXT.replace("MEASURE", measure))
    loaded = load_sweep(path)
    study = Study(loaded.sweep, folder, loaded.definition())
    for value in values:
        study.end(study.ask().number, TrialState.COMPLETE, value=value)
    study.end(study.ask().number, TrialState.FAIL, reason="no <disk>")
    study.end(
        study.ask().number, TrialState.PRUNED, reason="accuracy 0.1 after epoch 2"
    )
    return loaded, study


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "best"), [("epochs_to_target", 2), ("accuracy", 0)]
)
def test_the_best_is_a_preset_that_the_check_accepts(
    tmp_path: Path, measure: str, best: int
) -> None:
    loaded, study = searched(tmp_path / "a", measure, [9.0, 5.0, 4.0, 6.0, 8.0])
    found = write_results(loaded, study, tmp_path / "a")
    assert found["best"] == best
    preset = load(tmp_path / "a" / "best.yaml")
    wanted = study.trials[best].params
    assert preset.run.optimizer.base_lr == wanted["optimizer.base_lr"]
    assert preset.run.batch.per_rank == wanted["batch.per_rank"]
    assert str(preset.run.schedule.warmup) == f"{wanted['schedule.warmup']!r} epochs"
    assert (preset.run.seed, preset.run.name) == (None, "a_best")
    assert check_config(preset).verdict == "PASS"
    assert preset.run.division == "open"  # the closed one wants base LRs of 0.001 k
    lines = (tmp_path / "a" / "best.yaml").read_text().splitlines()
    header = "\n".join(takewhile(lambda line: line.startswith("# "), lines))
    assert f"trial {best}" in header
    assert "Open division: the closed one refuses it: optimizer.base_lr" in header
    assert read_json(tmp_path / "a" / "trials.json") == found


def test_the_table_has_the_best_first_and_every_reason(tmp_path: Path) -> None:
    for measure, order in (("epochs_to_target", "10234"), ("accuracy", "20134")):
        loaded, study = searched(tmp_path / measure, measure, [5.0, 4.0, 7.0])
        header, rows = table(write_results(loaded, study, tmp_path / measure))
        assert "".join(row[0] for row in rows) == order
        assert len({len(header), *map(len, rows)}) == 1
        assert [row[-1] for row in rows[3:]] == [
            "no <disk>",
            "accuracy 0.1 after epoch 2",
        ]
