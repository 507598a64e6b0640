"""`rn50 log check|score|rules` and `rn50 config check`: output, JSON, exit codes."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from typer.testing import Result

from tests.compliance.log_text import Edit, drop, good_run, meta, put, write
from tests.compliance.test_submission import submission
from tests.conftest import Rn50, invoke
from tests.waiting import wait_until


def checked(*arguments: object) -> Result:
    return invoke("log", "check", "--no-official", *arguments)


def log(
    folder: Path, edit: Edit = lambda run: None, name: str = "result_0.txt"
) -> Path:
    run = good_run()
    edit(run)
    return write(folder / name, run)


@pytest.mark.parametrize(
    ("edit", "arguments", "verdict", "code"),
    [
        (lambda run: None, [], "PASS", 0),
        (put("eval_samples", 100), [], "POLICY", 0),
        (put("eval_samples", 100), ["--strict"], "POLICY", 1),
        (meta("run_stop", "status", "aborted"), [], "FAIL", 1),
        (lambda run: run.clear(), [], "CANNOT_READ", 2),
        (lambda run: None, ["--ruleset", "0.6.0"], "CANNOT_READ", 2),
    ],
)
def test_verdict_and_exit_code(
    tmp_path: Path, edit: Edit, arguments: list[str], verdict: str, code: int
) -> None:
    path = log(tmp_path, edit)
    done = checked(path, *arguments)
    assert done.exit_code == code
    assert done.stdout.startswith(f"{verdict} {path}: ")
    done = checked("--json", path, *arguments)
    assert done.exit_code == code
    content = json.loads(done.stdout)
    assert content["verdict"] == verdict
    assert {"verdict", "cause", "ruleset", "official", "findings"} <= set(content)
    for finding in content["findings"]:
        keys = {"id", "severity", "line", "expected", "found", "message"}
        assert keys <= set(finding)


def test_the_official_verdict_stands_beside_ours(tmp_path: Path) -> None:
    path = log(tmp_path, meta("run_stop", "status", "aborted"))
    done = invoke("log", "check", path)
    assert "official checker 4.1.68: PASS" in done.stdout
    assert "MLP305 run-not-successful" in done.stdout
    done = invoke("log", "check", "--json", path)
    content = json.loads(done.stdout)
    assert content["official"] == {"verdict": "PASS", "version": "4.1.68"}


def test_a_folder_is_a_submission(tmp_path: Path) -> None:
    submission(tmp_path)
    for number, code in ((3, 0), (4, 1)):  # one of five may fail
        log(tmp_path, drop("run_stop"), f"result_{number}.txt")
        assert checked(tmp_path).exit_code == code


def test_config_check() -> None:
    done = invoke("config", "check", "abci_2048_closed_64k", "batch.per_rank=42")
    assert done.exit_code == 1
    assert done.stdout.startswith("FAIL abci_2048_closed_64k: ")
    done = invoke("config", "check", "dgxa100_8", "optimizer.momentum=0.95", "--strict")
    assert done.exit_code == 1
    done = invoke("config", "check", "--json", "abci_2048_open")
    content = json.loads(done.stdout)
    assert done.exit_code == 0
    assert content["verdict"] == "PASS"
    assert len(content["findings"]) == 10


def test_an_interrupt_ends_the_check(rn50: Rn50, tmp_path: Path) -> None:
    """It was swallowed, and the check began again. The log is large: it is being read when Ctrl-C
    comes, which a terminal sends to the whole group."""
    path = log(tmp_path)
    with path.open("a") as file:
        file.write("a line that is no record\n" * 5_000_000)
    process = rn50.start(
        "log", "check", "--official", str(path), start_new_session=True
    )
    child = psutil.Process(process.pid)

    def is_reading() -> bool:
        return any(file.path == str(path) for file in child.open_files())

    wait_until(is_reading)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.startswith("rn50: stopped by Ctrl-C; start again with: ")
    assert err.endswith(f"rn50 log check --official {path}\n")
    assert err.count("\n") == 1
