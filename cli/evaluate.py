"""`rn50 evaluate`: checkpoints scored again, several as an ensemble too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from ..host.reading import JsonObject
from .console import (
    Json,
    Launcher,
    Ranks,
    argument,
    aside,
    exit_bad_if,
    print_json,
    say,
    track,
)

_RUN = "Folder of a run, for its best checkpoint, else its newest; or a file `*.ckpt`."
RunOrCheckpoint = Annotated[Path, argument(_RUN, metavar="RUN")]
RunsAndOverrides = Annotated[
    list[str],
    argument(
        f"{_RUN} `key.path=value` changes the config of each.", metavar="RUN|KEY=VALUE"
    ),
]


def evaluate(
    words: RunsAndOverrides,
    ranks: Ranks = None,
    launcher: Launcher = None,
    as_json: Json = False,
) -> None:
    """Score a checkpoint again: top-1 and top-5 on the run's evaluation set, by the run's code.

    Several are scored one by one and as an ensemble, by the mean of their softmax.

    Exit 0: as many correct images as the run recorded for these weights, or it recorded none, or
    several were scored; 1: another number; 2: bad input or a failed rank.

    Example: `rn50 evaluate results/smoke/20261123T050000Z --ranks 1`

    Example: `rn50 evaluate results/quick/20261123T050000Z data.path=/scratch/quick`

    Example: `rn50 evaluate results/quick/*`
    """
    from ..launch.evaluation import evaluate as score

    overrides = [
        word for word in words[1:] if "=" in word and not os.path.lexists(word)
    ]
    paths = [Path(word) for word in words if word not in overrides]
    with aside(as_json):
        scores = score(paths, overrides, ranks, launcher, track)
    if as_json:
        print_json(scores)
    else:
        for run in scores.get("runs", [scores]):
            trained = f"step {run['step']}, {run['epochs']} epochs trained"
            say(f"{run['checkpoint']}: {trained}")
            _say_counts(run)
            _say_whether_as_recorded(run)
        if "ensemble" in scores:
            say(f"ensemble of {len(scores['runs'])}, the mean of their softmax")
            _say_counts(scores["ensemble"])
    exit_bad_if(scores.get("as_recorded") is False)


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
        say("the run recorded no such evaluation of these weights")
    else:
        say(f"the run recorded {recorded:.5f} ({round(recorded * total)} of {total})")
