"""ResNet's stages (He et al., 1512.03385), for the trainer and for every estimate."""

from __future__ import annotations

UNITS: dict[int | str, tuple[int, int, int, int]] = {
    "tiny": (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Depth -> residual units of each stage."""
BASIC_DEPTHS = (18, 34)
"""Those whose units are two 3x3 convolutions; the others have bottlenecks."""

Block = tuple[tuple[int, int], ...]
BASIC: Block = ((3, 1), (3, 1))
BOTTLENECK: Block = ((1, 1), (3, 1), (1, 4))
"""Convolutions of a unit: kernel, and channels in multiples of the stage's width."""
