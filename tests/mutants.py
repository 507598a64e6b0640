"""`python -m tests.mutants`: random single faults, and the tests that are to notice them.

python -m tests.mutants --rooms launch,predict --n 20 --seed 4
python -m tests.mutants --rooms launch --all

Each fault is put into a copy of this checkout, uncommitted changes too. One that `--fast` tests of
its room and of tests/cli let pass has survived; with --all those without `--fast` look as well.
Some faults change nothing that counts (a message, a guard that is never met). One fault at a time:
for two, start it twice, with other seeds.
"""

import argparse
import ast
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias

import psutil

from rn50.launch.supervisor import _orphans_become_children
from tests.rooms import ROOMS, ROOT

OTHER: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
OF_ANY_ORDER = ("gcd", "isclose", "max", "maximum", "min", "minimum")
NEVER_RUN = ("annotation", "returns")
"""Fields of a node. Nor is a fault drawn within an f-string, which is a message or a token."""
SURVIVED = "survived"
EXIT_STOPPED = 130
NO_TESTS = 5
PATIENCE = 4
"""How many times as long as without a fault tests may take."""
LONGEST_S = 3600


Code: TypeAlias = ast.expr | ast.stmt


class Fault(NamedTuple):
    """Bytes `start` to `end` of a file are replaced by `new`."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    @property
    def room(self) -> str:
        return self.file.split("/")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.old}  ->  {self.new}"


def faults_of(text: str, file: str = "") -> list[Fault]:
    """Every fault that may be put into a module."""
    content = text.encode()
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    faults = []
    for node in _nodes(ast.parse(text)):
        for old, new in _replaced(node):
            if ast.dump(old) == ast.dump(new):
                continue
            spelt = ast.unparse(new)
            if isinstance(new, ast.expr):
                spelt = f"({spelt})"
            assert old.end_lineno is not None
            assert old.end_col_offset is not None
            fault = Fault(
                file=file,
                line=old.lineno,
                start=starts[old.lineno - 1] + old.col_offset,
                end=starts[old.end_lineno - 1] + old.end_col_offset,
                old=ast.unparse(old),
                new=spelt,
            )
            faults.append(fault)
    return faults


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_code = isinstance(child, ast.AST) and name not in NEVER_RUN
            if is_code and not isinstance(child, ast.JoinedStr):
                yield from _nodes(child)


def _replaced(node: ast.AST) -> Iterator[tuple[Code, Code]]:
    """Of one node, or of its condition, what stands in its place."""
    match node:
        case ast.Compare(ops=[first, *rest]) if type(first) in OTHER:
            operators = [OTHER[type(first)](), *rest]
            yield node, ast.Compare(node.left, operators, node.comparators)
        case ast.BinOp(op=op) if type(op) in OTHER:
            other = OTHER[type(op)]()
            yield node, ast.BinOp(node.left, other, node.right)
        case ast.BoolOp(op=op):
            yield node, ast.BoolOp(OTHER[type(op)](), node.values)
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value):
            yield node, ast.Constant(value + 1)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Call(func=function, args=[first, second, *rest]):
            name = ast.unparse(function).rpartition(".")[2]
            starred = any(isinstance(each, ast.Starred) for each in node.args)
            if name not in OF_ANY_ORDER and not starred:
                exchanged = [second, first, *rest]
                yield node, ast.Call(node.func, exchanged, node.keywords)
        case ast.Expr(value=ast.Constant()):  # a docstring
            pass
        case ast.Expr() | ast.AugAssign():
            yield node, ast.Pass()


def draw(root: Path, rooms: list[str], count: int, seed: int) -> list[Fault]:
    """`count` faults of the rooms' modules; the same for the same sources and seed."""
    faults = []
    for name in _files(root):
        room = name.partition("/")[0]
        if room in rooms and name.endswith(".py"):
            faults += faults_of((root / name).read_text(), name)
    count = min(count, len(faults))
    return random.Random(seed).sample(faults, count)


def _files(root: Path) -> list[str]:
    """What git tracks, or would."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=True
    )
    names = {*listed.stdout.split("\0")} - {""}
    return sorted(name for name in names if os.path.lexists(root / name))


class Copy:
    """A checkout of its own in `folder`, with the compiled code that a first run has left."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "rn50"
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """The module returns with its time of change, so that its compiled code stays valid."""
        path = self.root / fault.file
        kept = path.with_suffix(".kept")
        content = path.read_bytes()
        before = content[: fault.start]
        after = content[fault.end :]
        path.rename(kept)
        path.write_bytes(before + fault.new.encode() + after)
        try:
            yield
        finally:
            kept.replace(path)

    def noticed_by(self, tests: list[str], patience_s: float | None = None) -> str:
        """The first test that fails, or how else the tests did not pass; empty: they did. Without
        `patience_s` the code is as it was, and what is compiled of it is kept."""
        environment = os.environ | {
            "PYTHONPATH": str(self.root),
            "TMPDIR": str(self._temporary),
        }
        if patience_s:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        pytest = "-m pytest -x -q --tb=no -p no:cacheprovider"
        # no pipe, whose end processes that tests have left would hold
        output = self.root.with_name("output.txt")
        try:
            with output.open("w") as file:
                done = subprocess.run(
                    [sys.executable, *pytest.split(), *tests],
                    cwd=self.root,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    timeout=patience_s,
                    start_new_session=True,  # Ctrl-C reaches us alone
                )
        except subprocess.TimeoutExpired:
            return "time"
        finally:
            self._clear()
        if done.returncode in (0, NO_TESTS):
            return ""
        text = output.read_text(errors="replace")
        if named := re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.M):
            return named[1]
        return f"exit code {done.returncode}"

    def _clear(self) -> None:
        """End what tests have left running in this copy, and remove their files."""
        left = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if Path(process.cwd()).is_relative_to(self.root.parent):
                    process.kill()
                    left.append(process)
        psutil.wait_procs(left, timeout=10)
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()


def _tests(root: Path, room: str, module: str = "") -> list[str]:
    """Those of the module come first: they fail soonest."""
    folders = [f"tests/{name}" for name in dict.fromkeys((room, "cli"))]
    named = f"tests/{room}/test_{module}.py"
    return [path for path in (named, *folders) if (root / path).exists()]


def _without_a_fault(copy: Copy, rooms: set[str]) -> dict[str, float]:
    """How long each room's fast tests take, which all pass."""
    took_s = {}
    for room in sorted(rooms):
        start_s = time.monotonic()
        if failed := copy.noticed_by(["--fast", f"tests/{room}"]):
            raise SystemExit(
                f"mutants: without a fault: tests that pass expected, {failed} failed"
            )
        took_s[room] = time.monotonic() - start_s
    return took_s


def run(
    root: Path, folder: Path, faults: list[Fault], tiers: dict[str, list[str]]
) -> Counter[tuple[str, str]]:
    """Put the faults in, and print what becomes of each; counts (room, tier that noticed it)."""
    copy = Copy(folder)
    for name in _files(root):
        target = copy.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target, follow_symlinks=False)
    (copy.root / ".venv").symlink_to(root / ".venv")
    took_s = _without_a_fault(copy, {"cli"} | {fault.room for fault in faults})

    def noticed(fault: Fault) -> tuple[str, str]:
        tests = _tests(copy.root, fault.room, Path(fault.file).stem)
        for tier, words in tiers.items():
            patience_s: float = LONGEST_S
            if words:
                usual_s = took_s[fault.room] + took_s["cli"]
                patience_s = PATIENCE * usual_s + 60
            if by := copy.noticed_by([*words, *tests], patience_s):
                return tier, by
        return SURVIVED, ""

    start_s = time.monotonic()
    outcomes: Counter[tuple[str, str]] = Counter()
    for number, fault in enumerate(faults, 1):
        with copy.with_fault(fault):
            tier, by = noticed(fault)
        outcomes[fault.room, tier] += 1
        minutes, seconds = divmod(int(time.monotonic() - start_s), 60)
        print(
            f"{number:3}/{len(faults)} {minutes:3}:{seconds:02}  {tier:8}  {fault}  {by}",
            flush=True,
        )
    return outcomes


def _stop(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt(number)


def table(outcomes: Counter[tuple[str, str]], tiers: list[str]) -> str:
    """By room how many were noticed, and by which tests."""
    columns = [*tiers, SURVIVED]
    lines = [f"{'room':12}{'drawn':>10}" + "".join(f"{name:>10}" for name in columns)]
    rooms = sorted({room for room, _ in outcomes})
    for room in rooms:
        counts = [outcomes[room, name] for name in columns]
        lines.append(_row(room, counts))
    totals = []
    for name in columns:
        totals.append(sum(outcomes[room, name] for room in rooms))
    return "\n".join([*lines, _row("all", totals)])


def _row(room: str, counts: list[int]) -> str:
    cells = (f"{count:10}" for count in (sum(counts), *counts))
    return f"{room:12}" + "".join(cells)


def main(root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rooms", default=",".join(ROOMS), help="such as launch,predict"
    )
    parser.add_argument("--n", type=int, default=40, help="faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="without --fast as well")
    given = parser.parse_args()
    rooms = given.rooms.split(",")
    if unknown := set(rooms) - set(ROOMS):
        parser.error(
            f"--rooms: some of {', '.join(ROOMS)} expected, found {', '.join(unknown)}"
        )
    tiers = {"fast": ["--fast"]}
    if given.all:
        tiers["all"] = []
    faults = draw(root, rooms, given.n, given.seed)
    scratch = tempfile.TemporaryDirectory(prefix="rn50-mutants-")
    with scratch as folder, _orphans_become_children():
        try:
            outcomes = run(root, Path(folder), faults, tiers)
        except KeyboardInterrupt:
            return EXIT_STOPPED
    print(table(outcomes, list(tiers)))
    survived = sum(outcomes[room, SURVIVED] for room in rooms)
    noticed = outcomes.total() - survived
    print(
        f"{noticed} of {len(faults)} noticed ({noticed / len(faults):.0%}), seed {given.seed}"
    )
    return 0


if __name__ == "__main__":
    for ends in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, _stop)
    sys.exit(main())
