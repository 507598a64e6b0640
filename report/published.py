"""Published MLPerf runs beside a log: the accelerators of its system, and where its time stands
among those of the same accelerator and count (`predict/published/mlperf_runs.csv`)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ..config.benchmark import IMAGENET_TRAIN_SAMPLES, TARGET_ACCURACY
from ..config.schema import Run
from ..logging.places import job_of
from ..predict.epochs import read_table
from .run_records import Subject
from .run_summary import RunSummary, median_of


class Entry(NamedTuple):
    """A published run; `score_s`: its olympic mean."""

    round: str
    org: str
    system: str
    accelerator: str
    accelerators: int
    score_s: float


class Standing(NamedTuple):
    """A time among the published ones of the same accelerator and count, the fastest first."""

    machine: str
    """Such as `8 x H100-SXM-80GB`."""
    time_s: float
    entries: tuple[Entry, ...]

    @property
    def place(self) -> int:
        """The place of the time among them: 1 is the fastest."""
        faster = [entry for entry in self.entries if entry.score_s < self.time_s]
        return 1 + len(faster)

    @property
    def text(self) -> str:
        best = self.entries[0]
        median_s = median(entry.score_s for entry in self.entries)
        return (
            f"place {self.place} of {len(self.entries) + 1} on {self.machine}: best published "
            f"{best.score_s:,.1f} s ({best.org}, v{best.round}), median {median_s:,.1f} s"
        )


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """All published runs, the fastest first."""
    runs = [
        Entry(
            round=row["version"],
            org=row["org"],
            system=row["system"],
            accelerator=row["accelerator"],
            accelerators=int(row["n_accelerators"]),
            score_s=float(row["score_s"]),
        )
        for row in read_table("mlperf_runs.csv")
    ]
    return tuple(sorted(runs, key=attrgetter("score_s")))


def machine_of(path: Path, config: Run | None) -> tuple[str, int] | None:
    """(accelerator, how many of them) of a log or a folder of logs: by the config of a run of ours,
    of a published one by the name of the system's folder. None: not known."""
    if config is not None:
        return config.system.accelerator, config.system.world_size
    folder = path.resolve()
    if not path.is_dir():
        folder = folder.parent
    if job_of(folder):
        folder = folder.parent
    for entry in entries():
        if entry.system == folder.name:  # the same count in all rounds
            return entry.accelerator, entry.accelerators
    return None


def standing(accelerator: str, accelerators: int, time_s: float) -> Standing | None:
    """Where a time stands; `accelerator` as a machine's file or the table names it. None: no
    published run has this accelerator and count."""
    name, memory = _model(accelerator)
    peers = [
        entry
        for entry in entries()
        if entry.accelerators == accelerators
        and _model(entry.accelerator) in ((name, memory), (name, ""))
    ]
    if not peers:
        return None
    return Standing(f"{accelerators:,} x {accelerator}", time_s, tuple(peers))


def standing_of(
    path: Path, config: Run | None, runs: Sequence[RunSummary]
) -> Standing | None:
    """Where the time to train of runs stands that reached the benchmark's target on ImageNet."""
    is_benchmark = all(
        run.target >= TARGET_ACCURACY and run.train_samples == IMAGENET_TRAIN_SAMPLES
        for run in runs
    )
    time_s = median_of(run.time_to_train_s for run in runs)
    machine = machine_of(path, config)
    if not is_benchmark or time_s is None or machine is None:
        return None
    return standing(*machine, time_s)


class PublishedCurve(NamedTuple):
    """The accuracies of published runs by epoch."""

    source: str
    runs: Sequence[Sequence[tuple[float, float]]]

    @property
    def label(self) -> str:
        return f"{self.source}, {len(self.runs)} runs"


def published_curves(subject: Subject) -> list[PublishedCurve]:
    """Those of the preset that the config of a run has or is based on, by its name or the files of
    its values."""
    if subject.config is None:
        return []
    files = {origin.partition(":")[0] for origin in subject.folder.origins.values()}
    presets = {subject.config.name, *(Path(file).stem for file in files)}
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in read_table("accuracy_curves.csv"):
        if fnmatch.filter(presets, row["presets"]):
            runs = curves.setdefault(row["source"], {})
            point = float(row["epoch"]), float(row["top1"])
            runs.setdefault(row["run"], []).append(point)
    return [PublishedCurve(key, [*runs.values()]) for key, runs in curves.items()]


def beside_published(subject: Subject) -> list[str]:
    """A sentence for each published curve: the accuracies of the last epoch that a run and it
    have."""
    if subject.shown is None:
        return []
    evaluations = subject.shown.figures.evaluations
    accuracies = {evaluation.epoch: evaluation.accuracy for evaluation in evaluations}
    sentences = []
    for curve in published_curves(subject):
        epochs = [epoch for epoch, _ in curve.runs[0] if epoch in accuracies]
        if epochs:
            last = epochs[-1]
            published = [
                top1 for run in curve.runs for epoch, top1 in run if epoch == last
            ]
            sentences.append(
                f"Accuracy {accuracies[last]:.4f} after epoch {last:g}, published "
                f"{min(published):.4f} to {max(published):.4f} ({curve.label})"
            )
    return sentences


def _model(accelerator: str) -> tuple[str, str]:
    """(name, memory) without what names differ in: `NVIDIA A100 SXM4 80 GB`, `A100-SXM-80GB`."""
    name = re.sub(r"nvidia|tesla", "", accelerator.lower())
    memory_gb = ""
    if memory := re.search(r"\b(\d+) ?gb\b", name):
        memory_gb = memory[1]
        name = name.replace(memory[0], "")
    return re.sub(r"(?<=sxm)\d|\W", "", name), memory_gb
