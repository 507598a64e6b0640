"""Verdicts, causes, RCP factors and scores on the published logs and mutants, read in place."""

import pytest

from rn50.compliance.check_log import check_log
from tests.checkout import SHARED
from tests.compliance.log_text import score_folder

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
"""The table's codes of the reference and ours. R20 refers there to a system description that is not
included: test_submission.py has one of another division than a log."""
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
    name, ruleset, official, _, of_round = row[:5]
    check = check_log(LOGS / name)
    assert check.ruleset == ruleset
    assert check.official is not None
    assert check.official.verdict == official
    assert (check.verdict in ("FAIL", "CANNOT_READ")) == (official == "FAIL")
    said = notes(row)
    if "cause" in said:
        assert CAUSES[said["cause"].split("+")[0]] in check.cause
    if check.run is None:
        return
    codes = {finding.id for finding in check.findings}
    for rule in filter(None, said.get("beyond_checker", "").split("; ")):
        code, *_ = rule.split()
        assert code == "R20" or CODES[code] & codes, code
    if of_round not in ("-", official):
        assert check.round_verdict in ("PASS", "POLICY")


@pytest.mark.slow
@pytest.mark.parametrize("row", MUTANTS, ids=lambda row: row[0])
def test_mutants(row: list[str]) -> None:
    name, ruleset, official, ours = row[:4]
    check = check_log(LOGS / name)
    assert check.ruleset == ruleset
    assert check.official is not None
    assert check.official.verdict == official.split()[0]
    assert check.verdict in OURS[ours]
    if ours == "PASS with warning":
        names = {finding.name for finding in check.findings}
        assert names & {"copied-records", "joined-records"}


@pytest.mark.parametrize("row", FOLDERS, ids=lambda row: row[1])
def test_folders(row: list[str]) -> None:
    expected = dict(part.split("=", 1) for part in row[3:])
    folder = LOGS / row[1]
    scored = score_folder(folder)
    assert scored.division == row[2]
    assert scored.score_min == near(expected["score_min"], 1e-9)
    assert scored.scaling_factor == near(expected["norm"], 1e-9)
    assert scored.rcp is not None
    reference = scored.rcp.reference
    assert reference is not None
    assert scored.rcp.passed == expected["rcp_verdict"].startswith("PASS")
    assert scored.rcp.mean == float(expected["subm_mean"])
    assert reference.mean == near(expected["rcp_mean"], 1e-4)
    assert reference.minimum == near(expected["rcp_min"], 1e-4)
    if expected["published_scaling"] != "-":
        assert scored.published_factor == float(expected["published_scaling"])
    assert len(scored.runs) == 5
    assert scored.verdict in ("PASS", "POLICY")


def near(figure: str, slack: float) -> object:
    return pytest.approx(float(figure), abs=slack)
