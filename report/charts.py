"""Small inline SVG charts: colours from the page's CSS, text at its own size at any width.

A chart has no viewBox: axes, dots and text stand at percentages, and only the lines lie in an inner
drawing that stretches without its strokes. So a chart 300 px wide is as readable as one of 1,000.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple
from xml.etree import ElementTree as ET

from markupsafe import Markup

Points = Sequence[tuple[float, float]]

STYLES = 6
"""Looks of a series in the page's CSS: s0 is the accent, the others are greys, dashed apart."""
_NEAR_THE_TOP = 85.0
_MAX_POINTS = 600
_DOTS_UP_TO = 60
_LOG_FROM_RATIO = 20.0
_LARGEST = 1e15
_DECADES_WITH_THREES = 3
_LABEL_HEIGHT = 7.0
"""Percent of a chart of 190 to 210 px that a line of text takes."""


class Series(NamedTuple):
    """Lines of one look; `label` stands at the end of the first."""

    label: str
    lines: tuple[Points, ...]
    style: int = 0
    dots: bool = False


class Mark(NamedTuple):
    """A level to compare with, such as a target accuracy."""

    label: str
    value: float


class Axis(NamedTuple):
    """Where values lie between 0 and 100 % of the drawing."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        if self.logarithmic:
            span = math.log(self.high / self.low)
            return 100 * math.log(max(value, self.low) / self.low) / span
        return 100 * (value - self.low) / (self.high - self.low)


def line_chart(
    slug: str,
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    marks: Sequence[Mark] = (),
    from_zero: bool = False,
    spread_x: bool = False,
    log: Literal["", "x", "xy"] = "",
) -> Markup:
    """A chart of lines as inline SVG; empty where there is nothing to draw.

    Args:
        slug: makes the ids of this chart unique in its page.
        title: what the chart shows, for those who do not see it.
        series: drawn in their order, the first one on top.
        x_label: name and unit of the x axis.
        marks: levels drawn across.
        from_zero: the y axis begins at 0.
        spread_x: a logarithmic x axis where the lines end at very different places.
        log: logarithmic axes, of positive values alone.
    """
    series = [_drawable(one) for one in series]
    points = [point for one in series for line in one.lines for point in line]
    if not points:
        return Markup("")
    xs = [x for x, _ in points]
    x = _log_axis(min(xs), max(xs)) if log else _x_axis(series, spread_x=spread_x)
    ys = [y for _, y in points] + [mark.value for mark in marks]
    y = _axis(0.0 if from_zero else min(ys), max(ys))
    if log == "xy":
        y = _log_axis(min(ys), max(ys))
    svg = ET.Element("svg", {"class": "chart", "role": "img", "aria-labelledby": f"{slug}-t"})
    ET.SubElement(svg, "title", {"id": f"{slug}-t"}).text = f"{title}. {_ends(series)}"
    _draw_axes(svg, x, y, x_label)
    for mark in marks:
        at = _percent(100 - y.place(mark.value))
        ET.SubElement(svg, "line", {"class": "mark", "x1": "0", "x2": "100%", "y1": at, "y2": at})
    inner = ET.SubElement(
        svg,
        "svg",
        {"viewBox": "0 0 1000 1000", "preserveAspectRatio": "none", "overflow": "visible"},
    )
    for one in reversed(series):
        for line in one.lines:
            look = f"line s{one.style % STYLES}{' many' if len(one.lines) > 1 else ''}"
            path = ET.SubElement(inner, "path", {"class": look})
            path.set("d", _path(line, x, y))
            path.set("vector-effect", "non-scaling-stroke")
    for one in reversed(series):
        _draw_dots(svg, one, x, y)
    if len(series) > 1:
        _draw_labels(svg, series, x, y)
    for mark in marks:
        text = ET.SubElement(svg, "text", {"class": "mark", "x": "0", "dx": "4"})
        text.set("y", _percent(100 - y.place(mark.value)))
        text.set("dy", "14" if y.place(mark.value) > _NEAR_THE_TOP else "-5")
        text.text = mark.label
    return Markup(ET.tostring(svg, encoding="unicode"))


def ticks(low: float, high: float, about: int = 5) -> tuple[float, ...]:
    """Round numbers from at most `low` to at least `high`, `about` steps apart."""
    span = high - low
    if not span > 0:
        span = abs(high) or 1.0
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return tuple(round(i * step, 12) for i in range(first, last + 1))


def tick_text(value: float) -> str:
    """A tick as short as can be: 0.25, 40, 1,200, 15k."""
    if value and abs(value) >= 10_000:
        power, unit = (1e6, "M") if abs(value) >= 1e6 else (1e3, "k")
        return f"{value / power:g}{unit}"
    return f"{value:,.6g}" if abs(value) >= 1 else f"{value:.6g}"


def _drawable(one: Series) -> Series:
    """Without values so large that axes cannot have round numbers."""
    lines = (tuple(p for p in line if max(map(abs, p)) < _LARGEST) for line in one.lines)
    return one._replace(lines=tuple(line for line in lines if line))


def _axis(low: float, high: float) -> Axis:
    places = ticks(low, high)
    return Axis(places[0], places[-1], places)


def _x_axis(series: Sequence[Series], *, spread_x: bool) -> Axis:
    """From 0 to the last point, so that lines use the whole width."""
    lines = [line for one in series for line in one.lines if line]
    low, high = min(line[0][0] for line in lines), max(line[-1][0] for line in lines)
    ends = [line[-1][0] for line in lines]
    if spread_x and low > 0 and max(ends) / min(ends) > _LOG_FROM_RATIO:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        places = [f * 10.0**p for p in range(first, last + 1) for f in (1, 3)]
        return Axis(low, high, tuple(v for v in places if low <= v <= high), logarithmic=True)
    low = min(low, 0.0)
    high = high if high > low else low + 1
    return Axis(low, high, tuple(v for v in ticks(low, high) if low <= v <= high * 1.001))


def _log_axis(low: float, high: float) -> Axis:
    """Ticks at 1 and 3 of each decade; of more than three decades at 1 alone."""
    high = high if high > low else 10 * low
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if math.log10(high / low) > _DECADES_WITH_THREES else (1, 3)
    places = [f * 10.0**p for p in decades for f in steps]
    return Axis(low, high, tuple(v for v in places if low <= v <= high), logarithmic=True)


def _draw_axes(svg: ET.Element, x: Axis, y: Axis, x_label: str) -> None:
    for value in y.ticks:
        at = _percent(100 - y.place(value))
        ET.SubElement(svg, "line", {"class": "grid", "x1": "0", "x2": "100%", "y1": at, "y2": at})
        label = ET.SubElement(svg, "text", {"class": "tick y", "x": "-8", "y": at, "dy": "0.32em"})
        label.text = tick_text(value)
    for value in x.ticks:
        at = _percent(x.place(value))
        label = ET.SubElement(svg, "text", {"class": "tick x", "x": at, "y": "100%", "dy": "1.5em"})
        label.text = tick_text(value)
    name = ET.SubElement(svg, "text", {"class": "axis", "x": "100%", "y": "100%", "dy": "2.9em"})
    name.text = x_label


def _draw_dots(svg: ET.Element, one: Series, x: Axis, y: Axis) -> None:
    if not one.dots or len(one.lines) != 1 or len(one.lines[0]) > _DOTS_UP_TO:
        return
    for a, b in one.lines[0]:
        dot = ET.SubElement(svg, "circle", {"class": f"dot s{one.style % STYLES}", "r": "3"})
        dot.set("cx", _percent(x.place(a)))
        dot.set("cy", _percent(100 - y.place(b)))
        ET.SubElement(dot, "title").text = f"{one.label}: {b:.6g} at {a:.6g}"


def _draw_labels(svg: ET.Element, series: Sequence[Series], x: Axis, y: Axis) -> None:
    """A name at the end of each first line, moved up where it would cover the one below."""
    ends = [(*one.lines[0][-1], one) for one in series if one.label and one.lines and one.lines[0]]
    taken: list[tuple[float, float]] = []
    for a, b, one in sorted(ends, key=lambda end: end[1]):
        at, height = x.place(a), y.place(b)
        near = [other for place, other in taken if abs(place - at) < _LABEL_HEIGHT]
        height = max([height, *(other + _LABEL_HEIGHT for other in near)])
        taken.append((at, height))
        text = ET.SubElement(svg, "text", {"class": f"name s{one.style % STYLES}", "dx": "7"})
        text.set("x", _percent(at))
        text.set("y", _percent(100 - height))
        text.set("dy", "0.32em")
        text.text = one.label


def _path(line: Points, x: Axis, y: Axis) -> str:
    if len(line) == 1:
        return ""
    kept = [*line[:: math.ceil(len(line) / _MAX_POINTS)], line[-1]]
    spots = (f"{10 * x.place(a):.1f} {1000 - 10 * y.place(b):.1f}" for a, b in kept)
    return "M" + "L".join(spots)


def _ends(series: Iterable[Series]) -> str:
    """Where each line begins and ends, in words."""
    parts = [
        f"{one.label}: from {one.lines[0][0][1]:.4g} to {one.lines[0][-1][1]:.4g}"
        for one in series
        if one.lines and one.lines[0]
    ]
    return "; ".join(parts)


def _percent(value: float) -> str:
    return f"{value:.3f}%"
