"""`rn50 evaluate`: checkpoints scored again, several as an ensemble too."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Sequence
from csv import DictWriter
from itertools import chain
from pathlib import Path
from typing import Annotated

from ..host.atomic import in_its_folder, write_output
from ..host.errors import UserError
from ..host.reading import JsonObject
from ..logging.records import Confusions, write
from ..logging.run_folder import RunFolder
from .console import (
    Json,
    Launcher,
    Ranks,
    argument,
    aside,
    exit_bad_if,
    option,
    output_file,
    print_json,
    print_table,
    say,
    say_aside,
    track,
)

_COLUMNS = ("photo", "class", "guess", "probability")
_MOST_LISTED = 40
"""Rows of wrong photos, or of pairs of classes, on a terminal."""
_MOST_CLASSES = 30
"""The most classes for which the table of what was taken for what is shown."""
Pairs = Counter[tuple[str, str]]
"""How many photos there are of each class and guess."""
_RUN = "Folder of a run, for its best checkpoint, else its newest; or a file `*.ckpt`."
RunOrCheckpoint = Annotated[Path, argument(_RUN, metavar="RUN")]
RunsAndOverrides = Annotated[
    list[str],
    argument(
        f"{_RUN} `key.path=value` changes the config of each.", metavar="RUN|KEY=VALUE"
    ),
]


def evaluate(
    arguments: RunsAndOverrides,
    ranks: Ranks = None,
    launcher: Launcher = None,
    wrong: Annotated[
        bool,
        option("List the photos that it gets wrong, and what for what.", "--wrong"),
    ] = False,
    csv: Annotated[
        Path | None, output_file("With --wrong: write the list of them as CSV")
    ] = None,
    image: Annotated[
        list[Path] | None,
        option("New photos, instead of a score: their classes.", metavar="FILE..."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a checkpoint again: top-1 and top-5 on the run's evaluation set, by the run's code.

    Several are scored one by one and as an ensemble, by the mean of their softmax.

    Exit 0: as many correct images as the run recorded for these weights, or it recorded none, or
    several were scored; 1: another number; 2: bad input or a failed rank.

    Example: `rn50 evaluate results/smoke/20261123T050000Z --ranks 1`

    Example: `rn50 evaluate results/quick/20261123T050000Z data.path=/scratch/quick`

    Example: `rn50 evaluate results/quick/*`

    Example: `rn50 evaluate results/mine/20261123T050000Z --wrong --csv wrong.csv`

    Example: `rn50 evaluate results/mine/20261123T050000Z --image cat.jpg dog.jpg`
    """
    from ..launch.evaluation import classify
    from ..launch.evaluation import evaluate as score

    # a path that is there is no override, whatever is in its name
    overrides = [
        entry for entry in arguments[1:] if "=" in entry and not os.path.lexists(entry)
    ]
    paths = [Path(entry) for entry in arguments if entry not in overrides]
    if csv is not None and not wrong:
        raise UserError("--csv needs --wrong")
    if wrong and (image or len(paths) > 1):
        raise UserError("--wrong is for the evaluation of one run")
    if image:
        run, *more = paths
        with aside(as_json):
            photos = classify(run, [*image, *more], overrides, ranks, launcher)
        (print_json if as_json else _say_classes)(photos)
        return
    with aside(as_json):
        scores, guesses = score(paths, overrides, ranks, launcher, track)
    if wrong:
        scores["wrong"] = [row for row in guesses if row["guess"] != row["class"]]
        pairs = Counter((row["class"], row["guess"]) for row in guesses)
        _leave_confusions(pairs, scores)
    if csv is not None:
        write_output(csv, _to_csv(scores["wrong"]))
    if as_json:
        print_json(scores)
    else:
        _say_scores(scores)
        if wrong:
            _say_wrong(scores["wrong"])
            _say_confusions(pairs)
    exit_bad_if(scores.get("as_recorded") is False)


def _say_scores(scores: JsonObject) -> None:
    for run in scores.get("runs", [scores]):
        trained = f"step {run['step']}, {run['epochs']:g} epochs trained"
        say(f"{run['checkpoint']}: {trained}")
        _say_counts(run)
        _say_whether_as_recorded(run)
    if "ensemble" in scores:
        say(f"ensemble of {len(scores['runs'])}, the mean of their softmax")
        _say_counts(scores["ensemble"])


def _say_classes(photos: Sequence[JsonObject]) -> None:
    for photo in photos:
        shares = [f"{name} {share:.3f}" for name, share in photo["classes"].items()]
        say(f"{photo['image']}: {', '.join(shares)}")


def _to_csv(photos: Sequence[JsonObject]) -> str:
    buffer = io.StringIO()
    table = DictWriter(buffer, _COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(photos)
    return buffer.getvalue()


def _say_wrong(wrong: Sequence[JsonObject]) -> None:
    """The wrong photos, the surest guess first."""
    surest = sorted(wrong, key=lambda photo: -photo["probability"])[:_MOST_LISTED]
    rows = []
    for photo in surest:
        rows.append([str(photo[name]) for name in _COLUMNS])
        rows[-1][3] = f"{photo['probability']:.3f}"
    print_table(_COLUMNS, rows, right=(3,))
    if len(wrong) > len(rows):
        say(f"and {len(wrong) - len(rows):,} more; --csv FILE has all")


def _leave_confusions(pairs: Pairs, scores: JsonObject) -> None:
    """Leave the counts of few classes for the run's report, if its folder can be written to."""
    classes = _classes(pairs)
    if len(classes) > _MOST_CLASSES:
        return
    rows = (tuple(pairs[label, guess] for guess in classes) for label in classes)
    # RUN/checkpoint/FILE.ckpt
    path = RunFolder(Path(scores["checkpoint"]).parent.parent).confusions
    try:
        write(in_its_folder(path), Confusions(scores["step"], classes, tuple(rows)))
    except OSError as error:
        say_aside(f"rn50: note: {path}: cannot write: {error.strerror}")


def _classes(pairs: Pairs) -> tuple[str, ...]:
    return tuple(sorted(set(chain.from_iterable(pairs))))


def _say_confusions(pairs: Pairs) -> None:
    """How often which class was taken for which: of few classes as a table, of many the pairs that
    are most frequent."""
    names = _classes(pairs)
    if len(names) > _MOST_CLASSES:
        # without those that were right: class and guess are one
        frequent = [
            (*pair, str(count))
            for pair, count in pairs.most_common()
            if len({*pair}) > 1
        ]
        print_table(("class", "guess", "photos"), frequent[:_MOST_LISTED], right=(2,))
        return
    rows = [
        (label, *(str(pairs[label, guess] or ".") for guess in names))
        for label in names
    ]
    columns = range(1, len(names) + 1)
    print_table(("class, and the guesses", *names), rows, right=columns)


def _say_counts(score: JsonObject) -> None:
    total = score["total"]
    for name, key in (("top-1", "correct"), ("top-5", "correct_top5")):
        correct = score[key]
        say(f"{name} {correct / total:.5f} ({correct} of {total})")


def _say_whether_as_recorded(score: JsonObject) -> None:
    recorded = score["recorded_accuracy"]
    total = score["total"]
    if score["as_recorded"]:
        say("the same as the run recorded")
    elif recorded is None:
        say("the checkpoint has no such evaluation of its weights")
    else:
        say(f"the run recorded {recorded:.5f} ({round(recorded * total)} of {total})")
