"""The container against the program outside it; `make container-test` builds the image first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rn50.compliance.official import check_officially
from rn50.logging.parse import read_events
from tests.conftest import Rn50

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
    return [(event.key, event.value, event.metadata) for event in read_events(log)]


class Box:
    """Containers of the image with folders mounted over /data and /results, without a network."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.results = folder / "results"
        for mounted in (self.data, self.results):
            mounted.mkdir()
            mounted.chmod(0o777)  # the container's user is not ours
        self.mounts = ["-v", f"{self.data}:/data", "-v", f"{self.results}:/results"]

    def run(
        self, *arguments: str, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess:
        return subprocess.run(
            [
                ENGINE,
                "run",
                "--rm",
                "--network=none",
                *self.mounts,
                *options,
                IMAGE,
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def newest(self, name: str = "smoke") -> Path:
        return max(
            self.results.glob(f"{name}/*"), key=lambda path: path.stat().st_mtime_ns
        )


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    return Box(tmp_path_factory.mktemp("box"))


@pytest.fixture
def outside(rn50: Rn50, box: Box, smoke_data: Path) -> Iterator[Path]:
    """The folder of a run outside the container."""
    done = rn50(
        "launch",
        "smoke",
        "seed=1",
        f"data.path={smoke_data}",
        f"system.results={rn50.results}",
        "data.synthetic={}",  # so that another machine can draw it
    )
    assert done.returncode == 0, done.stderr
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
    then, now = (
        json.loads((folder / "result.json").read_text()) for folder in (outside, inside)
    )
    for key in ("weights_digest", "eval_accuracy", "epochs", "config_sha256"):
        assert key in now
        if key != "config_sha256":  # the folders differ
            assert now[key] == then[key]


def test_any_user_and_a_read_only_image_will_do(box: Box) -> None:
    done = box.run(
        "smoke",
        "seed=1",
        "name=other_user",
        options=("--user=4321:4321", "--read-only", "--tmpfs=/tmp"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert box.newest("other_user").stat().st_uid == 4321
    assert (box.newest("other_user") / "report.html").is_file()


def test_the_default_user_is_not_root_and_there_is_no_compiler(box: Box) -> None:
    done = box.run(
        "-c",
        "id -u; command -v g++ gcc make nvcc; touch /opt/rn50/config/x",
        options=("--entrypoint=bash",),
    )
    assert done.stdout.split() == ["1000"]
    assert "Permission denied" in done.stderr


def test_nothing_that_a_reader_keeps_in_the_checkout_gets_into_an_image(
    root: Path, tmp_path: Path
) -> None:
    kept_out = [
        "data/mine/train.rec",
        "data/photo.jpg",
        "results/smoke/result_0.txt",
        "key.pem",
    ]
    for name in ("data/pack.py", "config/mine.yaml", *kept_out):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    shutil.copy(root / ".dockerignore", tmp_path)
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY . /context\n")
    image = f"{IMAGE}-context"
    subprocess.run(
        [
            ENGINE,
            "build",
            "--network=host",
            "-f",
            tmp_path / "Dockerfile",
            "-t",
            image,
            tmp_path,
        ],
        check=True,
    )
    find = [ENGINE, "run", "--rm", "--entrypoint=find", image, "/context", "-type", "f"]
    there = subprocess.run(
        find, capture_output=True, text=True, check=True
    ).stdout.split()
    subprocess.run([ENGINE, "rmi", image], check=True)
    assert {*there} == {"/context/data/pack.py", "/context/config/mine.yaml"}


def test_stopping_the_container_stops_the_run_and_says_so_in_the_log(box: Box) -> None:
    name = f"rn50-{uuid.uuid4().hex[:12]}"
    started = subprocess.Popen(
        [
            ENGINE,
            "run",
            "--rm",
            "--network=none",
            "--name",
            name,
            *box.mounts,
            IMAGE,
            "smoke",
            "name=stopped",
            "eval.target=0.999",
            "schedule.length=400 epochs",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith("  epoch"):
            break
    begun = time.monotonic()
    subprocess.run(
        [ENGINE, "stop", "-t", "60", name],
        capture_output=True,
        check=True,
    )
    _, err = started.communicate(timeout=60)
    assert time.monotonic() - begun < 60  # not killed
    assert started.returncode not in (0, 137), err
    result = json.loads((box.newest("stopped") / "result.json").read_text())
    assert result["status"] == "aborted"
    last = read_events(box.newest("stopped") / "result_0.txt")[-1]
    assert (last.key, last.metadata.get("status")) == ("run_stop", "aborted")
