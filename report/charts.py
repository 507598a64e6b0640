"""Every chart of rn50: matplotlib's SVG in one style, for files and for pages.

matplotlib is imported where a chart is drawn: 0.3 s that no other command needs.
"""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from markupsafe import Markup

from ..host.atomic import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")
Points = Sequence[tuple[float, float]]
PANEL_IN = 3.6
"""Inches of the height of panels that stand side by side."""
PAGE_PX = (428, 270, 12)
"""Width, height and text of a chart in a page: two stand side by side on a desktop and on paper,
and one nearly fills a screen of 390 px."""
INK = "#191b1f"
"""The colour of text and axes in a file; a page has `currentColor`, which a dark one changes."""
COLOURS = ("#3992ff", "#a0435a", "#ce9601", "#7623fe",
           "#13b0b9", "#805c00", "#ec7f70", "#1d669b")  # fmt: skip
"""The colours of series: as far from each other as eight can be for all eyes, those without red or
green cones too, and 2.6 times as dark as white and as light as a dark page."""
STYLES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (8, 2, 2, 2, 2, 2)))
"""The line styles that series beyond MOST_ENDS have in turn; with the colours, 40 looks."""
MOST_ENDS = 6
"""Series that are named at the ends of their lines; more have a legend and line styles."""
_NAME_PT = 14
"""From the name of a line to the next below."""
_MOST_NAME_SHARE = 0.3
"""The share of a chart's width for the names at the ends; longer ones stand in the legend."""
_MAX_POINTS = 600
DOTS_UP_TO = 60
_LOG_FROM_RATIO = 20.0
LARGEST = 1e15
"""Larger numbers are not drawn: matplotlib fails at some of them."""
MOST_WITHIN = 4
"""Entries of a legend within the axes; a longer one would cover what is drawn and stands below."""


class Series(NamedTuple):
    """Lines of one look under one name, each of (x, y)."""

    label: str
    lines: Sequence[Points]
    is_reference: bool = False
    """Dashed, in the colour of the axes."""


def colour_at(number: int) -> str:
    """The colour of a series."""
    return COLOURS[number % len(COLOURS)]


def new_figure(
    width_in: float,
    height_in: float,
    layout: Any = "constrained",
    sizes_pt: tuple[float, float] = (10, 8.33),
) -> Figure:
    """An empty figure in the one style.

    Args:
        width_in: inches.
        height_in: inches.
        layout: matplotlib's layout engine; None: none.
        sizes_pt: the size of the text and that of the legend.
    """
    matplotlib = _matplotlib()
    from cycler import cycler
    from matplotlib.figure import Figure

    # from the defaults: a user's matplotlibrc must not change what a report looks like
    matplotlib.rcParams.update(matplotlib.rcParamsDefault)
    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",  # text stays text: small, searchable, in the page's font
            "svg.hashsalt": "rn50",  # ids by content, not by chance
            "text.parse_math": False,  # a name may hold a dollar
            "axes.prop_cycle": cycler(color=COLOURS),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": "medium",
            "legend.frameon": False,
            "font.size": sizes_pt[0],
            "legend.fontsize": sizes_pt[1],
            "text.color": INK,
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )
    return Figure(figsize=(width_in, height_in), layout=layout)


@cache
def _matplotlib() -> Any:
    """matplotlib as it comes. A matplotlibrc that does not fit, or the backend that Jupyter sets,
    would end its import, and it reads the file of the working folder before all others: while it is
    loaded, that is its own."""
    package = find_spec("matplotlib")
    assert package is not None
    assert package.origin is not None
    os.environ["MPLBACKEND"] = "agg"
    working_folder = os.open(".", os.O_RDONLY)
    try:
        os.chdir(Path(package.origin).with_name("mpl-data"))
        return import_module("matplotlib")
    finally:
        os.fchdir(working_folder)
        os.close(working_folder)


def new_panels(count: int, width_in: float) -> tuple[Figure, Sequence[Axes]]:
    """A figure with `count` panels side by side."""
    figure = new_figure(width_in * count, PANEL_IN)
    return figure, figure.subplots(1, count, squeeze=False)[0]


def finish(
    axes: Axes, *, legend: bool = True, below: bool = False, right: Axes | None = None
) -> None:
    """Grid, ticks and legend as every panel has them.

    Args:
        axes: the panel's.
        legend: whether there is one.
        below: whether it stands below the axes, where they have no room for it.
        right: axes on the right of the same panel, which share the legend below.
    """
    from matplotlib.ticker import (
        LogLocator,
        MaxNLocator,
        NullFormatter,
        ScalarFormatter,
    )

    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            # 1, 3, 10, 30: some two ticks a decade, evenly apart
            axis.set_major_locator(LogLocator(subs=(1, 3)))
            axis.set_major_formatter(tick_text)
            axis.set_minor_formatter(NullFormatter())
        elif isinstance(axis.get_major_formatter(), ScalarFormatter):
            axis.set_major_formatter(tick_text)
            if axis.get_label_text() == "epoch":
                axis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes.get_legend_handles_labels()
    if right is not None:
        more_handles, more_labels = right.get_legend_handles_labels()
        handles += more_handles
        labels += more_labels
    if not labels:
        return
    if len(labels) > MOST_WITHIN or right is not None:
        below = True
    columns = _columns(axes, labels)
    if legend and below:
        axes.legend(
            _by_row(handles, columns),
            _by_row(labels, columns),
            loc="upper center",  # its own upper centre, below the axes
            bbox_to_anchor=(0.5, -0.2),
            ncols=columns,
            columnspacing=1.0,
            handlelength=1.6,
        )
    elif legend:
        axes.legend()


def _by_row(entries: Sequence[T], columns: int) -> list[T]:
    """Entries as matplotlib fills a legend, column by column, so that they are read row by row."""
    return [entry for column in range(columns) for entry in entries[column::columns]]


def _columns(axes: Axes, labels: Sequence[str]) -> int:
    """Columns of a legend below the axes, as wide as their panel."""
    length = fmean(map(len, labels))
    # a figure, or a part of one, which has a width as well
    figure: Any = axes.figure
    spec = axes.get_subplotspec()
    panels = spec.get_gridspec().ncols if spec else 1
    width_px = 72 * figure.get_figwidth() / panels
    # an entry: its line with the gaps, and some 7 px a letter
    return max(1, int(width_px / (52 + 7 * length)))


def tick_text(value: float, _: float = 0.0) -> str:
    """A tick as short as can be: 0.25, 40, 1,200, 15k."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    # 12 digits: a tick at 0.30000000000000004 is one at 0.3
    return f"{round(value, 12):,.6g}"


def thinned(points: list[T]) -> list[T]:
    """Points in even distance, no more than a chart has across, the first and the last of them."""
    step = max(1, math.ceil((len(points) - 1) / (_MAX_POINTS - 1)))
    # the last one whatever the step: a curve's end is what people look for
    return points[:-1:step] + points[-1:]


def draw_lines(
    axes: Axes,
    series: Sequence[Series],
    *,
    x_label: str,
    marks: Sequence[tuple[str, float]] = (),
    y_limits: tuple[float | None, float | None] = (None, None),
) -> None:
    """Lines with their names, and levels to compare them with.

    Args:
        series: drawn in their order, the first one on top; up to MOST_ENDS are named at their ends.
        x_label: name and unit of the x axis.
        marks: (name, level), drawn across.
        y_limits: where the y axis begins and ends.
    """
    ends = []
    named_ends = []
    names = [line.label for line in series if not line.is_reference]
    share = _name_share(axes, names)
    is_named_at_ends = 1 < len(names) <= MOST_ENDS and share < _MOST_NAME_SHARE
    for number, (label, lines, is_reference) in enumerate(series):
        style = "-"
        if not is_named_at_ends:
            style = STYLES[number % len(STYLES)]
        colour = colour_at(number)
        if is_reference:
            style = "--"
            colour = INK
        _draw_band(axes, [] if is_reference else lines, colour)
        for line in lines:
            points = [point for point in line if max(map(abs, point)) < LARGEST]
            if not points:
                continue
            marker = ""
            if len(points) <= DOTS_UP_TO and not is_reference:
                marker = "o"
            x, y = zip(*thinned(points), strict=True)
            if is_named_at_ends and not is_reference and label != "_":
                named_ends.append((y[-1], x[-1], label, colour))
                label = "_"
            axes.plot(
                x,
                y,
                color=colour,
                ls=style,
                lw=0.8 if is_reference else 1.5,
                marker=marker,
                ms=3,
                label=label,
                zorder=3 - number / 100,  # above the grid, the first series on top
            )
            label = "_"  # one entry in the legend for all lines of a series
            ends.append(x[-1])
    for name, level in marks:
        axes.axhline(level, color=INK, lw=0.8, ls=":", label=name)
    axes.set_xlabel(x_label)
    axes.set_ylim(*y_limits)
    shortest = min(ends, default=0)
    if shortest > 0 and max(ends) / shortest > _LOG_FROM_RATIO:
        axes.set_xscale("log")
    _name_ends(axes, named_ends, share)
    finish(axes, legend=len(series) + len(marks) > 1)


def _draw_band(axes: Axes, lines: Sequence[Points], colour: str) -> None:
    """Fill what lies between the lines of a series, where all of them have a point."""
    curves = list(map(dict, lines))
    if len(curves) < 2:
        return
    # runs may have been evaluated at different epochs
    shared = sorted(set[float].intersection(*map(set, curves)))
    columns = [[curve[x] for curve in curves] for x in shared]
    axes.fill_between(
        shared,
        list(map(min, columns)),
        list(map(max, columns)),
        color=colour,
        alpha=0.15,
        lw=0,
    )


def _size_pt(axes: Axes) -> tuple[float, float]:
    figure: Any = axes.figure
    box = axes.get_position()
    width_pt, height_pt = 72 * figure.get_size_inches()
    return box.width * width_pt, box.height * height_pt


def _name_share(axes: Axes, names: Sequence[str]) -> float:
    """The part of the axes' width that the longest name takes."""
    longest = max(map(len, names), default=0)
    # points: the gap to the line, and 8 a letter in bold
    return (8 + 8 * longest) / _size_pt(axes)[0]


def _name_ends(
    axes: Axes, ends: Sequence[tuple[float, float, str, str]], share: float
) -> None:
    """Write names beside the ends of their lines, where they do not cover each other.

    Args:
        ends: (y, x, name, colour) of each.
        share: of the width, to be left for them on the right.
    """
    if not ends:
        return
    # in the scale of the axis, which may be logarithmic
    scale = axes.xaxis.get_transform()
    x_min, x_max = scale.transform(axes.get_xlim())
    rightmost = x_min + (x_max - x_min) / (1 - share)
    axes.set_xlim(right=scale.inverted().transform([rightmost])[0])
    axes.autoscale_view(scalex=False)
    to_axes = axes.transScale + axes.transLimits
    _, height_pt = _size_pt(axes)
    ceiling_pt = height_pt
    # of equal ends the first stands on top
    rows = sorted(ends, key=itemgetter(0), reverse=True)
    for number, (y, x, name, colour) in enumerate(rows):
        # room for the names that are still to come, and half of this one
        below = len(rows) - number - 0.5
        end_pt = to_axes.transform((x, y))[1] * height_pt
        place_pt = max(min(end_pt, ceiling_pt), below * _NAME_PT)
        ceiling_pt = place_pt - _NAME_PT
        axes.annotate(
            name,
            (x, y),
            xytext=(6, place_pt - end_pt),
            textcoords="offset points",
            va="center",
            weight="bold",
            color=colour,
        )


def svg(figure: Figure, **options: Any) -> str:
    """The figure as text, byte for byte the same from the same numbers."""
    image = io.StringIO()
    # matplotlib writes the date and its version unless they are None
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(image, format="svg", metadata=nothing, **options)
    return image.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write the figure where an option such as `--plot` says."""
    write_output(path, svg(figure))


def page_chart(title: str, draw: Callable[[Axes], None]) -> Markup:
    """A chart as an image within a page, on its background; report.html.j2 inverts it on a dark
    screen.

    Args:
        title: what the chart shows, for those who do not see it.
        draw: draws on the axes that it is given.
    """
    width_px, height_px, text_px = PAGE_PX
    figure = new_figure(
        width_px / 72,
        height_px / 72,
        layout=None,  # it takes half as long again
        sizes_pt=(text_px, text_px),
    )
    axes = figure.subplots()
    draw(axes)
    labels = axes.get_legend_handles_labels()[1]
    below_px = 0
    if len(labels) > MOST_WITHIN:
        below_px = 24 + 20 * math.ceil(len(labels) / _columns(axes, labels))
    full_px = height_px + below_px
    figure.set_figheight(full_px / 72)
    figure.subplots_adjust(
        left=54 / width_px,
        right=1 - 12 / width_px,
        bottom=(46 + below_px) / full_px,
        top=1 - 8 / full_px,
    )
    image = base64.b64encode(svg(figure, transparent=True).encode()).decode()
    return Markup(
        '<img class="chart" src="data:image/svg+xml;base64,{}" alt="{}">'
    ).format(image, title)


def draw_measurements(
    measurements: Mapping[str, Mapping[str, Sequence[float]]],
    ratios: Mapping[str, Mapping[str, float]],
) -> Figure:
    """Repeated measurements of contenders as dots with their median, a panel a unit.

    Args:
        measurements: unit -> contender -> its values.
        ratios: what was divided -> its least, median and most; in a panel of their own.
    """
    panels = dict(measurements)
    if ratios:
        panels["ratio"] = {
            name: [ratio["min"], ratio["median"], ratio["max"]]
            for name, ratio in ratios.items()
        }
    heights = [0.9 + 0.3 * len(contenders) for contenders in panels.values()]
    longest = max(len(name) for contenders in panels.values() for name in contenders)
    figure = new_figure(5.0 + 0.06 * longest, sum(heights))
    axes = figure.subplots(len(heights), squeeze=False, height_ratios=heights)
    for panel, unit in zip(axes[:, 0], panels, strict=True):
        contenders = panels[unit]
        for row, values in enumerate(contenders.values()):
            rows = [row] * len(values)
            middle = median(values)
            panel.plot(values, rows, "o", color="C0", alpha=0.45, ms=4)
            panel.plot(middle, row, "|", color="C1", ms=14, mew=2)
        panel.set_yticks(range(len(contenders)), list(contenders))
        panel.set_ylim(len(contenders) - 0.4, -0.6)  # the first on top
        panel.set_xlabel(f"{unit} (|: median)")
        finish(panel)
    return figure
