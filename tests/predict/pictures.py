"""The pictures of docs/scaling.md.

python -m tests.predict.pictures        writes them anew
"""

from pathlib import Path

from rn50.config.algorithms import IN_SWITCHES
from rn50.config.load import load, load_system
from rn50.predict.cost import ALGORITHMS
from rn50.predict.fit import build
from rn50.predict.predictor import job_of_config, predict
from rn50.predict.step import group_cost_s
from rn50.report.charts import finish, new_panels, svg
from rn50.report.prediction import draw_overlap

FOLDER = Path(__file__).parents[2] / "docs" / "scaling"
SIZES = [1e3 * 2**doublings for doublings in range(18)]
GPUS = 2048
LOOKS = ("o-", "s--", "^:", "v-.", "D-", "P--", "X:", "*-.")


def overlap() -> str:
    """One step of the record."""
    figure, (axes,) = new_panels(1, 9.0)
    draw_overlap(predict(job_of_config(load("abci_2048_open").run)), axes)
    return svg(figure)


def algorithms() -> str:
    """Every algorithm over the bytes, with a dash and a marker of its own; the ring is drawn on
    the segmented one, which it equals until a chunk has two segments."""
    machine = build("abci", load_system("abci"))
    figure, (axes,) = new_panels(1, 9.0)
    for name, look in zip((*ALGORITHMS, IN_SWITCHES), LOOKS, strict=True):
        times_ms = [
            1e3 * group_cost_s(machine, GPUS, size, (name,))[1] for size in SIZES
        ]
        axes.loglog(
            SIZES,
            times_ms,
            look,
            ms=9 if name == "segmented_ring" else 4,
            fillstyle="none" if name == "segmented_ring" else "full",
            label="in switches, if ABCI's added" if name == IN_SWITCHES else name,
        )
    axes.set(xlabel="bytes", ylabel="ms")
    finish(axes)
    return svg(figure)


PICTURES = {"overlap.svg": overlap, "algorithms.svg": algorithms}


if __name__ == "__main__":
    for _name, _draw in PICTURES.items():
        (FOLDER / _name).write_text(_draw())
