"""`rn50 log compare --plot`: the curves as one SVG."""

from __future__ import annotations

import json
from pathlib import Path


def test_the_curves_are_drawn_the_same_each_time(rn50, root: Path, tmp_path: Path) -> None:
    log = str(root / "tests" / "golden" / "smoke_result_0.txt")
    for name in ("one.svg", "two.svg"):
        done = rn50("log", "compare", log, log, "--plot", str(tmp_path / name), "--json")
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["subjects"]) == 2
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    for word in ("A golden/smoke_result_0.txt", "B golden", "epoch", "seconds after run_start"):
        assert word in text
    to_stdout = rn50("log", "compare", log, log, "--plot", "-")
    assert to_stdout.stdout == text and "hyper-parameters" in to_stdout.stderr


def test_a_log_without_evaluations_has_no_curve(rn50, root: Path, tmp_path: Path) -> None:
    lines = (root / "tests" / "golden" / "smoke_result_0.txt").read_text().splitlines()
    log = tmp_path / "result_0.txt"
    log.write_text("\n".join(line for line in lines if "eval_accuracy" not in line) + "\n")
    done = rn50("log", "compare", str(log), "--plot", str(tmp_path / "a.svg"))
    assert done.returncode == 2
    assert "--plot: a log with evaluations expected, found none" in done.stderr
    assert not (tmp_path / "a.svg").exists()
