"""`rn50 launch --dry-run` says what would run, and `--json` prints JSON alone."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from rn50.config.load import load
from rn50.config.manifest import load_manifest
from rn50.launch.dry_run import describe_launch
from rn50.launch.launch_plan import Options, plan_launch
from rn50.launch.run import announce
from rn50.logging.run_folder import RunFolder
from tests.conftest import Rn50
from tests.waiting import wait_until

COMMAND = ("python", "-m", "rn50.train")


def described(config: str, *overrides: str) -> dict[str, Any]:
    options = Options("gloo", program=COMMAND)
    return describe_launch(plan_launch(load(config, overrides), options))


def test_what_is_said_of_a_run_here_and_of_a_published_one(smoke_data: Path) -> None:
    plan = described("smoke", f"data.path={smoke_data}", "seed=7")
    assert plan["problems"] == []
    for name, beginning in (
        (
            "data",
            f"DRAWN textures ({smoke_data}), 1,000 training and 400 evaluation images",
        ),
        ("device", "cpu (CPU core), nodes: 1"),
        ("ranks", "2 by gloo"),
        ("length", "up to 8 epochs, 400 steps"),
        ("division", "closed, ruleset 4.0.0"),
    ):
        assert plan[name].startswith(beginning), name
    assert plan["seed"] == 7
    ranks = "--gloo -np 2 python -m rn50.train FOLDER/config.yaml --out FOLDER"
    assert " ".join(plan["command"]).endswith(ranks)
    cut = described("smoke", "schedule.length=9 epochs", f"data.path={smoke_data}")
    length = "up to 8 epochs (the last evaluation; the schedule has 9), 400 steps"
    assert cut["length"] == length
    published = described("abci_2048_open", "model.dtype=bfloat16")
    problems = "\n".join(published["problems"])
    assert "model.dtype: " in problems
    assert "512 hosts expected" in problems
    assert "a packed image set expected" in problems
    assert published["command"] == []
    assert published["config check"].startswith("FAIL")


def test_what_breaks_a_rule_or_is_inherited_is_told_before_the_ranks_start(
    smoke_data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    monkeypatch.setenv("DMLC_ROLE", "server")
    loaded = load("smoke", ["eval.target=0.1", f"data.path={smoke_data}"])
    plan = plan_launch(loaded, Options("gloo"))
    announce(plan, RunFolder(Path("folder")), load_manifest(smoke_data))
    out = capsys.readouterr().out
    assert "note: config check: eval.target" in out
    assert "kept from your environment: HOROVOD_CYCLE_TIME=2\n" in out
    assert "not passed on (a parameter server's): DMLC_ROLE\n" in out


def test_a_set_that_was_drawn_otherwise_does_not_fit(small_data: Path) -> None:
    counts = "{train_samples: 400, eval_samples: 200, seed: 1}"
    plan = described("smoke", f"data.path={small_data}", f"data.synthetic={counts}")
    assert plan["data"] == f"{small_data}, which does not fit"
    assert "seed=1 expected, found" in plan["problems"][-1]


def test_the_command_starts_nothing_and_makes_nothing(
    rn50: Rn50, tmp_path: Path
) -> None:
    missing = f"data.path={tmp_path / 'none'}"
    done = rn50(
        "launch", "smoke", "--dry-run", missing, f"system.results={rn50.results}"
    )
    assert done.returncode == 2
    assert "dry run, nothing is started" in done.stdout
    assert re.fullmatch(r"rn50: error: .*a packed image set expected.*\n", done.stderr)
    assert not rn50.results.exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_that_diverges_is_not_restarted(rn50: Rn50, smoke_data: Path) -> None:
    settings = (
        f"data.path={smoke_data}",
        f"system.results={rn50.results}",
        "system.ranks_per_node=1",
        "system.job.max_restarts=2",
        "log.every=1 steps",
    )
    done = rn50("launch", "smoke", "--json", *settings, "optimizer.base_lr=9.0e9")
    assert done.returncode == 2
    assert json.loads(done.stdout)["status"] == "failed"  # all else on stderr
    assert "training diverged" in done.stderr
    assert not list(rn50.run_folder().glob("attempt_*"))


def test_a_job_goes_on_when_nobody_waits(rn50: Rn50, program: Any) -> None:
    program("sbatch", "echo 42")
    program("squeue", "echo RUNNING")
    process = rn50.start(
        "submit",
        "smoke",
        "--scheduler",
        "slurm",
        "--wait",
        f"system.results={rn50.results}",
    )
    assert process.stdout.readline().startswith("slurm job 42 in")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    folder = wait_until(rn50.run_folder)
    assert err == (
        f"rn50: stopped waiting by SIGTERM; slurm job 42 goes on: {folder}; see it with: "
        f"tail -f {folder}/job.log; cancel it with: scancel 42\n"
    )
