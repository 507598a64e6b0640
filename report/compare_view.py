"""A comparison in sentences for people and in JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.finding import number
from ..logging.places import job_of, run_folders
from .compare import CLOCKS, Comparison
from .compare_runs import Column
from .divergence import Divergence
from .run_folder import Subject
from .run_summary import RunSummary, show


def name_of(subject: Subject) -> str:
    """A short name: the last two parts of the path; a job's for its logs, ORG/SYSTEM for those of a
    submission."""
    path = subject.path.resolve()
    job = job_of(path)
    if job is None:
        parts = path.parts[-2:]
    elif run_folders(job):
        parts = job.parts[-2:]
    else:
        parts = (job.name, path.parent.name)
    return show("/".join(parts))


def divergence_lines(comparison: Comparison) -> list[str]:
    """What `divergences` and `same_files` say, a sentence each."""
    lines = list(comparison.same_files)
    for letter, found in zip(comparison.letters[1:], comparison.divergences, strict=True):
        lines.append(f"A and {letter}: {_part_text(found)}")
        if found.first_bit is not None:
            lines.append(f"A and {letter}, same config and seed: {_bit_text(found)}")
    return lines


def to_json(
    comparison: Comparison, columns: Sequence[Column] = (), order: Sequence[int] | None = None
) -> dict[str, Any]:
    """For programs: numbers as logged, nothing rounded.

    Args:
        comparison: what is shown.
        columns: of the table with a row a run; each subject has its row.
        order: of the subjects, by number; None: as they were given.
    """
    subjects = [
        {
            "letter": letter,
            "path": str(subject.path),
            "verdict": verdict,
            "notes": list(subject.notes),
            "row": {column.key: column.values[number] for column in columns},
            "runs": [_run_json(log.path, log.digest, log.figures) for log in subject.logs],
        }
        for number, (letter, subject, verdict) in enumerate(
            zip(comparison.letters, comparison.subjects, comparison.verdicts, strict=True)
        )
    ]
    return {
        "subjects": subjects if order is None else [subjects[number] for number in order],
        "differing_parameters": [row.name for row in comparison.parameters if row.differs],
        "config_differences": {row.name: list(row.cells) for row in comparison.config},
        "divergences": [
            {
                "left": "A",
                "right": letter,
                **found._asdict(),
                "parting": found.parting._asdict() if found.parting else None,
                "first_bit": found.first_bit._asdict() if found.first_bit else None,
            }
            for letter, found in zip(comparison.letters[1:], comparison.divergences, strict=True)
        ],
        "same_files": list(comparison.same_files),
    }


def _run_json(path: Path, digest: str, run: RunSummary) -> dict[str, Any]:
    return {
        "path": str(path),
        "sha256": digest,
        "submission": run.submission,
        "status": run.status,
        "parameters": {key: _json_value(value) for key, value in run.parameters.items()},
        **{clock.key: clock.read(run) for clock in CLOCKS},
        "evaluations": [
            {"epoch": one.epoch, "time_s": one.time_s, "accuracy": one.accuracy}
            for one in run.evaluations
        ],
        "epoch_times_s": [
            {"epoch": one.epoch, "epochs": one.epochs, "duration_s": one.duration_s}
            for one in run.epochs
        ],
    }


def _json_value(value: Any) -> Any:
    """Numbers and text as they are, all else (NaN, lists, objects) as text."""
    plain = value is None or isinstance(value, bool | str) or number(value) is not None
    return value if plain else show(value)


def _part_text(found: Divergence) -> str:
    if not found.compared:
        return "no evaluation at a common epoch"
    how = f"{found.compared} evaluation{'s' * (found.compared > 1)}, {found.basis}"
    if found.interpolated:
        how += f", {found.interpolated} interpolated"
    if found.parting is None:
        return f"the curves agree within 3 standard deviations ({how})"
    epoch, left, right, limit = found.parting
    return (
        f"the curves part at epoch {epoch:g}: {left:.5f} against {right:.5f}, "
        f"{abs(left - right):.5f} apart, limit {limit:.5f} ({how})"
    )


def _bit_text(found: Divergence) -> str:
    bit = found.first_bit
    assert bit is not None
    if bit.where is None:
        return f"the same in every bit of {bit.compared} losses and accuracies"
    return f"first bitwise difference: {show(bit.where)}, {bit.left!r} against {bit.right!r}"
