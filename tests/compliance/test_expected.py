"""Verdicts, causes, RCP factors and scores on the published logs and mutants, read in place."""

import os
from pathlib import Path

import pytest

from rn50.compliance.check_log import check_log
from rn50.compliance.score import score_folder
from rn50.compliance.submission import check_folder

SHARED = Path(
    os.environ.get("RN50_SHARED", Path(__file__).resolve().parents[2].parent / "shared")
)
LOGS = SHARED / "data/mlperf_logs"
TABLE = LOGS / "EXPECTED.tsv"
ROWS = [
    row.split("\t")
    for row in (TABLE.read_text().splitlines() if TABLE.is_file() else [])
    if row and not row.startswith("#")
]
REAL = [row for row in ROWS if row[0].startswith("logs/")]
FOLDERS = [row for row in ROWS if row[0] == "DIR"]
MUTANTS = [row for row in ROWS if row[0].startswith("mutants/")]

pytestmark = pytest.mark.skipif(
    not ROWS, reason="no published logs beside this checkout"
)

CAUSES = {
    "NOT_CONVERGED": "did not converge",
    "WEIGHT_INIT_MISSING": "no weights_initialization",
    "WEIGHT_INIT_NAMES": "weights_initialization names other",
    "MISSING_SUBMISSION_KEYS": "no submission_",
    "NO_RUN_STOP": "no run_stop",
    "NO_RECORDS": "found none in",
}
CODES = {
    "R01": {"MLP305"},
    "R04": {"MLP803"},
    "R05": {"MLP801", "MLP802"},
    "R06": {"MLP802"},
    "R07": {"MLP713", "MLP714"},
    "R08": {"MLP714"},
    "R12": {"MLP804"},
    "R12b": {"MLP805"},
    "R13": {"MLP503"},
    "R14": {"MLP502"},
    "R15b": {"MLP505"},
    "R16": {"MLP506"},
    "R16b": {"MLP507"},
    "R18": {"MLP309"},
}
"""The table's codes of the reference and ours. R20 refers there to a file that is not included."""
OURS = {
    "PASS": ("PASS", "POLICY"),
    "PASS with warning": ("PASS", "POLICY"),
    "PASS + POLICY WARNING": ("POLICY",),
    "FAIL": ("FAIL",),
    "CANNOT_READ": ("CANNOT_READ",),
}


def notes(row: list[str]) -> dict[str, str]:
    return dict(part.split("=", 1) for part in row[12].split(" ## ") if "=" in part)


@pytest.mark.slow
@pytest.mark.parametrize("row", REAL, ids=lambda row: row[0])
def test_real_logs(row: list[str]) -> None:
    found = check_log(LOGS / row[0])
    assert found.ruleset == row[1]
    assert found.official is not None
    assert found.official.verdict == row[2]
    assert (found.verdict in ("FAIL", "CANNOT_READ")) == (row[2] == "FAIL")
    said = notes(row)
    if "cause" in said:
        assert CAUSES[said["cause"].split("+")[0]] in found.cause
    if found.run is None:
        return
    ids = {finding.id for finding in found.findings}
    beyond = [
        part.split()[0] for part in said.get("beyond_checker", "").split("; ") if part
    ]
    assert [code for code in beyond if code != "R20" and not CODES[code] & ids] == []
    if row[4] != "-" and row[4] != row[2]:
        assert found.round_verdict in ("PASS", "POLICY")


@pytest.mark.slow
@pytest.mark.parametrize("row", MUTANTS, ids=lambda row: row[0])
def test_mutants(row: list[str]) -> None:
    found = check_log(LOGS / row[0])
    assert found.ruleset == row[1]
    assert found.official is not None
    assert found.official.verdict == row[2].split()[0]
    assert found.verdict in OURS[row[3]]
    if row[3] == "PASS with warning":
        assert {"copied-records", "joined-records"} & {
            finding.name for finding in found.findings
        }


@pytest.mark.parametrize("row", FOLDERS, ids=lambda row: row[1])
def test_folders(row: list[str]) -> None:
    expected = dict(part.split("=", 1) for part in row[3:])
    found = score_folder(LOGS / row[1])
    assert found.division == row[2]
    assert found.score_min == pytest.approx(float(expected["score_min"]), abs=1e-9)
    assert found.scaling_factor == pytest.approx(float(expected["norm"]), abs=1e-9)
    assert found.rcp is not None
    assert found.rcp.reference is not None
    assert found.rcp.passed == expected["rcp_verdict"].startswith("PASS")
    assert found.rcp.mean == float(expected["subm_mean"])
    assert found.rcp.reference.mean == pytest.approx(
        float(expected["rcp_mean"]), abs=1e-4
    )
    assert found.rcp.reference.minimum == pytest.approx(
        float(expected["rcp_min"]), abs=1e-4
    )
    if expected["published_scaling"] != "-":
        assert found.published_factor == float(expected["published_scaling"])
    *runs, whole = check_folder(LOGS / row[1], official=False)
    assert len(runs) == 5
    assert whole.verdict in ("PASS", "POLICY")
