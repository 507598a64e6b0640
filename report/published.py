"""Published MLPerf runs beside a log: the accelerators of its system, and where its time stands
among those of the same accelerator and count (`scaling/published/mlperf_runs.csv`)."""

from __future__ import annotations

import re
from functools import lru_cache
from statistics import median
from typing import NamedTuple

from ..config.benchmark import TARGET_ACCURACY
from ..config.finding import number
from ..logging.places import job_of
from ..scaling.epochs import read_table
from .run_folder import Subject


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
    def text(self) -> str:
        times_s = [entry.score_s for entry in self.entries]
        best = self.entries[0]
        place = 1 + sum(time_s < self.time_s for time_s in times_s)
        return (
            f"{self.time_s:,.1f} s, place {place} beside {len(times_s)} published on "
            f"{self.machine}: best {best.score_s:,.1f} s ({best.org}, v{best.round}), median "
            f"{median(times_s):,.1f} s"
        )


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """All published runs, the fastest first."""
    found = [
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
    return tuple(sorted(found, key=lambda entry: entry.score_s))


def entry_of(subject: Subject) -> Entry | None:
    """The published run whose logs these are, by the name of the system's folder; its count of
    accelerators is the same in all rounds."""
    folder = subject.path if subject.path.is_dir() else subject.path.parent
    folder = folder.resolve()
    system = folder.parent.name if job_of(folder) else folder.name
    return next((entry for entry in entries() if entry.system == system), None)


def accelerators_of(subject: Subject) -> int | None:
    """How many accelerators trained: the ranks of a run of ours, else those of the entry."""
    if subject.folder is not None:
        ranks = number(subject.folder.result.get("ranks"))
        system = subject.folder.config and subject.folder.config.run.system
        planned = system.nodes * system.ranks_per_node if system else None
        return int(ranks) if ranks else planned
    entry = entry_of(subject)
    return entry.accelerators if entry else None


def standing(accelerator: str, accelerators: int, time_s: float) -> Standing | None:
    """Where a time stands; `accelerator` as a machine's file or the table names it. None: no
    published run has this accelerator and count."""
    name, memory = _model(accelerator)
    found = []
    for entry in entries():
        theirs, their_memory = _model(entry.accelerator)
        same = theirs == name and their_memory in ("", memory)
        if same and entry.accelerators == accelerators:
            found.append(entry)
    machine = f"{accelerators:,} x {accelerator}"
    return Standing(machine, time_s, tuple(found)) if found else None


def standing_of(subject: Subject) -> Standing | None:
    """Where the time to train of a run stands that reached the benchmark's target on ImageNet."""
    reached = [run for run in subject.runs if run.reached and run.run_s is not None]
    accelerators = accelerators_of(subject)
    if not reached or accelerators is None or not reached[0].is_imagenet:
        return None
    if reached[0].target < TARGET_ACCURACY:
        return None
    if subject.folder is not None and subject.folder.config is not None:
        accelerator = subject.folder.config.run.system.accelerator
    else:
        entry = entry_of(subject)
        accelerator = entry.accelerator if entry else ""
    return standing(accelerator, accelerators, median(run.run_s or 0.0 for run in reached))


def _model(accelerator: str) -> tuple[str, str]:
    """(name, memory) without what names differ in: `NVIDIA A100 SXM4 80 GB`, `A100-SXM-80GB`."""
    words = re.sub(r"nvidia|tesla", "", accelerator.lower())
    memory = re.search(r"\b(\d+) ?gb\b", words)
    name = words.replace(memory[0], "") if memory else words
    return re.sub(r"(?<=sxm)\d|\W", "", name), memory[1] if memory else ""
