"""The prediction in a report: whose recipe, on which machine, and when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load, load_system
from rn50.report.prediction import prediction_section
from rn50.report.run_folder import read_subjects
from rn50.report.write import write_report
from rn50.scaling.predict import job_of_config, on_system, predict
from tests.compliance.log_text import good_run, write
from tests.report.conftest import Chromium
from tests.report.test_report import Shape, assert_inert


def folder_of(tmp_path: Path, preset: str) -> Path:
    write(tmp_path / "result_0.txt", good_run())
    (tmp_path / "config.yaml").write_text(load(preset).to_yaml())
    return tmp_path


@pytest.mark.slow
def test_a_run_on_a_described_machine_is_predicted_on_it(tmp_path: Path) -> None:
    page = write_report(folder_of(tmp_path, "dgxa100_n128")).read_text()
    text = " ".join(Shape(page).text.split())
    expected = predict(job_of_config(load("dgxa100_n128").run))
    assert "would take on NVIDIA DGX A100, 1,024 x 35 images" in text
    assert f"{expected.step.total_s * 1e3:.2f} ms" in text
    assert f"{expected.run.total_s:.1f} s" in text
    assert f"{expected.step.backward_s * 1e3:.3f} ms" in text
    for axis in ("time to train, s", "message, MB", "ms from the start of the step"):
        assert axis in text
    assert_inert(page)


@pytest.mark.slow
def test_the_same_recipe_on_another_machine(tmp_path: Path) -> None:
    (subject,) = read_subjects(folder_of(tmp_path, "dgxa100_n128"))
    there = prediction_section(subject, "abci")
    assert there is not None
    assert (there.machine, there.size) == ("ABCI", "1,024 x 35 images")
    smaller = prediction_section(subject, "abci", gpus=16)
    assert smaller is not None
    assert smaller.size == "16 x 35 images"
    shares = [float(share.rstrip("%")) for _, _, share in smaller.step]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["quick", "smoke", "you_alexnet_32k"])
def test_other_recipes_have_no_outlook_unless_asked_for(tmp_path: Path, preset: str) -> None:
    (subject,) = read_subjects(folder_of(tmp_path, preset))
    assert prediction_section(subject) is None
    with pytest.raises(UserError, match=rf"^{preset}: ResNet-50 v1.5 at 224 px"):
        prediction_section(subject, "abci")
    page = write_report(tmp_path).read_text()
    assert 'id="outlook"' not in page


def test_a_bare_log_needs_its_number_of_accelerators(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    write(log, good_run())
    (subject,) = read_subjects(log)
    assert prediction_section(subject) is None
    with pytest.raises(UserError, match=r"--gpus expected beside it"):
        prediction_section(subject, "dgxa100")
    with pytest.raises(UserError, match=r"a divisor of the log's global batch"):
        prediction_section(subject, "dgxa100", 7)
    found = prediction_section(subject, "dgxa100", 8)
    assert found is not None
    seen = [row[0] for row in found.rows if row[3]]
    assert seen == ["step", "training rate", "epochs", "time to train"]


def test_a_recipe_keeps_its_ranks_on_another_machine() -> None:
    run = load("abci_2048_open").run
    moved = on_system(run, load_system("dgxa100"))
    assert (moved.system.nodes, moved.system.ranks_per_node) == (256, 8)
    assert predict(job_of_config(moved)).step.total_s < predict(job_of_config(run)).step.total_s
    with pytest.raises(UserError, match=r"a multiple of 8 \(a node\) expected, found 12"):
        on_system(run, load_system("dgxa100"), 12)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_the_prediction_in_a_browser(chromium: Chromium, tmp_path: Path, width: int) -> None:
    page = write_report(folder_of(tmp_path, "abci_2048_open"))
    chromium.open(page, width=width, dark=width == 400)
    assert chromium.value("document.documentElement.scrollWidth") == width
    assert "2,048 x 42 images" in chromium.value("document.body.innerText")
    assert chromium.messages == []
    assert len(chromium.requests) == 1
