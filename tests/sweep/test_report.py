"""What a sweep leaves behind, from a journal of known trials."""

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


OTHERS = {TrialState.FAIL: "no <disk>", TrialState.PRUNED: "accuracy 0.1 after epoch 2"}


def searched(
    folder: Path, measure: str, values: list[float]
) -> tuple[LoadedSweep, Study]:
    folder.mkdir()
    path = folder / "sweep.yaml"
    path.write_text(TEXT.replace("MEASURE", measure))
    loaded = load_sweep(path)
    study = Study(loaded.sweep, folder, loaded.definition())
    for value in values:
        number = study.ask().number
        study.end(number, TrialState.COMPLETE, value)
    for state, reason in OTHERS.items():
        number = study.ask().number
        study.end(number, state, reason=reason)
    return loaded, study


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "best"), [("epochs_to_target", 2), ("accuracy", 0)]
)
def test_the_best_is_a_preset_that_the_check_accepts(
    tmp_path: Path, measure: str, best: int
) -> None:
    folder = tmp_path / "a"
    loaded, study = searched(folder, measure, [9.0, 5.0, 4.0, 6.0, 8.0])
    results = write_results(loaded, study, folder)
    assert results["best"] == best
    preset = load(folder / "best.yaml")
    run = preset.run
    drawn = study.trials[best].params
    assert run.optimizer.base_lr == drawn["optimizer.base_lr"]
    assert run.batch.per_rank == drawn["batch.per_rank"]
    assert str(run.schedule.warmup) == f"{drawn['schedule.warmup']!r} epochs"
    assert run.seed is None
    assert run.name == "a_best"
    assert check_config(preset).verdict == "PASS"
    assert run.division == "open"  # the closed one wants base LRs of 0.001 k
    first, second, *_ = (folder / "best.yaml").read_text().splitlines()
    assert first.startswith(f"# Best of sweep a: trial {best}, ")
    assert second.startswith("# Open division: the closed one refuses it: ")
    assert read_json(folder / "trials.json") == results


def test_the_table_has_the_best_first_and_every_reason(tmp_path: Path) -> None:
    for measure, order in (("epochs_to_target", "10234"), ("accuracy", "20134")):
        loaded, study = searched(tmp_path / measure, measure, [5.0, 4.0, 7.0])
        results = write_results(loaded, study, tmp_path / measure)
        header, rows = table(results)
        assert "".join(row[0] for row in rows) == order
        assert {len(row) for row in rows} == {len(header)}
        reasons = [row[-1] for row in rows[3:]]
        assert reasons == list(OTHERS.values())
