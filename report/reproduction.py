"""Whether a run repeats a recorded one bit for bit: its losses, its accuracies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.image_set import SYNTHETIC
from ..config.leaves import flatten
from ..config.load import Loaded
from ..config.schema import PLACES
from ..host.errors import UserError
from ..host.finding import number
from ..host.reading import JsonObject
from ..logging.records import Repeat
from ..logging.run_folder import RunFolder
from .run_records import RunRecords, Subject, read_folder
from .run_summary import show

_AROUND = ("launcher", "processor", "packages")
"""Sections of environment.json that are compared beside the config."""
_COMPARED = {
    "train": ("loss at step", "step", "loss"),
    "eval": ("accuracy of epoch", "epoch", "accuracy"),
}
"""Kind of a record -> what is compared in words, the keys of its place and of its value."""


def repeat_line(repeat: Repeat) -> str:
    """The one line for people."""
    heads = {
        True: "reproduced",
        False: "not reproduced",
        None: "cannot tell if reproduced",
    }
    return f"{heads[repeat.same]}: {repeat.text}; recorded run: {repeat.recorded}"


def find_recorded(config: str) -> Path | None:
    """The folder of the run whose saved config this is: a config.yaml with a log beside it."""
    path = Path(config)
    run = RunFolder(path.parent)
    if path != run.config or not run.log.is_file():
        return None
    return run.path


def compare_with_recorded(recorded: Path, out: Path) -> Repeat:
    """Compare the run in folder `out` with that in `recorded`; never raises on content."""
    try:
        old = read_folder(recorded)
        new = read_folder(out)
    except UserError as error:
        return Repeat(str(recorded), 0, show(str(error).splitlines()[0]))
    repeat = first_bit(new, old)
    reasons = _differences(old.folder, new.folder)
    if not reasons:
        return repeat
    differences = show(", ".join(reasons), 400)
    sentence = f"{repeat.text}; differences (here, there): {differences}"
    return replace(repeat, text=sentence)


def first_bit(subject: Subject, reference: Subject) -> Repeat:
    """Compare a run with another; the text names the first loss or accuracy in which they differ in
    any bit. One that is a number in neither, such as a loss that is not finite, has no bits to
    compare."""
    ours = _values(subject)
    theirs = _values(reference)
    shared = [
        key for key in ours if key in theirs and {ours[key], theirs[key]} != {None}
    ]
    recorded = str(reference.path)
    compared = len(shared)
    if not shared:
        return Repeat(recorded, compared, "no loss or accuracy that both have")
    for key in shared:
        # JSON keeps every bit of a float, so equal numbers are equal bits
        if ours[key] != theirs[key]:
            where, _ = key
            values = f"{ours[key]!r} against {theirs[key]!r}"
            sentence = f"first bitwise difference: {show(where)}, {values}"
            return Repeat(recorded, compared, sentence, same=False)
    sentence = f"the same in every bit of {compared} losses and accuracies"
    return Repeat(recorded, compared, sentence, same=True)


def are_of_one_config(first: Subject, second: Subject) -> bool:
    """Whether two subjects are a run each, of the same config and seed."""
    configs = [
        without_places(subject.folder.config)
        for subject in (first, second)
        if subject.folder.config and len(subject.runs) == 1
    ]
    return len(configs) == 2 and configs[0] == configs[1]


def without_places(config: Loaded) -> JsonObject:
    """Return the leaves of a config by dotted path, without those that change no result: where
    files lie, and what to draw where there are none."""
    path_keys = (*PLACES, SYNTHETIC)
    return {
        key: value
        for key, value in flatten(config.to_dict())
        if not key.startswith(path_keys)
    }


def _values(subject: Subject) -> dict[tuple[str, Any], float | None]:
    """All losses and accuracies by where they are and, of a mean, of how many steps it is: from the
    metrics, else from the log."""
    values = {}
    for record in subject.folder.metrics:
        kind = str(record.get("kind"))
        if kind in _COMPARED:
            label, place_key, value = _COMPARED[kind]
            where = f"{label} {show(record.get(place_key))}"
            values[where, record.get("steps")] = number(record.get(value))
    if values or not subject.runs:
        return values
    return {
        (f"accuracy of epoch {show(evaluation.epoch)}", None): evaluation.accuracy
        for evaluation in subject.runs[0].evaluations
    }


def _differences(old: RunRecords, new: RunRecords) -> list[str]:
    """Config values, then launcher, processor and packages that differ: `name (here, there)`."""
    old_values = _surroundings(old)
    new_values = _surroundings(new)
    differences = []
    for key in old_values | new_values:
        old_value = old_values.get(key)
        new_value = new_values.get(key)
        if old_value != new_value:
            differences.append(
                f"{show(key)} ({show(new_value, 40)}, {show(old_value, 40)})"
            )
    return differences


def _surroundings(folder: RunRecords) -> JsonObject:
    environment = {key: getattr(folder.environment, key) for key in _AROUND}
    config = (folder.config and without_places(folder.config)) or {}
    return config | dict(flatten(environment))
