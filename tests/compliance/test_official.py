from pathlib import Path

import pytest

from rn50.compliance.official import check_officially
from rn50.config import benchmark
from rn50.config.load import load
from rn50.logging.records import Verdict
from rn50.train.network.build import build_network, trainable
from tests.compliance.log_text import good_run, official, write
from tests.logging.test_mlperf_log import full_log

RULESETS = benchmark.RULESETS[1:]
"""0.6.0 has line tokens of its own (:::MLL), which are not written."""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def written(folder: Path, config: str, *overrides: str, accuracy: float = 0.8) -> Path:
    """A log as a run writes it."""
    run = load(config, ["seed=1", *overrides]).run
    path = folder / "log.txt"
    net = build_network(run.model, run.data.classes, crop_px=run.data.crop_px)
    full_log(path, run, reached=accuracy, weights=[p.name for p in trainable(net)])
    return path


@pytest.mark.parametrize("config", ["quick", "dgx1_8"])  # one with SGD, one with LARS
@pytest.mark.parametrize("ruleset", RULESETS)
def test_a_good_log_passes(tmp_path: Path, config: str, ruleset: str) -> None:
    assert official(written(tmp_path, config, f"ruleset={ruleset}"), ruleset) == "PASS"


def test_an_open_log_passes_by_the_pinned_version(tmp_path: Path, root: Path) -> None:
    verdict = check_officially(written(tmp_path, "sony_3456"), "4.0.0")
    pinned = verdict.version
    assert verdict == Verdict("PASS", "", pinned, "4.0.0")
    assert f"mlperf-logging=={pinned}\n" in (root / "requirements.txt").read_text()


def test_a_missed_target_fails(tmp_path: Path) -> None:
    verdict = check_officially(written(tmp_path, "quick", accuracy=0.7589), "4.0.0")
    assert verdict.verdict == "FAIL"
    assert any("eval_accuracy" in message for message in verdict.messages)


@pytest.mark.parametrize(
    ("name", "ruleset", "reason"),
    [
        ("nowhere.txt", "4.0.0", "No such file"),
        (".", "4.0.0", ""),
        ("log.txt", "9.9.9", "9.9.9"),
    ],
)
def test_no_verdict_on_the_log_is_a_crash(
    tmp_path: Path, name: str, ruleset: str, reason: str
) -> None:
    (tmp_path / "log.txt").write_text("hello\n")
    verdict = check_officially(tmp_path / name, ruleset)
    assert verdict.verdict == "CRASH"
    (message,) = verdict.messages
    assert reason in message


def test_the_checker_reads_relative_paths_imports_nothing_there_and_leaves_no_file(
    tmp_path: Path, empty_folder: Path
) -> None:
    wrong = [empty_folder / f"{name}.py" for name in ("json", "mlperf_logging", "yaml")]
    for path in wrong:
        path.write_text("raise SystemExit('the wrong module')\n")
    write(tmp_path / "log.txt", good_run())
    assert check_officially(Path("../log.txt"), "4.0.0").verdict == "PASS"
    assert sorted(empty_folder.iterdir()) == wrong
    assert sorted(tmp_path.iterdir()) == [empty_folder, tmp_path / "log.txt"]
