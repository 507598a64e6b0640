"""Which room imports which, read from the sources, and the picture of it in `docs/`.

python -m tests.rooms        writes docs/architecture.svg anew
"""

import ast
import functools
import io
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORDER: tuple[dict[str, float], ...] = (
    {"host": 1.0},
    {"config": 1.0},
    {"data": 0.0, "logging": 1.0, "predict": 2.0},
    {"train": 0.0, "compliance": 2.0},
    {"report": 1.0},
    {"launch": 1.0},
    {"bench": 0.4, "sweep": 1.6},
    {"cli": 1.0},
)
"""A room imports from the rows before its own and from no other room; with the place of its box in
the row, in columns of the picture."""
ROOMS = tuple(sorted(room for row in ORDER for room in row))
PICTURE = ROOT / "docs/architecture.svg"
_PURPOSE = {
    "host": "files, locks, programs, signals, errors",
    "config": "schema, plan, benchmark facts, presets",
    "data": "images: pack, check, stage, DALI pipelines",
    "logging": "MLPerf log, metrics, timeline; parser",
    "predict": "cost models, predictor, published figures",
    "train": "one rank: start-up, loop, allreduce, LARS",
    "compliance": "closed-division rules for configs and logs, score",
    "report": "comparison, charts, HTML report",
    "launch": "launchers, watchdog, schedulers, job scripts",
    "bench": "side-by-side benchmarks",
    "sweep": "hyper-parameter search",
    "cli": "the rn50 command",
}
_BOX_IN = (2.75, 0.62)
_ROW_IN = 1.1
_COLUMN_IN = 3.1


def sources() -> list[Path]:
    """The Python files of all rooms."""
    files: list[Path] = []
    for room in ROOMS:
        files += (ROOT / room).rglob("*.py")
    return sorted(files)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(level, dotted name) of every import statement, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        match node:
            case ast.Import(names=names):
                yield from ((0, alias.name) for alias in names)
            case ast.ImportFrom(module=None, names=names, level=level):
                yield from ((level, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from ((level, f"{module}.{alias.name}") for alias in names)


@functools.cache
def modules_imported() -> dict[str, set[str]]:
    """Of each module (`train.loop`) the modules of this package that it imports."""
    modules = {module_of(path): path for path in sources()}
    imported = {}
    for module, path in modules.items():
        package = path.relative_to(ROOT).parts[:-1]
        names: set[str] = set()
        for level, name in imports(path):
            if level:
                parents = package[: len(package) - level + 1]
                full = ".".join([*parents, name])
                names |= {full, full.rpartition(".")[0]}
        imported[module] = (names & modules.keys()) - {module}
    return imported


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def rooms_imported() -> dict[str, set[str]]:
    """Of each room the rooms that it imports."""
    imported: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module, targets in modules_imported().items():
        room = module.partition(".")[0]
        rooms = {target.partition(".")[0] for target in targets}
        imported[room] |= rooms - {room}
    return imported


def direct(imported: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the imports that follow from others: cli -> config follows from cli -> bench."""
    directly = {}
    for room, targets in imported.items():
        below = (imported[target] for target in targets)
        directly[room] = targets.difference(*below)
    return directly


def draw() -> str:
    """The rooms as boxes, the lowest at the bottom, and an arrow for each direct import."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcdefaults()  # another test may have drawn in the style of the reports
    mpl.rcParams.update({"svg.hashsalt": "rn50", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyBboxPatch

    width, height = _BOX_IN
    right = 3.3 * _COLUMN_IN
    top = len(ORDER) * _ROW_IN
    figure, axes = plt.subplots(figsize=(right, top))
    axes.set_xlim(0, right)
    axes.set_ylim(0, top)
    axes.set_axis_off()
    figure.subplots_adjust(0, 0, 1, 1)
    centre = {}
    for level, row in enumerate(ORDER):
        for room, column in row.items():
            x = (column + 0.8) * _COLUMN_IN
            y = (level + 0.5) * _ROW_IN
            centre[room] = (x, y)
    for room, (x, y) in centre.items():
        box = FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0.02",
            fc="#eef3f8",
            ec="#456",
            zorder=3,
        )
        axes.add_patch(box)
        text = functools.partial(axes.text, ha="center", va="center", zorder=4)
        text(x, y + 0.12, f"{room}/", weight="bold", size=11)
        text(x, y - 0.14, _PURPOSE[room], size=8)
    for room, targets in sorted(direct(rooms_imported()).items()):
        for target in sorted(targets):
            x, y = centre[room]
            to_x, to_y = centre[target]
            aside = 0.12 * (to_x - x)
            below = height / 2 + 0.03
            axes.annotate(
                "",
                (to_x - aside, to_y + below),
                (x + aside, y - below),
                arrowprops={"arrowstyle": "->", "color": "#456", "lw": 1},
                zorder=2,
            )
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return svg.getvalue()


if __name__ == "__main__":
    PICTURE.write_text(draw())
    print(f"{PICTURE} written")
