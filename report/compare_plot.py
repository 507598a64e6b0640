"""The curves of `rn50 log compare` as SVG: accuracy by epoch and by time, a colour a subject."""

from __future__ import annotations

from pathlib import Path

from ..config.errors import UserError
from .compare import Comparison
from .compare_view import name_of
from .drawing import finish, new_panels, save

_LONGEST = 40


def write_plot(comparison: Comparison, path: Path) -> None:
    """Write the curves.

    Raises:
        UserError: no subject has an evaluation with an epoch or a time.
    """
    axes_of = {"epoch": "epoch", "time_s": "seconds after run_start"}
    figure, panels = new_panels(len(axes_of), 4.8)
    drawn = 0
    for axes, (place, label) in zip(panels, axes_of.items(), strict=True):
        for number, (letter, subject) in enumerate(
            zip(comparison.letters, comparison.subjects, strict=True)
        ):
            name = f"{letter} {name_of(subject)}"[:_LONGEST]
            for run in subject.runs:
                points = [
                    (getattr(one, place), one.accuracy)
                    for one in run.evaluations
                    if getattr(one, place) is not None
                ]
                if points:
                    xs, ys = zip(*sorted(points), strict=True)
                    axes.plot(xs, ys, "o-", ms=3, lw=1.2, color=f"C{number % 10}", label=name)
                    name = "_"  # one entry in the legend for all runs of a subject
                    drawn += 1
        for target in dict.fromkeys(run.target for run in comparison.subjects[0].runs):
            axes.axhline(target, color="grey", lw=0.8, ls=":", label=f"target {target:g}")
        axes.set(xlabel=label, ylabel="top-1 accuracy", xlim=(0, None), ylim=(0, 1))
        finish(axes)
    if not drawn:
        raise UserError("--plot: a log with evaluations expected, found none")
    save(figure, path)
