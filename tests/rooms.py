"""Which room imports which, read from the sources, and the picture of it in its page.

python -m tests.rooms        draws it in docs/architecture.md anew
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORDER = (
    ("host",),
    ("config",),
    ("data", "logging", "predict"),
    ("train", "compliance"),
    ("report",),
    ("launch",),
    ("bench", "sweep"),
    ("cli",),
)
"""A room imports from the rows before its own and from no other room."""
ROOMS = tuple(sorted(room for row in ORDER for room in row))
PAGE = ROOT / "docs/architecture.md"
_BEGIN = "```mermaid\n"
_END = "\n```\n"
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
    """The modules of this package that each module (`train.loop`) imports."""
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
    """The rooms that each room imports."""
    imported: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module, targets in modules_imported().items():
        room = module.partition(".")[0]
        rooms = {target.partition(".")[0] for target in targets}
        imported[room] |= rooms - {room}
    return imported


def direct(imported: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out imports that follow from others: cli -> config follows from cli -> bench."""
    directly = {}
    for room, targets in imported.items():
        below = (imported[target] for target in targets)
        directly[room] = targets.difference(*below)
    return directly


def draw() -> str:
    """The rooms as boxes and an arrow for each direct import, as Mermaid has them."""
    lines = ["graph TD"]
    for room in ROOMS:
        lines.append(f'  {room}["{room}<br>{_PURPOSE[room]}"]')
    for room, targets in sorted(direct(rooms_imported()).items()):
        lines += [f"  {room} --> {target}" for target in sorted(targets)]
    return "\n".join(lines)


def redrawn(page: str) -> str:
    """The page with the picture of the rooms as they are."""
    head, _, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return f"{head}{_BEGIN}{draw()}{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))
    print(f"{PAGE} written")
