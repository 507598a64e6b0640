"""`rn50 evaluate`: checkpoints scored again by the evaluation of their runs, on ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..config.layout import with_ranks
from ..config.leaves import flatten
from ..config.load import Loaded
from ..config.manifest import has_manifest, load_manifest
from ..config.plan import build_plan
from ..config.recorded import load_recorded, words_to_repeat
from ..config.schema import Data
from ..data.dataset import load_table, photo_names
from ..data.pack import pack_images
from ..data.prepare import prepare
from ..data.survey import PHOTO_SUFFIXES, is_photo
from ..host.atomic import copy_file, partial_beside, write_file
from ..host.errors import UserError, failing_as
from ..host.progress import Tracker, say_aside
from ..host.reading import JsonObject
from ..logging.run_folder import RunFolder
from ..train.capabilities import check_supported
from ..train.checkpoint.file import Checkpoint
from ..train.checkpoint.folder import chosen_checkpoint, copy_of
from ..train.checkpoint.resume import FREE, recorded_run
from ..train.checkpoint.state import is_between_blocks
from ..train.communication.identity import image_set_in
from ..train.score import guesses_file, score
from .bodies import run_body
from .hosts import missing_hosts
from .launchers import pick_launcher
from .preflight import refuse
from .run_files import scratch_folder

_ASKED = ("data.", "model.", "eval.bn_stats")
"""What the accuracy of given weights depends on."""
_SHARED = (
    "data.path",
    "data.classes",
    "data.eval_samples",
    "data.crop_px",
    "data.eval_resize_px",
    "model.dtype",
)
"""What the networks of an ensemble must have in common: their images, and the type in which they
compute (bfloat16's casts are those of a whole process)."""


def evaluate(
    paths: Sequence[Path],
    overrides: list[str],
    ranks: int | None,
    launcher: str | None,
    track: Tracker,
) -> tuple[JsonObject, list[JsonObject]]:
    """Score checkpoints, several as an ensemble too; returns what `rn50 evaluate --json` prints,
    and of a single one the guess on each image.

    Args:
        paths: checkpoints, or folders of runs.
        overrides: `key.path=value` over the config of each run.
        ranks: on this machine; None: the first run's own.
        launcher: asked for by name; None: found here.
        track: shows how far the drawing of a missing set is.

    Raises:
        UserError: no such checkpoint, no images, runs that make no ensemble, or a rank failed.
    """
    overrides = with_ranks(overrides, ranks)
    checkpoints = [chosen_checkpoint(path) for path in paths]
    loaded = [_config_of(checkpoint, overrides) for checkpoint in checkpoints]
    _check_shared(paths, loaded)
    run = loaded[0].run
    refuse(missing_hosts(run, pick_launcher(launcher)))
    prepare(run.data, track, loaded[0].origins)
    copies, counts, rows = _score(checkpoints, loaded, launcher)
    for count in counts:
        count["accuracy"] = count["correct"] / count["total"]
        count["accuracy_top5"] = count["correct_top5"] / count["total"]
    # of several the last count is the ensemble's
    scored = [
        _report(*member, run.system.world_size)
        for member in zip(copies, loaded, counts, strict=False)
    ]
    if len(scored) == 1:
        return scored[0], _guesses(rows, run.data)
    return {"runs": scored, "ensemble": counts[-1]}, []


def classify(
    path: Path,
    images: Sequence[Path],
    overrides: list[str],
    ranks: int | None,
    launcher: str | None,
) -> list[JsonObject]:
    """Guess the classes of new images by a checkpoint, prepared as in its run's evaluation.

    Args:
        path: a checkpoint, or the folder of a run.
        images: files of the kinds that `rn50 data pack` takes.
        overrides: `key.path=value` over the run's config.
        ranks: on this machine; None: the run's own.
        launcher: asked for by name; None: found here.

    Raises:
        UserError: as `evaluate`, or a file is no image.
    """
    checkpoint = chosen_checkpoint(path)
    loaded = _config_of(checkpoint, with_ranks(overrides, ranks))
    classes = _classes(loaded.run.data)
    results = Path(loaded.run.system.results)  # where all nodes read
    with packed_images(images, results) as folder:
        data = loaded.run.data.model_copy(
            update={
                "path": str(folder),
                "eval_samples": len(images),
                "shards": None,
                "synthetic": None,
            }
        )
        run = loaded.run.model_copy(update={"data": data})
        _, _, rows = _score([checkpoint], [Loaded(run, loaded.origins)], launcher)
        rows = rows[np.argsort(photo_names(folder / "val.rec"))]  # as numbered
    answers = []
    for image, (shares, numbers) in zip(images, rows, strict=True):
        names = [classes[int(number)] for number in numbers]
        likeliest = dict(zip(names, shares.tolist(), strict=True))
        answers.append({"image": str(image), "classes": likeliest})
    return answers


@contextmanager
def packed_images(images: Sequence[Path], results: Path) -> Iterator[Path]:
    """The images as the val of a packed set below `results`, which is removed at the end. Raises
    UserError: one is no image, or `results` cannot be written."""
    with (
        failing_as(f"{results}: cannot write in it"),
        partial_beside(results / "images", is_folder=True) as scratch,
    ):
        _pack(images, scratch)
        yield scratch / "set"


def _pack(images: Sequence[Path], scratch: Path) -> None:
    """Pack images as the val of a set, under names that sort in their order. Its train, which no
    evaluation reads, is grey, and its second class is there since a set has two."""
    for folder in ("train/new", "train/other", "val/new"):
        (scratch / "images" / folder).mkdir(parents=True)
    for level, name in enumerate(("new", "other")):
        Image.new("L", (8, 8), level).save(scratch / f"images/train/{name}/grey.png")
    originals = {}
    for number, image in enumerate(images):
        if not is_photo(image.name):
            kinds = ", ".join(PHOTO_SUFFIXES)
            raise UserError(f"{image}: an image ({kinds}) expected, by its name")
        with failing_as(f"{image}: an image expected, cannot read"):
            copy = scratch / f"images/val/new/{number:06}_{image.name}"
            copy_file(image, copy)
        originals[str(copy)] = str(image)
    try:
        pack_images(scratch / "images", scratch / "set", processes=1)
    except UserError as error:
        first = str(error).partition("\n")[0]
        for copy_name, original in originals.items():
            first = first.replace(copy_name, original)
        raise UserError(first) from None


def _score(
    checkpoints: Sequence[Checkpoint], loaded: Sequence[Loaded], launcher: str | None
) -> tuple[list[Checkpoint], list[JsonObject], Any]:
    """Score copies of checkpoints on ranks: what was copied, the counts, and of a single one the
    array of `Guesses` over all images."""
    run = loaded[0].run
    with scratch_folder(loaded[0], "evaluate") as out:
        pairs = []
        copies = []
        for number, checkpoint in enumerate(checkpoints):
            config = out / f"config_{number}.yaml"
            write_file(config, loaded[number].to_yaml())
            copy = copy_of(checkpoint, out / f"{number}.ckpt")
            pairs.append((str(config), str(copy.path.absolute())))
            copies.append(copy._replace(path=checkpoint.path))
        name = pick_launcher(launcher)
        counts = run_body(run, name, out, "evaluation", score, pairs)
        rows = None
        if len(checkpoints) == 1:
            files = [guesses_file(out, rank) for rank in range(run.system.world_size)]
            rows = np.concatenate(list(map(np.load, files)))
    return copies, counts, rows


def _guesses(rows: Any, data: Data) -> list[JsonObject]:
    """The likeliest class of each image of a set's val, in its order."""
    folder = Path(data.path)
    classes = _classes(data)
    labels = load_table(folder, "val")["label"].tolist()
    photos = photo_names(folder / "val.rec") or [""] * len(labels)
    return [
        {
            "photo": photo,
            "class": classes[label],
            "guess": classes[int(numbers[0])],
            "probability": float(shares[0]),
        }
        for photo, label, (shares, numbers) in zip(photos, labels, rows, strict=False)
    ]


def _classes(data: Data) -> list[str]:
    """The names of a set's classes; where it is gone their numbers."""
    folder = Path(data.path)
    if has_manifest(folder):
        return load_manifest(folder).classes
    say_aside(f"rn50: note: {folder}: no image set, so classes are numbers")
    return list(map(str, range(data.classes)))


def _check_shared(paths: Sequence[Path], loaded: Sequence[Loaded]) -> None:
    """Raise UserError for the first run whose images or type are not those of the first."""
    trees = [dict(flatten(config.to_dict())) for config in loaded]
    for path, tree in zip(paths, trees, strict=True):
        for key in _SHARED:
            if tree[key] != trees[0][key]:
                raise UserError(
                    f"{path}: {key} {trees[0][key]!r} expected as in {paths[0]}, found "
                    f"{tree[key]!r}; an ensemble is scored on the same images"
                )


def _report(
    checkpoint: Checkpoint, loaded: Loaded, counts: JsonObject, ranks: int
) -> JsonObject:
    recorded = _recorded(checkpoint, loaded, ranks)
    as_recorded = None
    if recorded is not None:
        as_recorded = counts["accuracy"] == recorded
    return {
        "checkpoint": str(checkpoint.path),
        "step": checkpoint.meta.step,
        "epochs": build_plan(recorded_run(checkpoint)).epoch_at(checkpoint.meta.step),
        "ranks": ranks,
        **counts,
        "recorded_accuracy": recorded,
        "as_recorded": as_recorded,
    }


def _config_of(checkpoint: Checkpoint, overrides: list[str]) -> Loaded:
    """The config of a checkpoint's run with overrides. A run that has moved has its results where
    it lies."""
    folder = checkpoint.path.parent.parent
    source = RunFolder(folder).config
    if not source.is_file():
        raise UserError(
            f"{source}: the config of the checkpoint's run expected, found none"
        )
    if words_to_repeat(folder, ("system.results",)):
        overrides = [f"system.results={json.dumps(str(folder.parent))}", *overrides]
    # no gradients are summed, so that any number of ranks will do
    loaded = load_recorded(source, ["comm.algorithm=auto", *overrides])
    check_supported(loaded.run)
    return loaded


def _recorded(checkpoint: Checkpoint, loaded: Loaded, ranks: int) -> float | None:
    """The accuracy that the run itself found for these weights; None: it has not evaluated them, or
    this evaluation is another."""
    state = checkpoint.meta.state
    recorded_values = dict(flatten(checkpoint.meta.config))
    is_same = all(
        recorded_values.get(key) == value
        for key, value in flatten(loaded.to_dict())
        if key.startswith(_ASKED) and not key.startswith(FREE)
    )
    # on another number of ranks batch norm's statistics become others
    statistics_fit = (
        checkpoint.meta.statistics_rows == 1 or ranks == checkpoint.meta.ranks
    )
    is_evaluated = is_between_blocks(build_plan(recorded_run(checkpoint)), state)
    same_images = image_set_in(Path(loaded.run.data.path)) == checkpoint.meta.image_set
    if is_same and same_images and statistics_fit and is_evaluated:
        return state.accuracy
    return None
