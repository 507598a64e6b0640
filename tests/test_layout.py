"""The rooms, what they may import, and how large they may be."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import pytest
from typer.main import get_command

from rn50.cli.main import app
from rn50.config.reference import all_keys
from tests.cli.test_everywhere import leaves
from tests.rooms import (
    ORDER,
    PAGE,
    ROOMS,
    ROOT,
    imports,
    module_of,
    modules_imported,
    redrawn,
    sources,
)

FILES = sources()
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FRAMEWORKS = ("mxnet", "horovod", "nvidia.dali")
MAY_IMPORT = {
    room: {lower for row in ORDER[:level] for lower in row}
    for level, row in enumerate(ORDER)
    for room in row
}
LARGEST_SHARE = 0.24  # the trainer, with its plan for GPUs

PRODUCT_TOKENS = 240_400
TEST_TOKENS = 233_000
"""The size of November 2026 and 3 %, so that a contribution fits. It is counted in tokens of code,
so that a line that says one thing costs no more than one that says three."""
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
MOST_KEYS = 195
MOST_COMMANDS = 36
"""Options are frozen: a new one replaces one."""
FUNCTION_LINES = 60
SMALL_MODULE_LINES = 40
PLUGINS = ("compliance/log_rules/", "train/kernels/", "__main__.py", "__init__.py")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def modules(room: str) -> list[str]:
    return [f"rn50.{module_of(path)}" for path in FILES if room_of(path) == room]


def in_fresh_python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", ROOMS)
def test_the_package_links_to_its_rooms(room: str) -> None:
    link = ROOT / "rn50" / room
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{room}"
    assert link.resolve() == ROOT / room


def test_logging_stays_the_standard_librarys_in_the_root() -> None:
    """An __init__.py would shadow it for anything that is started in the root."""
    assert not (ROOT / "logging/__init__.py").exists()
    in_fresh_python("import logging; assert 'lib/python' in logging.__file__")


def test_a_command_loads_nothing_before_it_takes_signals() -> None:
    """Ctrl-C before that is a traceback."""
    loaded = (
        "[m for m in sys.modules if m.startswith(('rn50.launch.', 'rn50.logging'))]"
    )
    in_fresh_python(f"import sys, rn50.cli.entry; assert not {loaded}, {loaded}")


# --- who imports whom ---------------------------------------------------------------------------


def test_the_walk_finds_the_code() -> None:
    assert (0, "json") in set(imports(ROOT / "logging/parse.py"))
    assert (2, "host.errors.UserError") in set(imports(ROOT / "logging/events.py"))


def test_rooms_import_one_way_only() -> None:
    for path in FILES:
        room = room_of(path)
        depth = len(path.relative_to(ROOT).parts) - 1
        for level, name in imports(path):
            if level == depth + 1:
                target = name.split(".")[0]
                allowed = MAY_IMPORT[room] | {room, "__version__"}
                assert target in allowed, f"{name_of(path)} imports {name}"
            assert level <= depth + 1, f"{name_of(path)}: {name} lies above the package"


def test_no_modules_import_each_other_in_a_circle() -> None:
    imported = modules_imported()
    assert "train.loop" in imported["train.run"]
    assert "data.sampling" in imported["train.evaluate"]
    while leaves := {name for name, targets in imported.items() if not targets}:
        remaining = imported.keys() - leaves
        imported = {name: imported[name] - leaves for name in remaining}
    assert not imported, f"in a circle, or on the way to one: {sorted(imported)}"


def test_the_picture_of_the_rooms_is_as_they_are() -> None:
    page = PAGE.read_text()
    assert redrawn(page) == page, "make architecture"


def test_no_room_is_imported_absolutely() -> None:
    """`import train.x` would make a second module object, `from data import` works in the root
    alone, and `import rn50.x` is spelt relatively inside the package."""
    for path in FILES:
        for level, name in imports(path):
            if level:
                continue
            top, _, rest = name.partition(".")
            allowed = top not in {"rn50", *ROOMS}
            if top == "logging":
                module = rest.partition(".")[0]
                allowed = not (ROOT / "logging" / f"{module}.py").exists()
            assert allowed, f"{name_of(path)}: {name}"


# --- what loads without a framework -------------------------------------------------------------

OF_RANKS = {"rn50.data.pipeline", "rn50.launch.horovodrun"}
"""Beside `train`; the second is a launcher's process."""
LAPTOP = [
    name
    for room in ROOMS
    for name in modules(room)
    if room != "train" and name not in OF_RANKS
]


def test_no_module_but_a_ranks_loads_a_framework() -> None:
    """So no command's help or listing does: they once were of no use without Horovod."""
    in_fresh_python(
        "import importlib, sys\n"
        f"for module in {LAPTOP}:\n"
        "    importlib.import_module(module)\n"
        f"    loaded = [name for name in {FRAMEWORKS} if name in sys.modules]\n"
        "    assert not loaded, f'{module} loads {loaded}'"
    )


# --- the README's road --------------------------------------------------------------------------

STARTED_BY = {
    "cli/launch.py": ("run_and_time.sh", "rn50 launch"),
    "train/__main__.py": ("launch/launch_plan.py", '"rn50.train"'),
    "train/kernels/update.cc": ("train/update/optimizer.py", "kernels"),
}
"""What no import leads to: the file that names it, and how."""


def test_the_readmes_road_leads_from_file_to_file() -> None:
    """Each of its files is imported, or started by its name, by one of those before it."""
    readme = (ROOT / "README.md").read_text()
    section = readme.split("## From the command to the gradient")[1].split("\n## ")[0]
    road = re.findall(r"^\| `([\w./]+)` \|", section, re.M)
    assert {"train/operators.py", "train/kernels/update.cc"} <= set(road)
    met = {road[0]}
    imported = set[str]()
    for name in road[1:]:
        starter, mention = STARTED_BY.get(name, ("", ""))
        module = module_of(ROOT / name)
        is_started = starter in met and mention in (ROOT / starter).read_text()
        assert is_started or module in imported, f"nothing before leads to {name}"
        met.add(name)
        imported |= modules_imported().get(module, set())


# --- size ---------------------------------------------------------------------------------------


def lines_of_docstrings(source: str) -> set[int]:
    """Lines of every string that is a statement of its own."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), end_lineno=int(last)):
                lines |= set(range(node.lineno, last + 1))
    return lines


def code_tokens(source: str) -> list[tokenize.TokenInfo]:
    """What `tokenize` gives, without comments, docstrings and layout."""
    documented = lines_of_docstrings(source)
    tokens = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_string = token.type == tokenize.STRING
        is_docstring = is_string and token.start[0] in documented
        if not is_docstring and token.type not in LAYOUT:
            tokens.append(token)
    return tokens


def tokens_of(source: str) -> int:
    return len(code_tokens(source))


def test_comments_docstrings_and_layout_cost_no_tokens() -> None:
    assert tokens_of("total = 1 + 2\n") == 5
    spread_out = 'def f():  # why\n    """What."""\n\n    return (\n        1\n    )\n'
    assert tokens_of(spread_out) == 9


@pytest.mark.parametrize(
    ("files", "budget", "name"),
    [(FILES, PRODUCT_TOKENS, "PRODUCT_TOKENS"), (TESTS, TEST_TOKENS, "TEST_TOKENS")],
    ids=["product", "tests"],
)
def test_product_and_tests_keep_their_budgets(
    files: list[Path], budget: int, name: str
) -> None:
    tokens = sum(tokens_of(path.read_text()) for path in files)
    assert tokens <= budget, (
        f"{tokens} tokens of code, {budget} expected at most: delete what is not needed, "
        f"or raise {name} in a commit that says why"
    )


def test_options_are_frozen() -> None:
    paths = [key.path.removesuffix("[]") for key in all_keys()]
    sections = {path.rpartition(".")[0].removesuffix("[]") for path in paths}
    keys = [path for path in paths if path not in sections]
    commands = list(leaves(get_command(app)))
    assert len(keys) <= MOST_KEYS
    assert len(commands) <= MOST_COMMANDS


def test_no_room_outgrows_the_others() -> None:
    rooms = Counter[str]()
    for path in FILES:
        rooms[room_of(path)] += tokens_of(path.read_text())
    room, largest = rooms.most_common(1)[0]
    assert largest < LARGEST_SHARE * rooms.total(), room


def test_no_function_is_longer_than_a_screen() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            body = node.body
            if ast.get_docstring(node) and len(body) > 1:
                body = body[1:]
            last = body[-1].end_lineno
            assert last is not None
            lines = last - body[0].lineno + 1
            assert lines <= FUNCTION_LINES, f"{name_of(path)}: {node.name}"


def test_a_small_module_has_two_importers_or_a_table() -> None:
    imported = modules_imported()
    importers = Counter(target for targets in imported.values() for target in targets)
    for path in FILES:
        is_plugin = any(plugin in name_of(path) for plugin in PLUGINS)
        is_small = len(path.read_text().splitlines()) < SMALL_MODULE_LINES
        is_of_one = importers[module_of(path)] == 1
        assert is_plugin or not is_small or not is_of_one, name_of(path)
