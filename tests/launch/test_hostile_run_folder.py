"""Folders of runs made by somebody else: nothing outside is read, written, removed, waited for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.config.atomic import write_own
from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.recorded import load_recorded
from rn50.launch.ending import read_standing
from rn50.launch.failure import read_failures
from rn50.launch.resume import LOG, METRICS
from rn50.launch.run import close_result, save_config, warnings_in, write_result
from rn50.launch.submit import last_result
from rn50.launch.supervisor import run_watched
from rn50.logging.metrics import Metrics
from rn50.logging.mlperf import MLPerfLog, last_stamp_unix_s
from rn50.sweep.trial import read_end
from rn50.train import checkpoint
from rn50.train.repeated import last_log_point, steps_repeated, stopped_at
from tests.train.test_checkpoint import CONFIG, arrays, meta

pytestmark = pytest.mark.usefixtures("alarm")

WRITTEN = (
    *("config.yaml", "origins.json", "environment.json", "result_0.txt", "metrics.jsonl"),
    *("result.json", "timeline.json", "stderr.log", "report.html", "failure_0.json", "resume_from"),
)
"""What launcher, ranks and job scripts write in a run's folder."""
Plant = Callable[[Path, Path], object]
PLANTED: dict[str, Plant] = {
    "link": lambda path, outside: path.symlink_to(outside / "secret"),
    "dangling": lambda path, outside: path.symlink_to(outside / "new"),
    "zeros": lambda path, _: path.symlink_to("/dev/zero"),
    "fifo": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """The user's own files."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text('{"status": "success", "a": "s3cret"}\n' * 40)
    (folder / ".mine.partial-1").write_text("kept")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that can be gone on with."""
    folder = tmp_path / "run"
    (folder / "checkpoint").mkdir(parents=True)
    checkpoint.write(folder / "checkpoint" / checkpoint.file_name(7), meta(), arrays())
    (folder / LOG).write_text(("l" * 49 + "\n") * 4)
    (folder / METRICS).write_text(("m" * 49 + "\n") * 4)
    save_config(load(*CONFIG), folder)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo"])
def test_nothing_is_written_through_what_is_planted(
    tmp_path: Path, outside: Path, kind: str
) -> None:
    """Whoever plants it after the look: each writer refuses by itself."""
    out, before = tmp_path / "out", content(outside)
    out.mkdir()
    for name in (*WRITTEN, "output.log"):
        PLANTED[kind](out / name, outside)
    run = load(*CONFIG).run
    writers: tuple[Callable[[], object], ...] = (
        lambda: write_own(out / "failure_0.json", "x"),
        lambda: write_result(out, {}),
        lambda: save_config(load(*CONFIG), out),
        lambda: Metrics(out / METRICS),
        lambda: Metrics(out / METRICS, resumed=True),
        lambda: MLPerfLog(out / LOG),
        lambda: MLPerfLog(out / LOG, resumed="run"),
        lambda: run_watched(["true"], {}, out, None, 0.0),
    )
    for write in writers:
        with pytest.raises((UserError, OSError)):
            write()
    from rn50.launch.ending import Ending

    close_result(out, run, Ending("a reason"))
    assert content(outside) == before


@pytest.mark.parametrize("kind", PLANTED)
def test_nothing_outside_is_read_and_nothing_hangs(
    tmp_path: Path, outside: Path, kind: str
) -> None:
    out = tmp_path / "out"
    for folder in (out, out / "attempt_1", out / "run_0"):
        folder.mkdir()
        for name in (*WRITTEN, "output.log", "interrupted_0.txt"):
            PLANTED[kind](folder / name, outside)
    assert (stopped_at(out), last_log_point(out), steps_repeated(out, 1)) == (None, None, None)
    assert read_failures(out) == [] and warnings_in(out) == [] and last_result(out) == {}
    assert last_stamp_unix_s(out / LOG) == 0.0
    assert read_standing(out) == (0, None, False)
    assert read_end(out, None).reason == "ended without a result"
    with pytest.raises(UserError, match="cannot read"):
        load_recorded(out / "config.yaml")


def test_a_recorded_config_has_names_as_its_bases_and_no_files(run: Path, outside: Path) -> None:
    config = run / "config.yaml"
    config.write_text("base: smoke\nseed: 1\n")
    assert load_recorded(config).run.seed == 1
    config.write_text("base: ../outside/secret\n")
    with pytest.raises(UserError) as error:
        load_recorded(config)
    assert "s3cret" not in str(error.value)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    for name in ("attempt_²", "attempt_1", "attempt_x"):
        (tmp_path / name).mkdir()
    stopped = {"stopped": "x at step " + "9" * 5000}
    for folder in (tmp_path, tmp_path / "attempt_1"):
        (folder / "result.json").write_text(json.dumps(stopped))
        (folder / METRICS).write_text('{"step": true}\n{"step": -1}\n{"step": 1e999}\n')
    assert stopped_at(tmp_path) is None and steps_repeated(tmp_path, 1) is None
    assert read_standing(tmp_path) == (0, None, False)
