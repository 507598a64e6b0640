"""Sums over NCCL's calls on two "nodes" of two fake GPUs: as Horovod chooses, and on its torus.

Gradients are copied to the fake device and back, so these sums are real: its NCCL adds in shared
memory, Horovod's copies into its fusion buffer are carried out, and so are our own kernels. Streams
are lazy: what a wait or a dependency is missing for is missing from the numbers.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.launch.engine_environment import engine_environment
from rn50.launch.launchers import HOROVODRUN
from tests import mpi
from tests.gpu.runs import HALF, SHORT
from tests.waiting import finished, output_of

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
NETLAB = HERE.parent / "lab" / "netlab.sh"
NODES = 2
SHAPE = ("system.device=gpu", f"system.nodes={NODES}", "system.ranks_per_node=2")
TORUS = ("comm.algorithm=torus_2d",)
GROUPS = ("comm.groups=equal_bytes(8)",)
"""The default of GPUs is one."""


def run_on_two_nodes(
    program: Path, out: Path, *overrides: str, script: dict[str, object] | None = None
) -> None:
    """Start `program` as two nodes' four ranks, two fake GPUs each."""
    loaded = load("smoke", [*SHAPE, "seed=1", *overrides])
    config = out / "config.yaml"
    config.write_text(loaded.to_yaml())
    settings = engine_environment(loaded.run, os.environ, "gloo").settings
    arguments = [str(config), str(out)]
    if script is not None:
        (out / "script.json").write_text(json.dumps(script))
        arguments = [
            "--script",
            str(out / "script.json"),
            str(config),
            "--out",
            str(out),
        ]
    hosts = "localhost:2,127.0.0.1:2"  # two names of this machine
    fake = {
        "FAKECUDA_DEVICES": "2",
        "FAKECUDA_REPORT": str(out / "fake"),
        "FAKECUDA_LAZY": "1",
    }
    output_of(
        [
            *HOROVODRUN,
            "--gloo",
            "-np",
            "4",
            "-H",
            hosts,
            sys.executable,
            str(program),
            *arguments,
        ],
        env=os.environ | settings | fake,
        timeout=300,
    )


def counts_of_ranks(out: Path) -> list[dict[str, int]]:
    """What each rank asked of its device; other processes had one too."""
    reports = [json.loads(path.read_text()) for path in out.glob("fake.*")]
    assert all(report["errors"] == [] for report in reports)
    counts = [report["counts"] for report in reports]
    of_ranks = [
        rank_counts for rank_counts in counts if "nccl" in " ".join(rank_counts)
    ]
    assert len(of_ranks) == 4
    return of_ranks


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [(GROUPS, 1e-5), (TORUS, 1e-5), ((*TORUS, *HALF, *GROUPS), 2e-2), (HALF, 2e-2)],
)
def test_sums_over_two_nodes_are_the_plain_sums(
    overrides: tuple[str, ...],
    limit: float,
    fake_environment: Path,
    root: Path,
    tmp_path: Path,
) -> None:
    run_on_two_nodes(root / "tests" / "ranks" / "sum_body.py", tmp_path, *overrides)
    of_sums, _ = map(float, (tmp_path / "worst.txt").read_text().split())
    assert of_sums < limit  # the statistics' kernels compute nothing on the fake
    for rank_counts in counts_of_ranks(tmp_path):
        if TORUS[0] in overrides:  # within a node, between nodes, within a node
            assert rank_counts["ncclReduceScatter over 2"] > 0
            assert rank_counts["ncclAllReduce over 2"] > 0
            assert rank_counts["ncclAllGather over 2"] > 0
        else:
            assert rank_counts["ncclAllReduce over 4"] > 0
            assert "ncclReduceScatter" not in rank_counts


def run_over_mpi(program: Path, out: Path, *overrides: str) -> None:
    """Start `program` by mpirun on two emulated hosts, two fake GPUs each."""
    loaded = load("smoke", [*SHAPE, "seed=1", *overrides])
    (out / "config.yaml").write_text(loaded.to_yaml())
    settings = engine_environment(loaded.run, os.environ).settings
    passed = settings | {
        "FAKECUDA_DEVICES": "2",
        "FAKECUDA_REPORT": str(out / "fake"),
        "FAKECUDA_LAZY": "1",
    }
    names = [*passed, "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH"]
    variables = [part for name in names for part in ("-x", name)]
    mpirun = ["mpirun", "--allow-run-as-root", "--host", "h1:2,h2:2", "-np", "4"]
    rank = [sys.executable, str(program), str(out / "config.yaml"), str(out)]
    output_of(
        [NETLAB, "run", str(NODES), "0", "0", "--", *mpirun, *variables, *rank],
        env=os.environ | passed,
        timeout=300,
    )


@mpi.NEEDED
@pytest.mark.parametrize(("overrides", "limit"), [((), 1e-5), (HALF, 2e-2)])
def test_hierarchical_sums_within_hosts_by_nccl_and_between_them_by_mpi(
    overrides: tuple[str, ...],
    limit: float,
    fake_environment: Path,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = finished([NETLAB, "check"])
    if check.returncode or mpi.LAUNCHER != "mpirun":
        pytest.skip(check.stderr.strip() or "Open MPI's mpirun expected")
    monkeypatch.setenv("PYTHONPATH", str(root))
    body = root / "tests" / "ranks" / "sum_body.py"
    run_over_mpi(body, tmp_path, "comm.algorithm=hierarchical", *overrides)
    of_sums, _ = map(float, (tmp_path / "worst.txt").read_text().split())
    assert of_sums < limit
    for rank_counts in counts_of_ranks(tmp_path):
        assert rank_counts["ncclReduceScatter over 2"] > 0
        assert rank_counts["ncclAllGather over 2"] > 0
        assert "ncclAllReduce" not in rank_counts


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        (("comm.gradient_dtype=float16", *GROUPS), 2e-3),
        (TORUS, 1e-5),
        ((*TORUS, *HALF), 2e-3),
    ],
)
def test_updates_by_our_own_kernels_are_those_of_the_plain_sums(
    overrides: tuple[str, ...],
    limit: float,
    computing: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent.parent))
    run_on_two_nodes(HERE / "step_body.py", tmp_path, *overrides)
    of_weights, of_statistics = map(float, (tmp_path / "worst.txt").read_text().split())
    assert of_weights < limit
    assert of_statistics < 1e-4
    for rank_counts in counts_of_ranks(tmp_path):
        assert rank_counts["kernels of our own that ran"] > 10
        assert "kernels not computed" not in rank_counts


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_a_float16_run_on_a_torus_reaches_its_target(
    capability: str,
    fake_environment: Path,
    smoke_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shape of the presets for ABCI, in small: torus, float16, a rank that idles at first."""
    monkeypatch.setenv("FAKECUDA_CAPABILITY", capability)
    monkeypatch.setenv("FAKECUDA_COMPUTE", "0")
    change = json.dumps([{"after_epoch": 1, "per_rank": 10, "active_ranks": 4}])
    run_on_two_nodes(
        HERE / "rank.py",
        tmp_path,
        *SHORT,
        *HALF,
        *TORUS,
        "comm.groups=cubic(3)",
        "data.decoder=cpu",
        f"data.path={smoke_data}",
        "eval.target=0.6",
        "batch.active_ranks=3",
        f"batch.changes={change}",
        "eval.bn_stats=batch",
        script={"accuracy": [0.5, 0.7]},
    )
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["ranks"], result["epochs"]) == ("success", 4, 2)
    for rank_counts in counts_of_ranks(tmp_path):
        assert rank_counts["ncclReduceScatter over 2"] > 0
