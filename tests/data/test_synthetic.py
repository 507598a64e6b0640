"""Drawn images: the same on every machine, since digests of runs on them are published."""

import hashlib

import numpy as np

from rn50.config.schema import Synthetic
from rn50.data.synthetic import draw_image


def test_images_are_drawn_as_ever() -> None:
    """Each of the ten patterns, two of them mixed, and mixed in a given colour."""
    digest = hashlib.sha256()
    settings = Synthetic(min_px=24, max_px=40)
    for label in (*range(10), 42, 137):
        image = draw_image(label, np.random.default_rng(label), settings)
        digest.update(image.tobytes())
    assert digest.hexdigest()[:16] == "7fcd3fd081e69eab"
