"""Folders that somebody else made: what their side files may and may not do to who reads them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.host.errors import UserError
from rn50.logging import metrics_read
from rn50.logging.metrics_read import read_metrics
from rn50.report.html import write_report
from rn50.report.run_records import RunRecords, read_run_records
from tests.compliance.log_text import good_run, write
from tests.compliance.test_submission import package
from tests.conftest import invoke, refused, write_json
from tests.report.conftest import write_config

pytestmark = pytest.mark.usefixtures("alarm")

SECRET = "correct-horse-battery-staple"
SIDE_FILES = (
    "config.yaml",
    "environment.json",
    "origins.json",
    "result.json",
    "metrics.jsonl",
    "timeline.json",
    "scaling.json",
)
COMMANDS = (
    ("log", "report"),
    ("log", "compare"),
    ("log", "show"),
    ("log", "check", "--no-official"),
    ("log", "score"),
)

Command = tuple[str, ...]
Plant = Callable[[Path, Path], None]
"""(file to plant, file with a secret outside the folder)."""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Valid in each of the formats, so that nothing but the place refuses it."""
    path = tmp_path / "home" / "secret"
    write_json(path, {"name": SECRET, "packages": {"x": SECRET}, "kind": "train"})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder, whole."""
    path = tmp_path / "theirs"
    write(path / "result_0.txt", good_run())
    write_config(path, "seed=1")
    write_json(path / "environment.json", {"packages": {"mxnet": "1.9.1"}})
    return path


def link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def fifo(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path, secret: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path, secret: Path) -> None:
    path.touch()
    os.truncate(path, 6 << 30)


def deep(path: Path, secret: Path) -> None:
    path.write_text('{"a":' * 100_000)


PLANTS = (link, fifo, zeros, sparse, deep)


def plant_all(folder: Path, secret: Path, plant: Plant) -> None:
    """Put one in the place of each side file."""
    for name in SIDE_FILES:
        (folder / name).unlink(missing_ok=True)
        plant(folder / name, secret)


@pytest.mark.parametrize("plant", PLANTS)
def test_no_side_file_gets_more_than_a_note(
    folder: Path, secret: Path, plant: Plant
) -> None:
    plant_all(folder, secret, plant)
    read_folder = read_run_records(folder)
    assert read_folder._replace(notes=()) == RunRecords(folder, spans=[])
    noted = {note.partition(":")[0] for note in read_folder.notes}
    lenient = {"metrics.jsonl"} if plant is deep else set()  # its lines are torn
    assert set(SIDE_FILES) - {"scaling.json"} - noted == lenient
    assert SECRET not in " ".join(read_folder.notes)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("plant", [link, fifo, deep])
def test_each_command_ends_and_tells_nothing(
    folder: Path, secret: Path, command: Command, plant: Plant
) -> None:
    plant_all(folder, secret, plant)
    done = invoke(*command, folder)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    page = folder / "report.html"
    assert page.is_file() == (command[-1] == "report")
    said = done.output + (page.read_text() if page.is_file() else "")
    assert SECRET not in said
    assert "Traceback" not in said


def test_a_report_is_not_written_through_a_link(folder: Path, secret: Path) -> None:
    content = secret.read_bytes()
    (folder / "report.html").symlink_to(secret)
    with refused(r"^\S+/report.html: no link out of its folder expected"):
        write_report(folder)
    assert secret.read_bytes() == content


@pytest.mark.parametrize(
    "base",
    [
        "../home/secret",
        "/etc/passwd",
        "../home/base.yaml",
        "inner.yaml",
        "quick.yaml",
        "~/x",
    ],
)
def test_the_base_of_a_foreign_config_is_no_file(
    folder: Path, secret: Path, base: str
) -> None:
    for name in ("../home/base.yaml", "inner.yaml", "quick.yaml"):
        (folder / name).write_text(f"name: {SECRET}\n")
    (folder / "config.yaml").write_text(f"base: {base}\n")
    read_folder = read_run_records(folder)
    assert read_folder.config is None
    (note,) = read_folder.notes
    assert "config.yaml: left out: " in note
    assert "none in a recorded config" in note
    assert SECRET not in note
    assert "root:" not in note


def test_links_to_runs_elsewhere_are_not_followed(folder: Path, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "results/local").mkdir(parents=True)
    (top / "run_0").symlink_to(folder)
    (top / "results/local/resnet").symlink_to(folder)
    (top / "run_1").mkdir()
    (top / "run_1/result_0.txt").symlink_to(folder / "result_0.txt")
    for command in COMMANDS:
        done = invoke(*command, top)
        assert isinstance(done.exception, UserError)
        assert "rn50" not in done.stdout


# --- metrics ------------------------------------------------------------------------------------


def lines(count: int) -> str:
    records = [{"kind": "train", "step": n, "loss": 1.5} for n in range(count)]
    records.append({"kind": "eval", "epoch": 1, "accuracy": 0.5})
    return "".join(json.dumps(record) + "\n" for record in records)


def test_a_short_series_is_whole(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(lines(100) + '{"kind": "tr')
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [record.get("step") for record in records] == [*range(100), None]


def test_a_record_has_numbers_alone(tmp_path: Path) -> None:
    """Reports draw them, and texts or lists could be of any size."""
    record = {"kind": "train", "loss": 1.5, "text": "x", "list": [1], "huge": 10**40}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    (numbers,) = read_metrics(tmp_path / "metrics.jsonl")
    assert numbers == {"kind": "train", "loss": 1.5}


@pytest.mark.parametrize(
    "content",
    [
        lines(200),
        "{}\n" * 201,
        "x\n" * 201,
        json.dumps(dict.fromkeys(map(str, range(1001)), 1)),
    ],
    ids=["records", "empty", "torn", "names"],
)
def test_metrics_that_no_run_writes_are_a_note(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """64 MB of short records would take 1.5 GB, and as many lines that are none minutes."""
    monkeypatch.setattr(metrics_read, "MOST_RECORDS", 200)
    (folder / "metrics.jsonl").write_text(content)
    read_folder = read_run_records(folder)
    assert read_folder.metrics == ()
    (note,) = read_folder.notes
    assert "metrics.jsonl: left out: at most 200 records" in note
    (folder / "metrics.jsonl").write_text(lines(199))
    assert len(read_run_records(folder).metrics) == 200


def test_a_line_that_no_run_writes_is_torn(tmp_path: Path) -> None:
    """Parsed as JSON it would take 15 times as much."""
    record = json.dumps({"kind": "train", "text": "x" * 100_000})
    (tmp_path / "metrics.jsonl").write_text(f"{record}\n{lines(1)}")
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_too_many_logs_are_refused_before_any_is_read(
    tmp_path: Path, command: Command
) -> None:
    for number in range(201):
        (tmp_path / f"result_{number}.txt").touch()
    done = invoke(*command, tmp_path)
    assert isinstance(done.exception, UserError)
    assert "at most 200 logs expected, found 201" in str(done.exception)


def test_a_page_stays_small(folder: Path) -> None:
    """100,000 kinds of spans made a page of 21 MB."""
    spans = [{"ph": "X", "ts": n, "dur": 1, "name": f"n{n} x"} for n in range(5000)]
    write_json(folder / "timeline.json", {"traceEvents": spans})
    assert len(write_report(folder).read_text()) < 500_000


@pytest.mark.parametrize("plant", PLANTS)
def test_a_system_description_is_a_file_of_the_package(
    tmp_path: Path, secret: Path, plant: Plant
) -> None:
    """One that is none is as one that is missing; what a link leads to is not held to the log."""
    write_json(secret, {"division": SECRET, "number_of_nodes": SECRET})
    logs = package(tmp_path, runs=1)
    description = tmp_path / "us/systems/box.json"
    description.unlink()
    plant(description, secret)
    done = invoke("log", "check", "--no-official", logs)
    assert done.exit_code == 1
    assert "system description: no " in done.output
    assert SECRET not in done.output
