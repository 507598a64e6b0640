"""A bit or a number that turns in the memory of a rank: the run goes on from where all was well."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rn50.logging.run_folder import RunFolder
from tests.conftest import ROOT, RUN, Rn50
from tests.faults.test_resume import bits
from tests.waiting import finished

pytestmark = pytest.mark.slow


def flipped(
    rn50: Rn50, data: Path, fault: str, phase: str, victim: int
) -> subprocess.CompletedProcess[str]:
    """A RUN with one restart, in which a weight of one rank is damaged."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.job",
        "gloo",
        fault,
        phase,
        str(victim),
        str(rn50.results / "mark"),
        *RUN[2:],
        f"data.path={data}",
        f"system.results={rn50.results}",
        "system.job.max_restarts=1",
    ]
    return finished(command, cwd=ROOT)


NAN = "at step 35, since step 31, first on 1 of 2 ranks, rank {} on "


@pytest.mark.parametrize(
    ("fault", "phase", "victim", "said", "agreed_step", "step"),
    [
        pytest.param(
            "bit flip",
            "evaluation",
            0,
            r"rank 0 on \S+ failed in checkpoint at step 40: weights of step 40 expected",
            None,
            40,
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "bit flip",
            "evaluation",
            1,
            r"all ranks failed in evaluate 4 at step 80: replicas differ after epoch 4: rank 0 on "
            r"\S+ or rank 1 on \S+ in weights: which one cannot be told from two; .*after step 40",
            40,
            40,
            marks=pytest.mark.nightly,
        ),
        ("NaN", "mid-epoch", 0, NAN.format(0), 29, 20),
        pytest.param(
            "NaN", "mid-epoch", 1, NAN.format(1), 30, 30, marks=pytest.mark.nightly
        ),
    ],
)
def test_after_a_fault_of_memory_the_run_goes_on_from_where_all_was_well(
    rn50: Rn50,
    small_data: Path,
    uninterrupted: Path,
    fault: str,
    phase: str,
    victim: int,
    said: str,
    agreed_step: int | None,
    step: int,
) -> None:
    """A bit flipped in the evaluation of step 40: of rank 0 its checkpoint would have it; of rank 1
    it is found at step 80, two checkpoints later, and of two ranks neither is accused. A weight of
    one rank at step 31 that makes gradients of which all weights are NaN at 32: of rank 0 the
    checkpoint of step 30 may have it already."""
    done = flipped(rn50, small_data, fault, phase, victim)
    assert done.returncode == 1, done.stderr
    assert re.search(said, done.stderr)
    assert "base_lr" not in done.stderr
    assert f"going on after step {step} " in done.stdout
    folder = rn50.run_folder()
    failures = RunFolder(folder / "attempt_1").read_failures()
    assert {failure.agreed_step for failure in failures} == {agreed_step}
    assert bits(folder) == bits(uninterrupted)


@pytest.mark.nightly
def test_a_nan_that_comes_again_at_its_step_is_divergence(
    rn50: Rn50, small_data: Path
) -> None:
    done = flipped(rn50, small_data, "NaN again", "first step", 1)
    assert done.returncode == 2, done.stderr
    assert "base_lr" in done.stderr
    folder = rn50.run_folder()
    steps = [f.not_finite_step for f in RunFolder(folder).read_failures()]
    assert steps == [1, 1]
    assert RunFolder(folder).is_hopeless
    assert not RunFolder(folder / "attempt_1").is_hopeless
