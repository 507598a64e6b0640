from pathlib import Path

import pytest

from rn50.compliance.official import Official, check_officially
from rn50.config import benchmark
from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.logging.mlperf import MLPerfLog
from rn50.train.networks import build_network, trainable

RULESETS = benchmark.RULESETS[1:]
"""0.6.0 has line tokens of its own (:::MLL), which are not written."""
CLOSED = ["quick", "dgx1_8"]  # one with SGD, one with LARS


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def check_run(folder: Path, config: str, *overrides: str, accuracy: float = 0.8) -> Official:
    """The checker's verdict on a log of one block, as the class writes it."""
    run = load(config, ["seed=1", *overrides]).run
    path = folder / "log.txt"
    log = MLPerfLog(path)
    log.submission(run)
    log.cache_clear()
    log.init_start()
    net = build_network(run.model, run.data.classes, crop_px=run.data.crop_px)
    log.hyperparameters(run, build_plan(run), [p.name for p in trainable(net)])
    log.init_stop()
    log.run_start(run)
    log.block_start(1, 1)
    log.epoch_start(1)
    log.epoch_stop(1)
    log.eval_start(1)
    log.eval_stop(1)
    log.eval_accuracy(1, accuracy)
    log.block_stop(1)
    log.run_stop(success=accuracy >= run.eval.target)
    return check_officially(path, run.ruleset)


@pytest.mark.slow
@pytest.mark.parametrize("config", CLOSED)
@pytest.mark.parametrize("ruleset", RULESETS)
def test_a_good_log_passes(tmp_path: Path, config: str, ruleset: str) -> None:
    official = check_run(tmp_path, config, f"ruleset={ruleset}")
    assert official.messages == ()
    assert official.verdict == "PASS"
    assert official.ruleset == ruleset


def test_an_open_log_passes(tmp_path: Path) -> None:
    assert check_run(tmp_path, "abci_2048_open").verdict == "PASS"


@pytest.mark.parametrize("config", CLOSED)
@pytest.mark.parametrize("accuracy", [0.7589, 75.9])
def test_a_missed_target_fails(tmp_path: Path, config: str, accuracy: float) -> None:
    official = check_run(tmp_path, config, accuracy=accuracy)
    assert official.verdict == "FAIL"
    assert any("eval_accuracy" in message for message in official.messages)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\xff\xfe\x00", b":::MLLOG {\n"])
def test_what_is_no_log_fails_without_an_exception(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(content)
    assert check_officially(path, "4.0.0").verdict in ("FAIL", "CRASH")


@pytest.mark.parametrize(
    ("name", "ruleset", "told"),
    [("nowhere.txt", "4.0.0", "No such file"), (".", "4.0.0", ""), ("log.txt", "9.9.9", "9.9.9")],
)
def test_no_verdict_on_the_log_is_a_crash(
    tmp_path: Path, name: str, ruleset: str, told: str
) -> None:
    (tmp_path / "log.txt").write_text("hello\n")
    official = check_officially(tmp_path / name, ruleset)
    assert official.verdict == "CRASH"
    assert len(official.messages) == 1
    assert told in official.messages[0]


def test_the_checker_leaves_no_file_and_reads_relative_paths(
    tmp_path: Path, empty_folder: Path
) -> None:
    assert check_run(tmp_path, "quick").verdict == "PASS"
    assert check_officially(Path("../log.txt"), "4.0.0").verdict == "PASS"
    assert list(empty_folder.iterdir()) == []
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["here", "log.txt"]


def test_modules_of_the_current_folder_are_not_imported(tmp_path: Path, empty_folder: Path) -> None:
    for name in ("yaml", "json", "mlperf_logging"):
        (empty_folder / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    assert check_run(tmp_path, "quick").verdict == "PASS"


def test_the_version_is_the_pinned_one(tmp_path: Path) -> None:
    pinned = (Path(__file__).resolve().parents[2] / "requirements.txt").read_text()
    official = check_run(tmp_path, "quick")
    assert f"mlperf-logging=={official.version}\n" in pinned
