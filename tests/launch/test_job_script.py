"""Job scripts as text: golden files, ShellCheck, and a real shell that meets nasty names."""

import os
import re
import shlex
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
from tests.conftest import refused, write_script
from tests.waiting import output_of

GOLDEN = Path(__file__).parents[1] / "golden/submit"
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


def check_golden(path: Path, script: str) -> None:
    if os.environ.get("ACCEPT") == "1":
        path.write_text(script)
    assert script == path.read_text(), f"to accept: ACCEPT=1 pytest {__file__}"


@pytest.mark.parametrize("case", CASES)
def test_script_is_the_golden_one(case: str) -> None:
    check_golden(GOLDEN / f"{case}.sh", render(case))


def test_every_script_passes_shellcheck() -> None:
    golden = sorted(GOLDEN.glob("*.sh"))
    assert {path.stem for path in golden} == set(CASES)
    output_of([SHELLCHECK, *golden])


def directives(case: str) -> str:
    """A case, and what its script asks its scheduler for."""
    scheduler, config, *overrides = shlex.split(case)
    lines = script_of(config, scheduler, *overrides).splitlines()
    asks = [line for line in lines if re.match("#[A-Z$]", line)]
    return "\n".join([case, *asks, "\n"])


def test_directives_are_the_golden_ones() -> None:
    """GPUs are asked for once, every core, and to go on without a node where the config says so.
    The cases are the first lines of the file's blocks: scheduler, config, overrides."""
    path = GOLDEN / "directives.txt"
    cases = [block.partition("\n")[0] for block in path.read_text().split("\n\n")]
    check_golden(path, "".join(map(directives, filter(None, cases))))


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
STUB = """printf '%s\\0' "$@" >"$SEEN\""""


@pytest.mark.slow
@settings(max_examples=20)
@given(name=NASTY, scheduler=st.sampled_from(list(SCHEDULERS)))
@example(name="'; touch BAD; '", scheduler="slurm")
def test_names_reach_the_one_command_unchanged(
    name: str, scheduler: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    start = tmp_path_factory.mktemp("start")
    write_script(start / "python", STUB)
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
