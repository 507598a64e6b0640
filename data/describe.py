"""What a run trains on, in words: the set, its counts, and whether its images are drawn."""

from __future__ import annotations

from ..config.manifest import Manifest
from ..config.schema import Data


def describe_data(data: Data, manifest: Manifest | None = None) -> str:
    """The set of a config, for a header ("data: " before it) or a report.

    "datasets/mine, 1,000 training and 240 evaluation images of 20 classes", or
    "DRAWN textures (datasets/quick), 3,200 training and 1,000 evaluation images of 10 classes".

    `manifest`: its counts and its mark count. None, where the set is out of reach (a report of a
    run elsewhere): the config's.
    """
    if manifest is None:
        train = data.train_samples
        evaluation = data.eval_samples
        classes = data.classes
        is_synthetic = data.synthetic is not None
    else:
        classes, train, evaluation = manifest.counts
        is_synthetic = manifest.is_drawn
    name = f"DRAWN textures ({data.path})" if is_synthetic else data.path
    return f"{name}, {train:,} training and {evaluation:,} evaluation images of {classes:,} classes"
