"""The job scripts in `examples/`, for those who submit by hand: what `rn50 submit` writes."""

from __future__ import annotations

from ..config.load import load
from .job_script import JobPaths, job_script

EXAMPLES: dict[str, tuple[str, tuple[str, ...]]] = {
    # scheduler, CONFIG and overrides
    "smoke_slurm.sub": ("slurm", ("smoke", "system.nodes=2", "system.ranks_per_node=1")),
    "smoke_local.sh": ("local", ("smoke",)),
}


def example_script(name: str) -> str:
    """The text of `launch/examples/NAME`."""
    scheduler, config = EXAMPLES[name]
    run = load(config[0], config[1:]).run
    job = run.system.job
    paths = JobPaths(config, home=job.home, python=job.python, name=f"launch/examples/{name}")
    return job_script(run, scheduler, paths)
