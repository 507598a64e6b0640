"""The one style of all charts: colours for every eye, names where they are read."""

import re
from itertools import combinations

import numpy as np
import pytest

from rn50.report.charts import COLOURS, Series, draw_lines, new_figure, svg, thinned

EYES = {
    "usual": np.eye(3),
    "no red cones": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
"""Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB."""
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(
        values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4
    )


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* under D65, of linear RGB."""
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    root = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    x, y, z = root
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", EYES)
def test_every_eye_tells_the_colours_from_each_other(eye: str) -> None:
    """The palette before had blue and purple at 8, orange and olive at 5 without green cones."""
    seen = [lab(EYES[eye] @ linear(colour)) for colour in COLOURS]
    distances = [
        np.linalg.norm(first - second) for first, second in combinations(seen, 2)
    ]
    assert min(distances) > 28


def test_colours_stand_out_from_a_white_and_a_dark_page() -> None:
    for colour in COLOURS:
        luminance = TO_XYZ[1] @ linear(colour)
        dark = TO_XYZ[1] @ linear("#16181c")
        assert 1.05 / (luminance + 0.05) > 2.5
        assert (luminance + 0.05) / (dark + 0.05) > 2.5


def drawn(count: int) -> str:
    """Lines A, B, ... that end near each other."""
    figure = new_figure(8, 4, layout=None)
    axes = figure.subplots()
    series = [
        Series(chr(65 + number), [[(0, 0.1), (9, 0.75 + number / 1e4)]])
        for number in range(count)
    ]
    draw_lines(axes, series, x_label="epoch")
    return svg(figure)


def names(picture: str) -> dict[str, tuple[float, float]]:
    """The place of each line's name, in the picture's order."""
    rows = re.findall(r"translate\(([\d.]+) ([\d.]+)\)[^>]*>([A-Z])</text>", picture)
    rows += re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>([A-Z])</text>', picture)
    return {name: (float(x), float(y)) for x, y, name in rows}


def test_few_lines_are_named_at_their_ends_without_covering_each_other() -> None:
    picture = drawn(6)
    assert "legend" not in picture
    heights = sorted(y for _, y in names(picture).values())
    assert len(heights) == 6
    assert min(np.diff(heights)) > 10
    assert heights[0] > 0
    assert "stroke-dasharray: " not in picture


def test_many_lines_differ_in_style_too_and_are_read_row_by_row() -> None:
    picture = drawn(9)
    assert "legend" in picture
    lines = re.findall(
        r'<path d="[^"]*" [^>]*style="([^"]*stroke-width: 1.5[^"]*)"', picture
    )
    assert len(set(lines)) == len(lines)
    assert len({re.sub("stroke: #......", "", line) for line in lines}) > 3
    by_place = sorted(names(picture).items(), key=lambda item: item[1][::-1])
    assert "".join(name for name, _ in by_place) == "ABCDEFGHI"


def test_lines_of_one_series_have_a_band_between_them() -> None:
    assert thinned([*range(5000)])[-1] == 4999
    axes = new_figure(8, 4, layout=None).subplots()
    runs = [[(0, 0.1), (1, 0.5)], [(0, 0.2), (1, 0.9), (2, 1.0)]]
    draw_lines(axes, [Series("five", runs)], x_label="epoch")
    (band,) = axes.collections
    (path,) = band.get_paths()
    assert set(map(tuple, np.asarray(path.vertices).tolist())) == {
        (0.0, 0.1),
        (1.0, 0.5),
        (0.0, 0.2),
        (1.0, 0.9),
    }
