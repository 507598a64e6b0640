"""What stands in the way of a run is the same to every command, and told before anything starts."""

from pathlib import Path

import pytest

from rn50.cli.console import track
from rn50.compliance.config_rules import check_config
from rn50.config.load import load
from rn50.config.names import list_presets
from rn50.host.errors import UserError
from rn50.launch.dry_run import describe_launch
from rn50.launch.launch_plan import Options, plan_launch
from rn50.launch.preflight import obstacles_here, refusals, with_refusals
from rn50.launch.run import launch
from rn50.launch.submit import plan_submission
from rn50.predict.predictor import job_of_config, predict
from rn50.train.cuda.driver import Gpu

NEVER = [
    (
        ("quick", "model.dtype=float16"),
        "model.dtype: float32 or bfloat16 expected on a cpu",
    ),
    (("quick", "comm.algorithm=double_tree"), "comm.algorithm: one that "),
    (("quick", "model.layout=NHWC"), "model.layout: NCHW expected on a cpu"),
    (
        ("dgx1_8", "batch.per_rank=1000"),
        "images in the 16 GiB of NVIDIA Tesla V100 SXM2 16 GB expected, found 1000",
    ),
    (
        ("dgxh100_8", "system.compute_capability=10.0"),
        "system.accelerator: model.step: a GPU from 7.0 to 9.0 for the plan expected",
    ),
    # grids
    (
        ("sony_3456", "comm.algorithm=torus_2d(48x72)"),
        "torus_2d(864x4) on GPUs expected",
    ),
    (
        ("abci_2048_open", "comm.algorithm=torus_2d(7x9)"),
        "a grid of 2048 ranks expected",
    ),
    (("abci_2048_open", "system.nodes=1"), "two nodes or more for torus_2d expected"),
]


@pytest.mark.parametrize(("arguments", "why"), NEVER)
def test_what_launch_refuses_check_and_submit_refuse(
    arguments: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    loaded = load(arguments[0], [*arguments[1:], f"system.results={tmp_path}"])
    (refusal,) = refusals(loaded.run)
    assert why in refusal
    checked = with_refusals(check_config(loaded), [refusal])
    assert (checked.verdict, checked.cause) == ("FAIL", refusal)
    assert checked.findings[0].message == refusal
    with pytest.raises(UserError) as submitted:
        plan_submission(loaded, "slurm", 1, tmp_path)
    with pytest.raises(UserError) as launched:
        launch(loaded, track, Options("mpirun"))
    assert str(submitted.value) == str(launched.value).splitlines()[0] == refusal
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "grid"),
    [
        ("sony_1024", "256x4"),
        # not 544x4 in the first epochs, where half of the ranks idle
        ("sony_4096", "1024x4"),
        ("you_2048_knl", "32x64"),  # on CPUs our own, the squarest
    ],
)
def test_the_grid_that_runs_is_priced_and_shown(config: str, grid: str) -> None:
    loaded = load(config, ["comm.algorithm=torus_2d"])
    expected = f"torus_2d({grid})"
    assert (
        describe_launch(plan_launch(loaded, Options("mpirun")))["allreduce"] == expected
    )
    assert predict(job_of_config(loaded.run)).to_dict()["allreduce"] == expected


@pytest.mark.parametrize("name", sorted(set(list_presets())))
def test_no_preset_is_refused_for_this_machines_sake(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rn50.train.cuda.driver.read_gpus", lambda: None)
    assert refusals(load(name).run) == []


def test_mxnet_without_gpus_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("Tesla V100", (7, 0))
    monkeypatch.setattr("rn50.train.cuda.code.check_machine", lambda rank: (rank, gpu))
    monkeypatch.setattr("rn50.launch.preflight.gpu_code", lambda path: {"ELF": {70}})
    run = load("dgx1_8").run
    assert obstacles_here(run) == []
    monkeypatch.setattr("rn50.launch.preflight.gpu_code", lambda path: {})
    (obstacle,) = obstacles_here(run)
    assert obstacle.startswith(
        "system.device: MXNet for GPUs (scripts/setup.sh --gpu) for gpu expect"
    )
