"""`rn50 train`: a rank without a launcher draws a seed, logs it, and says how it ended."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.logging.parse import read_events
from rn50.train.__main__ import check_ranks
from rn50.train.process_info import ProcessInfo


def test_ranks_by_hand_need_a_seed_in_common() -> None:
    run = load("smoke").run
    check_ranks(run.model_copy(update={"seed": 1}), ProcessInfo("mpirun", 0, 2, 0, "h"))
    with pytest.raises(UserError, match="seed: one for all 2 ranks expected, such as seed=1"):
        check_ranks(run, ProcessInfo("mpirun", 0, 2, 0, "h"))
    with pytest.raises(UserError, match="2 ranks expected, found 1: start them with"):
        check_ranks(run, ProcessInfo("none", 0, 1, 0, "h"))


@pytest.mark.slow
def test_stopped_by_hand_it_goes_on_with_what_it_says(rn50, smoke_data: Path) -> None:
    """With a seed that is drawn and logged: it was the constant 0, and null in the log."""
    process = rn50.start(
        *("train", "smoke", "system.ranks_per_node=1", "log.every=5 steps"),
        *(f"data.path={smoke_data}", f"system.results={rn50.results}"),
    )
    assert any("images/s" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    folder = rn50.run_folder()
    saved = load(folder / "config.yaml").run.seed
    assert [e.value for e in read_events(folder / "result_0.txt") if e.key == "seed"] == [saved]
    result = json.loads((folder / "result.json").read_text())
    assert saved and result["seed"] == saved
    said = r"stopped by Ctrl-C at step (\d+) \(checkpoint of step \1\)"
    assert re.fullmatch(said, result["reason"])
    assert err.splitlines()[-1].startswith(f"rn50: {result['reason']}: {folder}; go on with: ")
    done = rn50(*result["next"].split()[1:], "limits.epochs=2")
    assert done.returncode == 1 and "going on after step" in done.stdout, done.stderr
    resumed = [e for e in read_events(folder / "result_0.txt") if e.key == "run_resumed"]
    assert [event.metadata["steps_repeated"] for event in resumed] == [0]
    assert (folder / "report.html").is_file()
