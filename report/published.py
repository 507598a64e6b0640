"""Published MLPerf runs beside a log: the accelerators of its system, and the accuracies of runs of
the same preset."""

from __future__ import annotations

import fnmatch
from functools import lru_cache
from pathlib import Path

from ..config.schema import Run
from ..logging.places import job_of
from ..predict.epochs import read_table
from .run_records import Subject


@lru_cache(maxsize=1)
def _published_accelerators() -> dict[str, int]:
    """System of a published run -> how many accelerators it has, the same in all rounds."""
    return {
        row["system"]: int(row["n_accelerators"])
        for row in read_table("mlperf_runs.csv")
    }


def accelerators_of(path: Path, config: Run | None) -> int | None:
    """How many accelerators a log or a folder of logs is of: by the config of a run of ours, of a
    published one by the name of the system's folder. None: not known."""
    if config is not None:
        return config.system.world_size
    folder = path.resolve()
    if not path.is_dir():
        folder = folder.parent
    if job_of(folder):
        folder = folder.parent
    return _published_accelerators().get(folder.name)


def published_curves(subject: Subject) -> dict[str, list[list[tuple[float, float]]]]:
    """Label in a legend -> of each run the accuracies by epoch, for the preset that the config of a
    run has or is based on, by its name or the files of its values."""
    if subject.config is None:
        return {}
    # an origin is FILE:LINE, so that a config based on a preset is known by its values
    files = {origin.partition(":")[0] for origin in subject.folder.origins.values()}
    presets = {subject.config.name, *(Path(file).stem for file in files)}
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in read_table("accuracy_curves.csv"):
        if fnmatch.filter(presets, row["presets"]):
            runs = curves.setdefault(row["source"], {})
            point = float(row["epoch"]), float(row["top1"])
            runs.setdefault(row["run"], []).append(point)
    return {
        f"{source}, {len(runs)} runs": [*runs.values()]
        for source, runs in curves.items()
    }


def beside_published(subject: Subject) -> list[str]:
    """A sentence for each published curve: the accuracies of the last epoch that a run and it
    have."""
    if subject.shown is None:
        return []
    evaluations = subject.shown.evaluations
    accuracies = {evaluation.epoch: evaluation.accuracy for evaluation in evaluations}
    sentences = []
    for label, runs in published_curves(subject).items():
        epochs = [epoch for epoch, _ in runs[0] if epoch in accuracies]
        if epochs:
            last = epochs[-1]
            published = [top1 for run in runs for epoch, top1 in run if epoch == last]
            sentences.append(
                f"Accuracy {accuracies[last]:.4f} after epoch {last:g}, published "
                f"{min(published):.4f} to {max(published):.4f} ({label})"
            )
    return sentences
