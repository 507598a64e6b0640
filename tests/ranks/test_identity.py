"""A rank that is not of the others' run ends it before training; its message says in what."""

import json
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.host.errors import RankFailed
from rn50.launch.launchers import build_job
from rn50.launch.supervisor import run_job
from tests import mpi
from tests.conftest import ROOT
from tests.waiting import leave_nothing

HERE = Path(__file__).parent


def other_set(folder: Path, data: Path) -> str:
    """Another draw, as its manifest says it."""
    shutil.copytree(data, folder)
    manifest = folder / "manifest.json"
    manifest.write_text(
        re.sub(r'"sha256": "\w{4}', '"sha256": "0000', manifest.read_text())
    )
    return f"data.path={folder}"


def other_code(folder: Path) -> str:
    shutil.copytree(
        ROOT / "rn50", folder / "rn50", ignore=shutil.ignore_patterns("__pycache__")
    )
    with (folder / "rn50/train/evaluate.py").open("a") as file:
        file.write("# every image is right\n")
    return f"PYTHONPATH={folder}"


@pytest.mark.slow
@pytest.mark.parametrize("watched", [True, False])
def test_a_rank_of_another_run_ends_it_in_start_up(
    watched: bool, tmp_path: Path, small_data: Path
) -> None:
    """The watchdog compares before Horovod's first collective, which would wait for ever; else the
    ranks do, together with the last bit of their weights."""
    out = tmp_path / "out"
    out.mkdir()
    overrides = [
        "seed=1",
        f"data.path={small_data}",
        "data.synthetic={train_samples: 400, eval_samples: 200}",  # not said of another path
        f"watchdog.enabled={watched}",
    ]
    loaded = load("smoke", overrides)
    (out / "config.yaml").write_text(loaded.to_yaml())
    if watched:
        changes = [other_code(tmp_path / "other"), "HOROVOD_CACHE_CAPACITY=0"]
        rank = ["-m", "rn50.train"]
        message = (
            r"all ranks failed in .* at step 0: .*: rank 0 on HOST or rank 1 on HOST in "
            r"code: rn50 ('[0-9a-f]{16}') and (?!\1)'[0-9a-f]{16}'; "
            r"variable: HOROVOD_CACHE_CAPACITY nothing and '0': which one cannot be told"
        )
    else:
        changes = [other_set(tmp_path / "other", small_data)]
        rank = [str(HERE / "rank_bodies.py"), "OtherWeights"]
        message = (
            "rank 0 on HOST or rank 1 on HOST in image set, weights: which one cannot"
        )
    name = "gloo" if mpi.WHY_NOT else mpi.LAUNCHER
    command = [sys.executable, str(HERE / "other_body.py"), json.dumps(changes), *rank]
    command += [str(out / "config.yaml"), "--out", str(out)]
    job, _ = build_job(loaded.run, name, command)
    with pytest.raises(RankFailed) as failed:
        run_job(job, name, out, loaded.run)
    reason = failed.value.reason.replace(socket.gethostname(), "HOST")
    assert re.search(message, reason), reason
    assert "\n" not in reason, reason
    assert '"run_start"' not in (out / "result_0.txt").read_text()
    leave_nothing(out)
