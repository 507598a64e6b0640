"""`rn50 submission`: the layout, the machine's page, and the official package checker's verdict."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from rn50.config.load import load
from tests.compliance.log_text import good_run, put, vary, write
from tests.conftest import read_json, write_file, write_json
from tests.faults.file_system import refusing

ENVIRONMENT = {
    "packages": {"mxnet-cu112": "1.9.1", "horovod": "0.28.1"},
    "gpus": {"driver": "535.129.03", "devices": ["NVIDIA A100-SXM4-80GB (8.0)"] * 8},
    "machine": {"host_processors_per_node": "2", "operating_system": "Debian 12"},
    "git": {"commit": "c0ffee", "modified": True},
}
OVERRIDES = ("division=open", "log.org=Example", "system.description.cooling=air")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's folder with five runs that differ in their seeds."""
    for number in range(5):
        run = tmp_path / f"job/run_{number}"
        loaded = load("dgxa100_8", [*OVERRIDES, f"seed={number}"])
        write_file(run / "config.yaml", loaded.to_yaml())
        write_json(run / "environment.json", ENVIRONMENT)
        log = good_run(division="open")
        vary(log, number)
        put("submission_org", "Example")(log)
        write(run / "result_0.txt", log)
    return tmp_path / "job"


def words(runs: Path, out: Path, org: str = "Example") -> list[str]:
    """The words of the command."""
    return ["submission", str(runs), "--org", org, "--out", str(out)]


def test_a_job_becomes_a_package_that_the_official_checker_passes(
    rn50: Any, job: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    printed = rn50.output(*words(job, out))
    package = out / "Example"
    system = "NVIDIA_DGX_A100_n1"
    results = package / "results" / system / "resnet"
    assert len(list(results.iterdir())) == 5
    for number in range(5):
        copied = results / f"result_{number}.txt"
        log = job / f"run_{number}/result_0.txt"
        assert copied.read_bytes() == log.read_bytes()
    page = read_json(package / f"systems/{system}.json")
    assert page["system_name"] == system
    assert page["cooling"] == "air"
    assert page["accelerator_model_name"] == "NVIDIA A100-SXM4-80GB"
    assert page["operating_system"] == "Debian 12"
    assert "empty: " in printed
    implementation = package / "benchmarks/resnet/implementations/rn50"
    assert (implementation / f"config_{system}.yaml").is_file()
    assert "commit c0ffee, with changes" in (implementation / "README.md").read_text()
    code = implementation / "code"
    assert (code / "rn50/train/loop.py").is_file()
    assert os.access(code / "scripts/setup.sh", os.X_OK)
    refusal = rn50.error(*words(job, out))
    assert "Example" in refusal


def test_a_terminal_is_asked_for_what_is_missing(
    rn50: Any, job: Path, tmp_path: Path
) -> None:
    """The file system has no modes."""
    ours, theirs = os.openpty()
    # the first field stays empty
    os.write(ours, b"\nfour fans\n" + 30 * b"\n" + b"\x04")
    no_modes = refusing(tmp_path, chmod="EPERM", fchmod="EPERM")
    process = rn50.start(*words(job, tmp_path), stdin=theirs, env=os.environ | no_modes)
    printed, questions = process.communicate()
    assert process.returncode == 0, questions
    second_process = rn50.start(*words(job, tmp_path / "2"), stdin=theirs)
    assert "rn50: stopped by" in second_process.communicate()[1]
    assert second_process.returncode == 130
    (page,) = (tmp_path / "Example/systems").iterdir()
    fields = re.findall(r"json: (\S+) \(Enter", questions)
    assert read_json(page)[fields[1]] == "four fans"
    assert f"empty: {', '.join([fields[0], *fields[2:]])};" in printed


def test_what_the_official_checker_finds_is_printed(
    rn50: Any, job: Path, tmp_path: Path
) -> None:
    for number in (1, 2):
        (job / f"run_{number}/result_0.txt").write_text("")
    done = rn50(*words(job, tmp_path / "out"))
    assert done.returncode == 1
    assert "2 files do not comply" in done.stderr


@pytest.mark.in_process
@pytest.mark.parametrize(
    ("runs", "org", "change", "expected"),
    [
        ("", "Other", (), "submission_org Other expected"),
        ("", "Example", ("optimizer.base_lr=3",), "optimizer.base_lr: "),
        ("run_0", "Example", (), "5 runs expected, found 1; rn50 submit CONFIG"),
        ("", "x/../../victim", ("log.org=x/../../victim",), "--org: "),
        ("", "..", ("log.org=..",), "--org: "),
    ],
)
def test_runs_that_make_no_submission_are_refused(
    runs: str, org: str, change: tuple[str, ...], expected: str, rn50: Any, job: Path
) -> None:
    of_one = load("dgxa100_8", [*OVERRIDES, "seed=4", *change])
    (job / "run_4/config.yaml").write_text(of_one.to_yaml())
    error = rn50.error(*words(job / runs, job / "out", org))
    assert expected in error
    assert not (job / "out").exists()


@pytest.mark.parametrize("name", ["result_0.txt", "config.yaml"])
def test_what_a_link_of_a_foreign_run_leads_to_is_not_published(
    name: str, rn50: Any, job: Path, tmp_path: Path
) -> None:
    file = job / f"run_0/{name}"
    file.rename(tmp_path / "secret")
    file.symlink_to(tmp_path / "secret")
    error = rn50.error(*words(job, tmp_path / "out"))
    assert f"{file}: " in error
    assert not list((tmp_path / "out").glob("*"))
