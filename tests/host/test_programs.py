"""Every call of another program goes through one door, and none of them trusts the program."""

import ast
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rn50.compliance.official import check_officially
from rn50.config.load import load
from rn50.host import programs
from rn50.host.errors import UserError
from rn50.launch import (
    host_limits,
    job,
    mpi_program,
    nccl_trial,
    nodes_left,
    package,
    submit,
)
from rn50.launch.doctor import try_library
from rn50.launch.environment_record import output_of
from rn50.launch.launchers import Job, pick_pmi
from rn50.launch.schedulers import SCHEDULERS
from rn50.launch.supervisor import run_watched
from rn50.sweep import trial
from rn50.train.communication.mpi_library import linked_mpi
from tests.conftest import write_script
from tests.rooms import ROOT, sources
from tests.waiting import leave_nothing

DOOR = ROOT / "host/programs.py"
ELSEWHERE = re.compile(
    r"subprocess|pty|asyncio\.create_subprocess\w*|ctypes\.util|webbrowser"
    r"|os\.(system|popen|fork\w*|exec\w+|spawn\w+|posix_spawn\w*)"
    r"|platform\.(processor|platform|uname)"  # these call `uname -p`
)


def nodes_of(path: Path) -> Iterator[ast.AST]:
    """All but what is for type checkers alone."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            pending += ast.iter_child_nodes(node)


def test_no_program_is_started_elsewhere() -> None:
    for path in set(sources()) - {DOOR}:
        for node in nodes_of(path):
            used = []
            if isinstance(node, ast.Import | ast.ImportFrom):
                used = [getattr(node, "module", None) or ""]
                used += [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute):
                used = [ast.unparse(node)]
            assert not list(filter(ELSEWHERE.fullmatch, used)), path


@cache
def callers() -> dict[str, bool]:
    """`room.module.function` of each that starts a program, and whether it waits for its end."""
    waits = {}
    for path in set(sources()) - {DOOR}:
        names: dict[str, str] = {}
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        functions = []
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module == "host.programs":
                names |= {alias.name: f"programs.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.FunctionDef):
                functions.append(node)
        for function in functions:
            parameters = {argument.arg for argument in function.args.args}
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    if called not in parameters:
                        called = names.get(called, called)
                    if called in ("programs.ask", "programs.call", "programs.start"):
                        waits[f"{module}.{function.name}"] = called != "programs.start"
    return waits


def queue(folder: Path, step: Callable[[submit.SubmissionPlan], str]) -> str:
    return step(submit.plan_submission(load("smoke"), "slurm", 1, folder))


def built(folder: Path) -> Path:
    from rn50.train import kernels

    source = folder / "x.c"
    source.write_text("int x;")
    return kernels.build(source)


PLAN: Any = SimpleNamespace(job=Job((), 1, 1), launcher="mpirun")
CALLS: dict[str, Callable[[Path], object]] = {
    "compliance.official.check_officially": lambda folder: check_officially(
        folder, "4.0.0"
    ),
    "launch.doctor._rows_of": lambda _: try_library("dali", "cpu"),
    "launch.environment_record.output_of": lambda _: output_of("git"),
    "launch.host_limits.may_read_others": lambda _: host_limits.may_read_others(),
    "launch.job._call": lambda _: job._call(["x"], os.environ),
    "launch.job.put_back": lambda _: job.put_back("x"),
    "launch.launchers.pick_pmi": lambda _: pick_pmi(None),
    "launch.mpi_program._described": lambda _: mpi_program._described("mpirun"),
    "launch.nccl_trial._rows": lambda _: nccl_trial._rows("NCCL", ["x"], os.environ),
    "launch.nodes_left._answers": lambda _: nodes_left._answers(PLAN, "here"),
    "launch.package._check": lambda folder: package._check(folder / "x", "4.0.0"),
    "launch.submit._answer": lambda _: submit._answer(SCHEDULERS["sge"], "4"),
    "launch.submit._queue": lambda folder: queue(folder, submit._queue),
    "launch.submit._start_here": lambda folder: queue(folder, submit._start_here),
    "launch.supervisor.run_watched": lambda folder: run_watched(
        ["x"], os.environ, folder, 1, None, 0
    ),
    "sweep.trial.start": lambda folder: trial.start(folder).wait(),
    "train.communication.mpi_library.linked_mpi": linked_mpi,
    "train.kernels.__init__.build": built,
}
FAULTS = {
    "no UTF-8": r"printf '42 f\374r\n\377'; head -c 9999 /dev/urandom >&2",
    "hangs": "sleep 60",
    "50 MB": f"for to in 1 2; do yes {'x' * 500} | head -c 50000000 >&$to; done",
    "signal": "kill -9 $$",
    "exit code": "exit 1",
    "left behind": "sleep 2 & echo 42",
    "absent": "",
}


def test_all_callers_are_tried() -> None:
    assert callers().keys() == CALLS.keys()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", CALLS)
def test_no_program_brings_a_traceback_or_an_endless_wait(
    name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "hangs" and not callers()[name]:
        pytest.skip("its caller watches it")
    program = tmp_path / "program"
    if fault != "absent":
        write_script(program, FAULTS[fault])
    instead = partial(start_instead, subprocess.Popen, str(program))
    monkeypatch.setattr(subprocess, "Popen", instead)
    monkeypatch.setattr(programs, "time", Impatient())
    for module in (host_limits.may_read_others, mpi_program._described):
        module.cache_clear()
    handler = signal.getsignal(signal.SIGTERM)
    begun_s = time.monotonic()
    try:
        CALLS[name](tmp_path)
    except UserError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 2000
    finally:
        signal.signal(signal.SIGTERM, handler)
        for module in (host_limits.may_read_others, mpi_program._described):
            module.cache_clear()
    assert time.monotonic() - begun_s < 30
    leave_nothing(tmp_path)


def start_instead(start: Any, program: str, _: object, **options: Any) -> object:
    return start([program], **options)


class Impatient(SimpleNamespace):
    """A clock that leaps after a second."""

    def __init__(self) -> None:
        begun_s = time.monotonic()

        def monotonic() -> float:
            now_s = time.monotonic()
            return now_s + 1e6 * (now_s > begun_s + 1)

        super().__init__(monotonic=monotonic)


def test_words_that_a_message_cuts_are_whole_in_a_file(tmp_path: Path) -> None:
    write_script(tmp_path / "sbatch", "seq 400; echo no >&2; exit 3")
    answer = programs.ask([str(tmp_path / "sbatch")])
    assert answer.ended == "sbatch ended with exit code 3"
    assert answer.said(folder=tmp_path) == f"no (all of it: {tmp_path / 'sbatch.txt'})"
    lines = (tmp_path / "sbatch.txt").read_text().split()
    assert lines == [*map(str, range(1, 401)), "no"]


def test_one_says_for_whom_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "_TELL_AFTER_S", 0.2)
    write_script(tmp_path / "qsub", "sleep 1")
    programs.ask([str(tmp_path / "qsub")])
    assert capsys.readouterr().err == "rn50: waiting for qsub, up to 20 s\n"
