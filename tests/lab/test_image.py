"""The container against the program outside it; `make container-test` builds the image first."""

import os
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from rn50.compliance.official import check_officially
from rn50.logging.parse import read_events
from tests.conftest import Rn50, read_json, stop_of
from tests.waiting import finished

ENGINE = os.environ.get("RN50_ENGINE", "")
IMAGE = os.environ.get("RN50_IMAGE", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not IMAGE, reason="make container-test builds the image and runs this"
    ),
]


def contents(log: Path) -> list[tuple[object, ...]]:
    """All of a log but the clock: keys, values, and metadata with file and line."""
    events = read_events(log)
    return [(event.key, event.value, event.metadata) for event in events]


class Box:
    """Containers of the image with folders mounted over /data and /results, without a network."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.results = folder / "results"
        for mounted in (self.data, self.results):
            mounted.mkdir()
            mounted.chmod(0o777)  # the container's user is not ours
        self.options = ["--rm", "--network=none"]
        self.options += ["-v", f"{self.data}:/data", "-v", f"{self.results}:/results"]

    def command(self, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        return [ENGINE, "run", *self.options, *options, IMAGE, *arguments]

    def run(
        self, *arguments: str, options: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        return finished(self.command(*arguments, options=options), timeout=300)

    def newest(self, name: str = "smoke") -> Path:
        folders = self.results.glob(f"{name}/*")
        return max(folders, key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    return Box(tmp_path_factory.mktemp("box"))


@pytest.fixture
def outside(rn50: Rn50, box: Box, smoke_data: Path) -> Path:
    """The folder of a run outside the container."""
    settings = (f"data.path={smoke_data}", f"system.results={rn50.results}")
    rn50.output("launch", "smoke", "seed=1", *settings, "data.synthetic={}")
    return rn50.run_folder()


def test_the_log_is_the_one_from_outside(box: Box, outside: Path) -> None:
    """Every event, key, value and order, the accuracy among them; and every bit of the weights."""
    done = box.run("smoke", "seed=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RESULT success" in done.stdout
    assert "official_checker=PASS(4.0.0)" in done.stdout
    inside = box.newest()
    assert contents(inside / "result_0.txt") == contents(outside / "result_0.txt")
    assert check_officially(inside / "result_0.txt", "4.0.0").messages == ()
    outside_result = read_json(outside / "result.json")
    inside_result = read_json(inside / "result.json")
    for key in ("weights_digest", "eval_accuracy", "epochs"):
        assert inside_result[key] == outside_result[key]


def test_any_user_and_a_read_only_image_will_do(box: Box) -> None:
    options = ("--user=4321:4321", "--read-only", "--tmpfs=/tmp")
    done = box.run("smoke", "seed=1", "name=other_user", options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert box.newest("other_user").stat().st_uid == 4321
    assert (box.newest("other_user") / "report.html").is_file()


def test_the_default_user_is_not_root_and_there_is_no_compiler(box: Box) -> None:
    script = "id -u; command -v g++ gcc make nvcc; touch /opt/rn50/config/x"
    done = box.run("-c", script, options=("--entrypoint=bash",))
    assert done.stdout.split() == ["1000"]
    assert "Permission denied" in done.stderr


def test_stopping_the_container_stops_the_run_and_says_so_in_the_log(box: Box) -> None:
    name = f"rn50-{uuid.uuid4().hex[:12]}"
    settings = ("name=stopped", "eval.target=0.999", "schedule.length=400 epochs")
    started = subprocess.Popen(
        box.command("smoke", *settings, options=("--name", name)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith("  epoch"):
            break
    begun_s = time.monotonic()
    finished([ENGINE, "stop", "-t", "60", name], check=True)
    _, err = started.communicate(timeout=60)
    assert time.monotonic() - begun_s < 60  # not killed
    assert started.returncode not in (0, 137), err
    folder = box.newest("stopped")
    assert read_json(folder / "result.json")["status"] == "aborted"
    assert stop_of(folder) == "aborted"
