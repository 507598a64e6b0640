import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.rooms import ORDER, PICTURE, ROOMS, ROOT, draw, imports, modules_imported, sources

MAY_IMPORT = {
    room: {other for row in ORDER[:level] for other in row}
    for level, row in enumerate(ORDER)
    for room in row
}
LARGEST_SHARE = 1 / 6
FRAMEWORKS = ("mxnet", "horovod", "nvidia.dali")

FILES = sources()


def file_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def in_fresh_python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def modules(room: str) -> list[str]:
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] == room]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    return [f"rn50.{name.removesuffix('.__init__')}" for name in names]


def test_the_walk_finds_the_code() -> None:
    assert len(FILES) > 30
    assert (0, "json") in set(imports(ROOT / "logging/parse.py"))
    assert (2, "config.errors.UserError") in set(imports(ROOT / "logging/events.py"))


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ROOMS, "tests", "rn50", "docs"])
def test_folder_of_the_design_exists(name: str) -> None:
    assert (ROOT / name).is_dir()


@pytest.mark.parametrize(
    "name",
    [
        "run_and_time.sh",
        "requirements.txt",
        "requirements-gpu.txt",
        "pyproject.toml",
        "Makefile",
        "README.md",
        "Dockerfile",
        "config/schema.py",
        "config/duration.py",
        "config/benchmark.py",
        "config/quick.yaml",
        "config/smoke.yaml",
        "config/system/abci.yaml",
        "data/pipeline.py",
        "logging/mlperf.py",
        "logging/parse.py",
        "train/__main__.py",
        "train/run.py",
        "train/startup.py",
        "train/loop.py",
        "train/comm.py",
        "train/optimizer.py",
        "train/schedule.py",
    ],
)
def test_file_of_the_design_exists(name: str) -> None:
    assert (ROOT / name).is_file()


def test_the_main_command_can_be_started() -> None:
    assert (ROOT / "run_and_time.sh").stat().st_mode & 0o111


@pytest.mark.parametrize("room", ROOMS)
def test_the_package_links_to_its_rooms(room: str) -> None:
    link = ROOT / "rn50" / room
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{room}"
    assert link.resolve() == ROOT / room


# --- the standard library's logging -------------------------------------------------------------


def test_the_logging_room_is_no_regular_package() -> None:
    """An __init__.py would shadow the standard library for anything started in the root."""
    assert not (ROOT / "logging/__init__.py").exists()


def test_logging_stays_the_standard_librarys_in_the_root() -> None:
    in_fresh_python("import logging; assert 'lib/python' in logging.__file__, logging.__file__")


# --- who imports whom ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=file_id)
def test_rooms_import_one_way_only(path: Path) -> None:
    parts = path.relative_to(ROOT).parts
    room, depth = parts[0], len(parts) - 1
    for level, name in imports(path):
        if level == depth + 1:
            target = name.split(".")[0]
            assert target in MAY_IMPORT[room] | {room, "__version__"}, f"{room} imports {name}"
        assert level <= depth + 1, f"{name}: above the package"


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle() -> None:
    imported = modules_imported()
    assert imported["train.run"] >= {"train.loop", "data.sampling"}
    while leaves := {name for name, targets in imported.items() if not targets}:
        imported = {n: t - leaves for n, t in imported.items() if n not in leaves}
    assert not imported, f"in a circle, or on the way to one: {sorted(imported)}"


@pytest.mark.slow
def test_the_picture_of_the_rooms_is_as_they_are() -> None:
    assert PICTURE.read_text() == draw(), "make architecture"


def test_no_room_is_a_sixth_of_the_code() -> None:
    lines = Counter[str]()
    for path in FILES:
        lines[path.relative_to(ROOT).parts[0]] += len(path.read_text().splitlines())
    room, most = lines.most_common(1)[0]
    assert most < LARGEST_SHARE * lines.total(), room


@pytest.mark.parametrize("path", FILES, ids=file_id)
def test_no_room_is_imported_absolutely(path: Path) -> None:
    """`import train.x` would make a second module object, `from data import` works in the root
    alone, and `import rn50.x` is spelt relatively inside the package."""
    for level, name in imports(path):
        top = name.split(".")[0]
        if level == 0:
            assert top != "rn50", name
            assert top not in set(ROOMS) - {"logging"}, name
            if top == "logging":
                module = [*name.split("."), ""][1]
                assert not (ROOT / "logging" / f"{module}.py").exists(), name


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "tests").rglob("*.py")),
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_tests_import_the_package_by_its_name(path: Path) -> None:
    for level, name in imports(path):
        assert level == 0, name
        assert name.split(".")[0] not in set(ROOMS) - {"logging"}, name


# --- what loads without a framework -------------------------------------------------------------

WRITING = {"rn50.logging.mlperf"}  # mlperf-logging's writer
LAPTOP = [
    *modules("config"),
    *modules("scaling"),
    *(name for name in modules("logging") if name not in WRITING),
    *(name for name in modules("data") if name != "rn50.data.pipeline"),
]


@pytest.mark.parametrize("module", LAPTOP)
def test_module_loads_no_framework(module: str) -> None:
    in_fresh_python(
        f"import sys, {module}\n"
        f"found = [name for name in {FRAMEWORKS} if name in sys.modules]\n"
        "assert not found, found"
    )


@pytest.mark.parametrize("room", ["config", "scaling"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_room_names_no_framework_even_inside_functions(room: str, framework: str) -> None:
    for path in FILES:
        if path.relative_to(ROOT).parts[0] == room:
            assert not [n for _, n in imports(path) if f"{n}.".startswith(f"{framework}.")]


STARTED_AS = {"cli/launch.py": "rn50 launch", "train/__main__.py": '"rn50.train"'}
BUILT_BY = {"train/kernels/update.cc": "kernels", "train/kernels/stamp.c": "kernels"}


def test_the_readmes_road_leads_from_file_to_file() -> None:
    """Each of its files is imported, or started by its name, by one of those before it."""
    section = (ROOT / "README.md").read_text().split("## From the command to the gradient")[1]
    road = re.findall(r"^\| `([\w./]+)` \|", section.split("\n## ")[0], re.M)
    assert 5 <= len(road) <= 10
    for place, name in enumerate(road[1:], 1):
        module = re.escape(name.removesuffix(".py").replace("/", "."))
        room, _, leaf = module.rpartition(r"\.")
        way = (
            re.escape((STARTED_AS | BUILT_BY).get(name, ""))
            or rf"from \.+({room})?\.?{leaf} import"
        )
        before = [(ROOT / earlier).read_text() for earlier in road[:place]]
        assert any(re.search(way, text) for text in before), f"nothing before leads to {name}"
