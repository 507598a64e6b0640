"""Job scripts as text: golden files, ShellCheck, and a real shell that meets nasty names."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rn50.config.load import load
from rn50.launch.job_script import JobPaths, job_script
from rn50.launch.schedulers import SCHEDULERS
from rn50.launch.system_description import system_id
from tests.conftest import refused
from tests.waiting import output_of

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "submit"
FOLDER = "results/job"
PATHS = JobPaths(
    (f"{FOLDER}/config.yaml",),
    "/home/user/rn50",
    FOLDER,
    "/opt/rn50",
    "/opt/rn50/.venv/bin/python",
)
CASES: dict[str, tuple[str, list[str]]] = {
    # scheduler, overrides of Fujitsu's run; four ranks a node on every machine
    "sge": ("sge", []),  # ABCI in 2019
    "pbs": (
        "pbs",  # ABCI 3.0's way: a group, a resource type as queue
        ["account=grp1", "queue=rt_HF", "resource=ngpus=4", "stage=$PBS_LOCALDIR",
         "container=/apps/rn50.sif", "engine=singularity"],
    ),
    "slurm": ("slurm", ["system=superpod", "account=mlperf"]),
    "local": ("local", ["system=dgx1"]),
    # back into the queue; what the others leave out
    "sge_requeued": ("sge", ["system.cores_per_rank=4", "resource=null", "requeue=true",
                             "parallel_environment=orte"]),
    "pbs_requeued": ("pbs", ["name=50-layers-at-scale", "resource=null", "requeue=true"]),
    "slurm_requeued": (
        "slurm", ["system=superpod", "modules=[gcc/12]", "requeue=true"],
    ),
}  # fmt: skip
SHELLCHECK = shutil.which("shellcheck") or str(
    Path(sys.executable).with_name("shellcheck")
)


def script_of(config: str, scheduler: str, *overrides: str, runs: int = 1) -> str:
    return job_script(load(config, overrides).run, scheduler, PATHS, runs)


def render(case: str) -> str:
    scheduler, overrides = CASES[case]
    prefixes = ("system", "name")
    overrides = [o if o.startswith(prefixes) else f"system.job.{o}" for o in overrides]
    shape = ["system.nodes=512", "system.ranks_per_node=4", "limits.grace_s=14.5"]
    more = [*overrides, *shape, "log.org=Fujitsu"]
    return script_of("abci_2048_open", scheduler, *more, runs=5)


@pytest.mark.parametrize("case", CASES)
def test_script_is_the_golden_one(case: str) -> None:
    path = GOLDEN / f"{case}.sh"
    script = render(case)
    if os.environ.get("ACCEPT") == "1":
        path.write_text(script)
    assert script == path.read_text(), f"to accept: ACCEPT=1 pytest {__file__}"


def test_every_script_passes_shellcheck() -> None:
    golden = sorted(GOLDEN.glob("*.sh"))
    assert {path.stem for path in golden} == set(CASES)
    output_of([SHELLCHECK, *golden])


@pytest.mark.parametrize(
    ("scheduler", "system", "job", "directive"),
    [
        ("slurm", "superpod", ["resource=gpu:a100:4"], "#SBATCH --gres=gpu:a100:4"),
        ("slurm", "superpod", ["resource=nvme:1"], "#SBATCH --gpus-per-node=4"),
        ("slurm", "superpod", ["resource=none"], None),
        ("slurm", "superpod", ["options=[--gpus-per-task=1]"], None),
        ("pbs", "superpod", ["resource=ngpus=4"], ":ngpus=4"),
        ("pbs", "superpod", ["options=[-l, 'select=2:ngpus=8']"], None),
        ("pbs", "local", [], None),
    ],
)
def test_gpus_are_asked_for_once(
    scheduler: str, system: str, job: list[str], directive: str | None
) -> None:
    script = script_of(
        "abci_2048_open",
        scheduler,
        f"system={system}",
        "system.nodes=2",
        "system.ranks_per_node=4",
        "model.dtype=float32",
        "comm.algorithm=ring",
        *(f"system.job.{key}" for key in job),
    )
    requests = re.findall(r"--gpus-per-node=\d+|--gres=\S*gpu\S*|:ngpus=\d+", script)
    if directive is None:
        assert not requests
    else:
        assert len(requests) == script.count(directive) == 1


def test_a_job_survives_a_failed_node_where_it_may_go_on_without() -> None:
    restarts = "system.job.max_restarts=1"
    fewer = "system.job.min_nodes=1"
    for overrides in ([restarts], [fewer], [restarts, fewer]):
        script = script_of("smoke", "slurm", "system.nodes=2", *overrides)
        assert ("#SBATCH --no-kill\n" in script) == (len(overrides) == 2)


@pytest.mark.parametrize(
    ("scheduler", "overrides", "runs", "message"),
    [
        ("slurm", ["seed=3"], 5, "seed: none for 5 runs"),
        ("local", [], 5, "log.org: .* found none"),
        ("sge", ["system.job.container=image"], 1, "singularity expected with sge"),
        (
            "local",
            ["system.job.requeue=true"],
            1,
            "requeue: slurm, sge or pbs expected",
        ),
        (
            "slurm",
            ["system.job.requeue=true", "system.job.walltime='00:03:09'"],
            1,
            "walltime: at least 190 s expected",
        ),
        (
            "pbs",
            ["system.job.resource=ngpus=4:rt_F"],
            1,
            "NAME=VALUE.* expected, found ngpus=4:rt",
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused(
    scheduler: str, overrides: list[str], runs: int, message: str
) -> None:
    with refused(message):
        script_of("smoke", scheduler, *overrides, runs=runs)


def test_system_id_is_a_folder_name() -> None:
    assert system_id(load("dgx1_8").run) == "NVIDIA_DGX-1_n1"
    assert re.fullmatch(
        r"[\w.-]+", system_id(load("smoke", ["system.name=../a b$c"]).run)
    )


# --- injection: through a real shell --------------------------------------------------------------

NASTY = st.text(
    st.sampled_from(list(" '\"$`\\\n;&|<>(){}*?!#~-=/%ab\t")), min_size=1, max_size=24
) | st.sampled_from(
    ["$(touch BAD)", "`touch BAD`", "'; touch BAD; '", "\ntouch BAD\n", '"; touch BAD; "', "-rf",
     "${HOME}", "a b", "$(touch BAD)'\"\n\\", "|| touch BAD #", "\\'; touch BAD"]
)  # fmt: skip
STUB = """#!/bin/bash
printf '%s\\0' "$@" >"$SEEN"
"""


@pytest.mark.slow
@settings(max_examples=20)
@given(name=NASTY, scheduler=st.sampled_from(list(SCHEDULERS)))
@example(name="'; touch BAD; '", scheduler="slurm")
def test_names_reach_the_one_command_unchanged(
    name: str, scheduler: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    start = tmp_path_factory.mktemp("start")
    (start / "python").write_text(STUB)
    (start / "python").chmod(0o755)
    folder = str(start / name.replace("/", "_"))
    paths = JobPaths((name,), str(start), folder, name, "python")
    script = job_script(load("smoke").run, scheduler, paths)
    (start / "job.sh").write_text(script)
    environment = {"PATH": f"{start}:{os.environ['PATH']}", "SEEN": str(start / "seen")}
    subprocess.run(["bash", start / "job.sh"], env=environment, cwd=start, check=True)
    assert not list(start.rglob("BAD*"))
    arguments = (start / "seen").read_text().split("\0")
    assert f"--job={folder}" in arguments
    assert arguments[arguments.index("--") + 1 : -1] == [name]
