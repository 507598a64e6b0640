"""Folders of runs: a new one, its config, and one to throw away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from ..config.load import Loaded
from ..config.plan import Plan
from ..config.schema import Run
from ..config.yaml_file import short
from ..host.atomic import partial_beside, write_file, write_json
from ..host.errors import RankFailed, failing_as
from ..host.reading import read_object
from ..logging.records import Brief
from ..logging.run_folder import JobFolder, RunFolder


def new_run_folder(run: Run) -> Path:
    """`results/<name>/<UTC time>/`, created. Raises UserError where it cannot be."""
    parent = Path(run.system.results) / run.name
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    with failing_as(f"{parent}: cannot create a new folder in it"):
        for number in count(1):
            folder = parent / f"{stamp}-{number}".removesuffix("-1")
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
    raise AssertionError("a number is free")


def save_config(loaded: Loaded, out: RunFolder | JobFolder) -> None:
    """Write config.yaml, which runs the same again, and origins.json. What a job's config.yaml says
    comes from where its submission had it."""
    write_file(out.config, loaded.to_yaml())
    job = JobFolder(out.path.parent)
    of_job = short(job.config)
    submitted = read_object(job.origins)
    origins = {}
    for path, _, origin in loaded.leaves():
        origins[path] = str(origin)
        if origin.source == of_job:
            origins[path] = str(submitted.get(path, origin))
    write_json(out.origins, origins)


def in_brief(run: Run, plan: Plan) -> Brief:
    """What `rn50 runs` shows of a config. `plan`: its durations as steps."""
    return Brief(
        run.name, run.eval.target, plan.ranks, plan.last_step, plan.eval_epochs[-1]
    )


@contextmanager
def scratch_folder(loaded: Loaded, name: str) -> Iterator[Path]:
    """A folder below the results for ranks that are no run (a benchmark, an evaluation), where all
    nodes can read, with `config.yaml` in it.

    It is removed, unless a rank failed: then it stays, as `<name>_failed_...`, with stderr.log.
    """
    results = Path(loaded.run.system.results)
    with ExitStack() as stack:
        with failing_as(f"{results}: cannot create a folder in it"):
            out = stack.enter_context(partial_beside(results / name, is_folder=True))
        try:
            write_file(RunFolder(out).config, loaded.to_yaml())
            yield out
        except RankFailed as error:
            kept_folder = results / f"{name}_failed_{out.name.rpartition('-')[2]}"
            out.rename(kept_folder)
            reason = error.reason.replace(str(out), str(kept_folder))
            raise RankFailed(reason, kept_folder / error.log.name) from None
