"""The job scripts in `examples/`, for those who submit by hand: what `rn50 submit` writes."""

from __future__ import annotations

from ..config.load import load
from .job_script import Place, job_script

HAND_SCRIPTS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    # scheduler, runs, CONFIG and overrides
    "abci_sge.sub": ("sge", 5, ("abci_2048_open",)),
    "abci_pbs.sub": (
        "pbs",
        5,
        (
            *("abci_2048_open", "system.job.queue=rt_F", "system.job.resource=ngpus=4"),
            "system.job.stage=$PBS_LOCALDIR",
        ),
    ),
    "summit_lsf.sub": (
        "lsf",
        5,
        ("abci_2048_open", "system=summit", "system.nodes=512", "system.ranks_per_node=4"),
    ),
    "superpod_slurm.sub": (
        "slurm",
        5,
        ("abci_2048_open", "system=superpod", "system.nodes=512", "system.ranks_per_node=4"),
    ),
    "superpod_pyxis.sub": (
        "slurm",
        5,
        (
            *("abci_2048_open", "system=superpod", "system.nodes=512", "system.ranks_per_node=4"),
            *("system.job.container=registry#rn50:gpu", "system.job.python=/opt/venv/bin/python"),
        ),
    ),
    "smoke_slurm.sub": ("slurm", 1, ("smoke", "system.nodes=2", "system.ranks_per_node=1")),
    "smoke_local.sh": ("local", 1, ("smoke",)),
}


def hand_script(name: str) -> str:
    """The text of `launch/examples/NAME`."""
    scheduler, runs, config = HAND_SCRIPTS[name]
    run = load(config[0], config[1:]).run
    job = run.system.job
    place = Place(config, home=job.home, python=job.python, name=f"launch/examples/{name}")
    return job_script(run, scheduler, place, runs)
