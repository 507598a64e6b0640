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
    counts = manifest.counts if manifest else data
    is_synthetic = manifest.is_drawn if manifest else data.synthetic is not None
    name = f"DRAWN textures ({data.path})" if is_synthetic else data.path
    return (
        f"{name}, {counts.train_samples:,} training and {counts.eval_samples:,} evaluation images "
        f"of {counts.classes:,} classes"
    )
