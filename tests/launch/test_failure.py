"""Why a job failed, out of what launchers and ranks printed; what was short on the machine."""

import re
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rn50.config.load import load
from rn50.host.errors import UserError
from rn50.launch.failure import PROCESS_EXITED, Evidence, explain_failure
from rn50.launch.host_limits import (
    LEAST_OPEN_FILES,
    Cause,
    Limits,
    check_open_files,
    read_limits,
    with_shortages,
)
from rn50.launch.launch_plan import Options, plan_launch
from rn50.logging.records import Failure
from rn50.train.__main__ import Rank
from tests.conftest import refused

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED = GOLDEN / "refusals"
CASES = YAML(typ="safe").load(GOLDEN / "failures.yaml")
PLENTY = Limits({"n": 1024}, None, 1 << 30, 1 << 30)


def evidence_of(
    *,
    stderr: str = "",
    code: int = 9,
    failures: Sequence[dict[str, Any]] = (),
    lost: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    **more: Any,
) -> Evidence:
    """What is known of a job, by a case of the file. `limits`: where there is not plenty."""
    evidence = Evidence(
        [Failure(**fields) for fields in failures], stderr, code, **more
    )
    if lost:
        evidence = evidence._replace(lost=Failure(**lost))
    if limits:
        evidence = evidence._replace(limits=PLENTY._replace(**limits))
    return evidence


@pytest.mark.parametrize("case", CASES["causes"])
def test_the_cause_comes_first(case: dict[str, Any]) -> None:
    expected = case["expected"]
    fields = {key: value for key, value in case.items() if key != "expected"}
    reason = explain_failure(evidence_of(**fields))
    assert expected in reason
    assert reason.endswith(PROCESS_EXITED) or not expected.endswith(PROCESS_EXITED)


SAID = {
    "mpirun_slots": "There are not enough slots available in the system to satisfy the 8 slots",
    "mpirun_ppr": "Your job has requested more processes than the ppr for this topology",
    "mpirun_root": "mpirun has detected an attempt to run as root.",
    "mpirun_nohost": "ssh: Could not resolve hostname nohost1: Name or service not known",
    "mpirun_files": "No network interfaces were found for out-of-band communications",
    "mpirun5_noprog": "prterun was unable to launch .* /nowhere/prog",
    "hydra_noprog": r"execvp error on file /nowhere/prog \(No such file or directory\)",
    "srun_nodes": "error: Only allocated 1 nodes asked for 2",
    "srun_noprog": r"error: execve\(\): /nowhere/prog: No such file or directory",
    "horovodrun_nohost": "RuntimeError: could not connect to some hosts via ssh",
    "horovodrun_badopt": "horovodrun: error: unrecognized arguments: --nonsense",
}


@pytest.mark.parametrize("path", sorted(RECORDED.iterdir()), ids=lambda path: path.stem)
def test_a_launcher_that_starts_nothing_is_quoted(path: Path) -> None:
    reason = explain_failure(Evidence([], path.read_text(), 1))
    assert re.search(
        f"exit code 1 before any rank reported: .*{SAID[path.stem]}", reason
    ), reason
    assert len(reason) < 600
    assert "\n" not in reason


@pytest.mark.parametrize("case", CASES["shortages"])
def test_what_was_short_is_named(case: dict[str, Any]) -> None:
    cause = Cause(**case["cause"])
    limits = PLENTY._replace(**case.get("limits", {}))
    sentence = str(with_shortages(cause, case.get("stderr", ""), limits))
    short = case["short"]
    assert short in sentence if short else sentence == cause.reason


def test_limits_are_in_the_units_of_ulimit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")

    def limit(number: int) -> tuple[int, int]:
        return ((number + 1) << 20, 0)

    monkeypatch.setattr(resource, "getrlimit", limit)
    limits = read_limits()
    assert (
        limits.ulimits.items()
        >= {
            "v": (resource.RLIMIT_AS + 1) << 10,
            "f": (resource.RLIMIT_FSIZE + 1) << 10,
            "t": (resource.RLIMIT_CPU + 1) << 20,
        }.items()
    )
    assert "OMPI_MCA_pml=ucx" in limits.variables
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert read_limits().ulimits == {}


def test_too_few_open_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_open_files(PLENTY._replace(ulimits={}))
    check_open_files(PLENTY._replace(ulimits={"n": 4096}), 2048)
    with refused(r"^ulimit -n: at least 64 open files .* found 63"):
        check_open_files(PLENTY._replace(ulimits={"n": LEAST_OPEN_FILES - 1}))
    with refused(r"at least 2080 .* found 1024"):
        check_open_files(PLENTY._replace(ulimits={"n": 1024}), 2048)
    assert read_limits().shared_bytes > 0
    few = PLENTY._replace(ulimits={"n": 20})
    monkeypatch.setattr("rn50.launch.preflight.read_limits", lambda: few)
    plan = plan_launch(load("smoke"), Options("gloo"))
    assert "ulimit -n" in "".join(plan.obstacles)


def test_a_rank_that_never_connected_leaves_its_record_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit):
        Rank(tmp_path / "on another node").fail(UserError("no connection"))
    gone = Failure(**CASES["ranks"]["GONE"])
    seen = Evidence([], capsys.readouterr().err, 1, lost=gone, not_connected={0})
    assert explain_failure(seen).endswith(" failed in start at step 0: no connection")
