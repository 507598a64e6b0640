"""`rn50 bench loop --overlap`: what of communication backward hides, and whether that can be told.

A step, its computing alone and its communication alone are timed in turn; exposed is the step less
its computing, hidden is 1 - exposed / communication. Where communication is a few per cent of
computing, exposed is a small difference of two large times: such figures are marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ..config.errors import UserError
from ..config.load import Loaded
from ..config.plan import build_plan
from ..config.progress import Tracker
from ..data.prepare import prepare
from ..launch.launchers import pick_launcher
from ..report.drawing import error_bars, finish, new_figure, save
from .harness import machine, measure_on_ranks, ratio_spread, spread
from .resolution import MARK, MOST_UNCERTAIN, half_width, is_resolvable, why_not


def bench_overlap(
    loaded: Loaded,
    launcher: str | None,
    *,
    groupings: Sequence[str],
    rounds: int,
    steps: int,
    track: Tracker,
) -> dict[str, Any]:
    """Computing, communication and what of it is exposed, for each grouping in turn."""
    name, ranks = pick_launcher(launcher), build_plan(loaded.run).ranks
    if ranks < 2:
        raise UserError("--overlap: two ranks or more expected, found 1: it has nothing to send")
    prepare(loaded.run.data, track, loaded.origins)
    seconds = measure_on_ranks(
        *(loaded, name, "bench_overlap", ";".join(groupings), str(rounds), str(steps)),
        progress=track("timing steps"),
    )
    return {
        "ratios": {},
        "rows": overlap_rows(seconds),
        "figures": {
            "ranks": ranks,
            "batch per rank": loaded.run.batch.per_rank,
            "most uncertain hidden part that counts": MOST_UNCERTAIN,
        },
        "machine": machine() | {"launcher": name},
    }


def overlap_rows(seconds: Mapping[str, Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """One row a grouping, its times in seconds.

    `hidden_uncertainty` is half the width of the 90 % interval of the mean hidden part, from the
    spread of exposed from round to round, pooled over all groupings, over communication.

    Args:
        seconds: grouping -> `step`, `computing`, `communication` -> a value for each round.
    """
    exposed = {
        rule: [s - c for s, c in zip(kinds["step"], kinds["computing"], strict=True)]
        for rule, kinds in seconds.items()
    }
    rows = []
    for rule, kinds in seconds.items():
        communication = kinds["communication"]
        error_s = half_width(list(exposed.values()), len(communication))
        uncertainty = None if error_s is None else error_s / median(communication)
        rows.append(
            {
                "groups": rule,
                "step_s": spread(kinds["step"]),
                "computing_s": spread(kinds["computing"]),
                "communication_s": spread(communication),
                "exposed_s": spread(exposed[rule]),
                "hidden": ratio_spread(
                    [m - e for e, m in zip(exposed[rule], communication, strict=True)],
                    communication,
                ),
                "hidden_uncertainty": uncertainty,
                "resolvable": is_resolvable(uncertainty),
                "communication_per_computing": ratio_spread(communication, kinds["computing"]),
            }
        )
    return rows


_KINDS = ("step", "computing", "communication", "exposed")
OVERLAP_HEADER = (
    *("groups", *(f"{kind} ms" for kind in _KINDS), "comm/comp"),
    *("hidden", "least", "most", "+-", "n"),
)


def overlap_table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Milliseconds a step (medians), then the hidden part, marked where it is not resolvable."""
    return [
        (
            row["groups"],
            *(f"{row[f'{kind}_s']['median'] * 1e3:.1f}" for kind in _KINDS),
            f"{row['communication_per_computing']['median']:.3f}",
            f"{row['hidden']['median']:.2f}" if row["resolvable"] else MARK,
            *(f"{row['hidden'][key]:.2f}" for key in ("min", "max")),
            "-" if row["hidden_uncertainty"] is None else f"{row['hidden_uncertainty']:.2f}",
            str(row["hidden"]["n"]),
        )
        for row in rows
    ]


def unresolved_line(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What the mark means and what would resolve it; None where nothing is marked."""
    marked = [row for row in rows if not row["resolvable"]]
    if not marked:
        return None
    shares = [row["communication_per_computing"]["median"] for row in marked]
    return (
        f"{MARK}: hidden part not resolvable for {', '.join(row['groups'] for row in marked)}: "
        f"communication is {min(shares):.1%} to {max(shares):.1%} of computing, and "
        + why_not([row["hidden_uncertainty"] for row in marked])
        + ", and so would more --steps or a slower network (scripts/netlab.sh)"
    )


def plot_overlap(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Computing, communication and exposed a grouping, and the hidden part with its interval."""
    figure = new_figure(9.0, 1.6 + 0.55 * len(rows))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    places = list(range(len(rows)))[::-1]
    for number, kind in enumerate(_KINDS[1:]):
        middle, bars = error_bars([row[f"{kind}_s"] for row in rows])
        left.barh(
            [place + 0.27 * (1 - number) for place in places],
            [1e3 * value for value in middle],
            0.25,
            xerr=[[1e3 * value for value in side] for side in bars],
            error_kw={"lw": 0.8, "ecolor": "black"},
            label=kind,
        )
    left.set_yticks(places, [row["groups"] for row in rows], fontsize=8)
    left.set_xlabel("ms a step (median, least, most)")
    for place, row in zip(places, rows, strict=True):
        if row["resolvable"]:
            error = row["hidden_uncertainty"]
            right.errorbar([row["hidden"]["median"]], [place], xerr=[error], fmt="o", color="C0")
        else:
            right.text(0.5, place, "not resolvable", ha="center", va="center", fontsize=8)
    right.set(xlim=(-0.3, 1.1), xlabel="hidden part of communication, 90 % interval")
    finish(left)
    finish(right)
    save(figure, path)
