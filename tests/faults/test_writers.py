"""A writer that is killed before its rename leaves what the next writer of the name removes."""

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.rooms import module_of, sources

LAW = "partial_beside"
WRITERS = {
    "data.prepare._draw_once": """
from rn50.config.schema import Synthetic
from rn50.data.prepare import _draw_once
from rn50.host import lock
from rn50.host.progress import untracked
lock.STALE_S = 3.0
settings = Synthetic(classes=2, train_samples=4, eval_samples=2)
_draw_once(out / "set", settings, untracked)
""",
    "host.atomic.new_folder": """
from rn50.host.atomic import new_folder
with new_folder(out / "set") as folder:
    (folder / "within").mkdir()
    (folder / "within/file").touch()
""",
    "host.atomic.write_file": """
from rn50.host.atomic import write_file
write_file(out / f"result of [some] long {40 * 'name'}.json", "{}")
""",
    "launch.evaluation.packed_images": """
from PIL import Image
from rn50.launch.evaluation import packed_images
photo = out / "a.png"
Image.new("L", (8, 8)).save(photo)
with packed_images([photo], out):
    pass
""",
    "launch.supervisor._scratch": """
import tempfile
from rn50.launch import supervisor
os.access = lambda *_: False  # no /dev/shm
tempfile.tempdir = str(out)
with supervisor._scratch(None, one_machine=True) as variables:
    file = Path(variables["TMPDIR"]) / "file"
    file.touch()
    file.rename(file.with_name("renamed"))
""",
    "launch.run_files.scratch_folder": """
from rn50.config.load import load
from rn50.launch.run_files import scratch_folder
with scratch_folder(load("smoke", [f"system.results={out}"]), "bench"):
    pass
""",
    "report.export.to_tensorboard": """
from rn50.report.export import read_runs, to_tensorboard
(out / "smoke/1").mkdir(parents=True, exist_ok=True)
(out / "smoke/1/metrics.jsonl").write_text('{"kind": "eval", "accuracy": 0.5}\\n')
to_tensorboard(read_runs([out / "smoke/1"])[0], out / "board")
""",
    "train.checkpoint.file.write_checkpoint": """
from tests.train.saved import leave_checkpoint
leave_checkpoint(out, attempt)
""",
    "train.checkpoint.folder.mark_best": """
from rn50.train.checkpoint.folder import mark_best
(out / "step_0000000007.ckpt").touch()
mark_best(out / "step_0000000007.ckpt")
""",
    "train.kernels.build": """
from rn50.train import kernels
kernels.library_path = lambda source: out / "stamp.so"
kernels.build(kernels.STAMP_SOURCE)
""",
}
"""Each function that makes what it will rename, called for the folder `out`."""
OTHERS = {
    "data.pack.pack_images": "the next packing continues it, under a lock",
    "data.synthetic.make_images": "the next drawing continues it, under a lock",
    "data.stage.stage": "of a fixed name under a lock: the next one removes it",
    "launch.job_folder.put_aside": "what is there gets another name",
    "launch.resume._keep_attempt": "what is there gets another name",
}
"""Functions that rename, and why that leaves nothing."""
STAYING = {
    "cli.entry._unforeseen": "a traceback, for people",
    "host.programs._keep": "the words of a program, for people",
}
"""Functions whose temporary file stays."""
KILLED = """
import os, sys
from pathlib import Path
out = Path(sys.argv[1])
attempt = int(sys.argv[2])
def kill(event, _):
    if attempt == 1 and event == "os.rename":
        os.kill(os.getpid(), 9)
sys.addaudithook(kill)
"""


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """(function, what it calls, the call), of all functions of the program."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                for call in ast.walk(node):
                    if isinstance(call, ast.Call):
                        name = ast.unparse(call.func).rpartition(".")[2]
                        yield f"{module_of(path)}.{node.name}", name, call


def renames(name: str, call: ast.Call) -> bool:
    """`text.replace` has two arguments, `dataclasses.replace` and others have keywords."""
    is_method = isinstance(call.func, ast.Attribute)
    has_one = len(call.args) == 1 and not call.keywords
    return name == "rename" or (name == "replace" and is_method and has_one)


def test_whoever_makes_a_name_to_rename_obeys_the_law() -> None:
    law = set()
    renaming = set()
    for function, name, call in calls():
        if name == LAW:
            law.add(function)
        if renames(name, call):
            renaming.add(function)
        if name in ("mkdtemp", "mkstemp", "NamedTemporaryFile"):
            assert function in STAYING
    assert law == WRITERS.keys()
    assert renaming - law == OTHERS.keys()


def beside(folder: Path) -> list[Path]:
    return list(folder.rglob(".*.partial-*"))


def run(code: str, folder: Path, attempt: int) -> int:
    command = [sys.executable, "-c", KILLED + code, str(folder), str(attempt)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


@pytest.mark.parametrize("writer", WRITERS)
def test_the_next_writer_removes_what_a_killed_one_left(
    tmp_path: Path, writer: str
) -> None:
    if writer.endswith("tensorboard"):
        pytest.importorskip("tensorboardX", reason="no tensorboardX here")
    assert run(WRITERS[writer], tmp_path, 1) == -9
    assert beside(tmp_path)
    assert run(WRITERS[writer], tmp_path, 2) == 0
    assert beside(tmp_path) == []


def test_what_lives_or_is_another_machines_stays(tmp_path: Path) -> None:
    """A writer cannot see the lock of another machine: time tells."""
    from rn50.host.atomic import partial_beside, write_file

    page = tmp_path / "page"
    new = tmp_path / ".page.partial-0123abcd"
    old = tmp_path / ".page.partial-0123abce"
    foreign = [tmp_path / ".other.partial-0123abcd", tmp_path / ".page.partial-mine"]
    for path in (new, old, *foreign):
        path.touch()
    for path in (old, *foreign):
        os.utime(path, (time.time() - 90, time.time() - 90))
    with partial_beside(page) as living:
        living.write_text("first")
        write_file(page, "second")
        assert page.read_text() == "second"
        assert sorted(beside(tmp_path)) == sorted([living, new, *foreign])
        living.replace(page)
    assert page.read_text() == "first"
