"""One verdict on a run: `launch`, `runs`, the report, result.json and `log check` say the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rn50.config.load import load
from rn50.launch.launch_plan import Options
from rn50.launch.run import conclude
from rn50.logging.records import Verdict
from rn50.logging.run_folder import RunFolder
from rn50.report.runs import read_runs
from tests.conftest import GOLDEN_LOG, invoke, write_file, write_json

LEFT = {
    "status": "success",
    "time_to_train_s": 10.5,
    "init_s": 3.5,
    "images_per_s": 372.1,
    "epochs": 4,
    "eval_accuracy": 0.895,
    "target": 0.8,
    "ranks": 2,
}
"""result.json as rank 0 leaves it."""
TOO_LOW = ('("key": "eval_accuracy", "value": )[0-9.]+', r"\g<1>0.725")
ABORTED = ('"status": "success"', '"status": "aborted"')
SIZES = (
    ('("key": "eval_samples", "value": )400', r"\g<1>50000"),
    ('("key": "train_samples", "value": )1000', r"\g<1>1281167"),
)
STOPPED = {"status": "aborted", "stopped": {"by": "SIGTERM", "step": 9}}
ON_THE_SET_ALONE = "the set is not ImageNet; no other rule is broken"


@pytest.mark.parametrize(
    ("edits", "result", "verdict", "cause"),
    [
        (SIZES, {}, "PASS", "converged: 0.885 at epoch 4"),
        ((), {}, "POLICY", ON_THE_SET_ALONE),
        ((TOO_LOW,), {"target": 0.7}, "FAIL", "did not converge: best 0.725"),
        ((ABORTED,), STOPPED, "FAIL", "run_stop (line 49) says aborted"),
    ],
)
def test_every_place_has_the_verdict_of_log_check(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    edits: tuple[tuple[str, str], ...],
    result: dict[str, Any],
    verdict: str,
    cause: str,
) -> None:
    folder = tmp_path / "smoke/20261125T120000Z"
    log_text = GOLDEN_LOG.read_text()
    for pattern, new in edits:
        log_text, count = re.subn(pattern, new, log_text)
        assert count, pattern
    log = write_file(folder / "result_0.txt", log_text)
    fields = LEFT | result
    write_json(folder / "result.json", fields)
    result = conclude(load("smoke").run, RunFolder(folder), Options())
    (line,) = re.findall("^check: .*", capsys.readouterr().out, re.M)
    (row,) = read_runs([tmp_path])
    checked = invoke("log", "check", "--json", log)
    referee = json.loads(checked.stdout)
    assert referee["verdict"] == verdict
    assert cause in referee["cause"]
    assert line.startswith(f"check: {verdict}: {referee['cause']} (")
    assert result.check == Verdict(verdict, referee["cause"])
    assert row.verdict == verdict
    page = (folder / "report.html").read_text()
    verdicts = re.findall(
        r'rn50, rules of .*?<span class="verdict \w+">(\w+)</span>', page, re.S
    )
    assert verdicts == [verdict]
    assert result.is_good == (checked.exit_code == 0)
    reached = fields["status"] == "success"
    assert ("but log check says" in result.reason) == (reached and verdict == "FAIL")
