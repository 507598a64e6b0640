"""Every command's help and its simplest use in every environment: what it says arrives whole, what
it cannot do is a line an error, and nothing is a traceback."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from rn50.cli.main import app
from tests.cli.test_predict import write_log
from tests.conftest import GOLDEN_LOG, PROGRAM, write_json
from tests.waiting import finished

DRIVER = Path(__file__).with_name("everywhere.py")
USES = {
    "doctor": "nosuch.host",
    "config show": "smoke",
    "config check": "smoke",
    "config explain": "data",
    "config list": "",
    "data make": "{new}images --train 8 --val 4 --classes 2",
    "data pack": "{new}images {new}packed",
    "data verify": "set",
    "data stage": "smoke data.path=set --to {new}staged",
    "data prepare": "smoke data.path=set",
    "data bench": "nosuch",
    "log show": "result_0.txt run",
    "log check": "result_0.txt",
    "log score": "run",
    "log rules": "",
    "log compare": "result_0.txt run",
    "log report": "result_0.txt",
    "bench loop": "nosuch",
    "bench overlap": "nosuch",
    "bench horovod-baseline": "nosuch",
    "bench allreduce": "nosuch",
    "bench startup": "nosuch",
    "bench scaling": "nosuch",
    "bench optimizer": "nosuch",
    "export csv": "run",
    "export tensorboard": "run --out {new}board",
    "export model": "run --out {new}model",
    "predict run": "dgxh100_8",
    "predict validate": "",
    "predict calibrate": "mlperf.txt:8 --system dgx1",
    "launch": "smoke --dry-run data.path=set",
    "evaluate": "nosuch",
    "submit": "smoke --dry-run",
    "submission": "nosuch --org X",
    "runs": ".",
    "sweep": "nosuch",
}
"""What benchmarks and searches do is tried elsewhere: here they refuse."""
VERDICTS = {"doctor", "log score"}
"""Exit code 1 is one of theirs here."""
COSTLY = {"doctor", "export model", "predict validate"}
"""Seconds of CPU time each: tried with the wheel alone, where training is refused."""


class Case(NamedTuple):
    """An environment. `output`: as everywhere.py has it; None of a variable: unset."""

    output: str = "pipe"
    variables: Mapping[str, str | None] = {}
    prefix: tuple[str, ...] = ()
    is_empty: bool = False


READ_ONLY = (
    "unshare",
    "-m",
    "sh",
    "-c",
    'mount --bind . . && mount -o remount,ro,bind . && exec "$@"',
    "sh",
)
HOSTILE = {
    "COLUMNS": "abc",
    "FORCE_COLOR": "1",
    "HOME": "/proc/nowhere",
    "LC_ALL": "C",
    "MPLBACKEND": "module://nothing",
    "TERM": "dumb",
}
CASES = {
    "80 columns": Case("80", {"HOME": None}),
    "40 columns": Case("40", {"TERM": "dumb"}),
    "full": Case("full"),
    "closed": Case("closed"),
    "hostile": Case(variables=HOSTILE, prefix=READ_ONLY),
    "empty": Case(variables={"COLUMNS": "1"}, is_empty=True),
}
OF_EVERY_DAY = {"full", "hostile"}
"""The others are tried at night."""


def leaves(command: Any, *names: str) -> Iterator[tuple[str, Any]]:
    """Every command below one, by its name."""
    if not hasattr(command, "list_commands"):
        yield " ".join(names), command
        return
    context = command.make_context("rn50", ["-"], resilient_parsing=True)
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), *names, name)


def groups() -> set[str]:
    """`rn50` itself and the commands that have commands."""
    return {name.rpartition(" ")[0] for name in USES}


class Printed(NamedTuple):
    command: str
    arguments: list[str]
    code: int
    out: str
    err: str

    @property
    def code_when_well(self) -> int:
        """The exit code where nothing is in the way."""
        if {"nosuch", "--nosuch"} & {*self.arguments} or "pip install" in self.err:
            return 2
        return int(self.command in VERDICTS and not self.is_help)

    @property
    def subject(self) -> tuple[str, ...]:
        """The command, and its last word where that is no use of it."""
        return self.command, *({"--help", "--nosuch"} & {*self.arguments})

    @property
    def is_help(self) -> bool:
        return "--help" in self.arguments or self.command in groups()

    def is_well(self, codes: set[int]) -> None:
        """One of these exit codes; of errors a line each."""
        report = (
            f"rn50 {' '.join(self.arguments)}: {self.code}\n{self.err}{self.out[-500:]}"
        )
        assert self.code in codes, report
        for phrase in ("Traceback", "an error of rn50 itself", "\x1b"):
            assert phrase not in self.err + self.out, report
        if self.code == 2:
            lines = self.err.splitlines()
            errors = [line for line in lines if line.startswith("rn50: error: ")]
            assert errors, report
            assert errors == lines or "--nosuch" not in self.arguments, report
            assert lines[-len(errors) :] == errors, report
        else:
            assert "rn50: error" not in self.err, report


def words_of(output: str) -> Counter[str]:
    """A long choice is folded at its bars."""
    return Counter(output.replace("|", " | ").split())


def make_work(folder: Path, images: Path, run: Path) -> Path:
    """A folder with logs, a run and an image set."""
    shutil.copy(GOLDEN_LOG, folder / "result_0.txt")
    write_log(folder / "mlperf.txt", batch=128, step_s=0.02)
    shutil.copytree(run, folder / "run")
    (folder / "set").symlink_to(images)
    return folder


@pytest.fixture(scope="module")
def work(
    small_data: Path, uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return make_work(tmp_path_factory.mktemp("work"), small_data, uninterrupted)


def run_all(
    case: Case,
    folder: Path,
    aside: Path,
    python: str = sys.executable,
    left_out: set[str] = COSTLY,
) -> list[Printed]:
    """The help and the use of every command in `case`; what they make is made `aside`."""
    commands = []
    for name in sorted({*USES, *groups()}):
        commands.append((name, [*name.split(), "--help"]))
        if case == Case():  # an option that is none is refused alike everywhere
            commands.append((name, [*name.split(), "--nosuch"]))
        if name not in left_out:
            use = USES.get(name, "").format(new=f"{aside}/")
            commands.append((name, [*name.split(), *use.split()]))
    return run_each(case, folder, aside, commands, python)


def run_each(
    case: Case,
    folder: Path,
    aside: Path,
    commands: Sequence[tuple[str, list[str]]],
    python: str = sys.executable,
) -> list[Printed]:
    task = aside / "task.json"
    argument_lists = [arguments for _, arguments in commands]
    content = {"folder": str(folder), "output": case.output, "commands": argument_lists}
    write_json(task, content)
    environment = dict(os.environ)
    for name, value in {"COLUMNS": None, **case.variables}.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    done = finished(
        [*case.prefix, python, str(DRIVER), str(task)], cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    printed_json = task.with_suffix(".done").read_text().replace(str(aside), "aside")
    return [
        Printed(*command, **result)
        for command, result in zip(commands, json.loads(printed_json), strict=True)
    ]


@pytest.fixture(scope="module")
def piped(
    work: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, ...], Printed]:
    """What all commands print on a pipe, where all is well."""
    aside = tmp_path_factory.mktemp("piped")
    printed = {}
    for result in run_all(Case(), work, aside):
        result.is_well({result.code_when_well})
        printed[result.subject] = result
    return printed


def test_every_command_has_a_use() -> None:
    names = [name for name, _ in leaves(typer.main.get_command(app))]
    assert names == list(USES)


def steady(err: str) -> list[str]:
    """The lines but those of progress, which slow work alone prints."""
    return [line for line in err.splitlines() if not re.search(r", for [\d:]+$", line)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in OF_EVERY_DAY else pytest.mark.nightly)
        for name in CASES
    ],
)
def test_a_command_says_all_it_has_to_say(
    work: Path,
    piped: dict[tuple[str, ...], Printed],
    tmp_path: Path,
    device: Callable[[str], Path],
    name: str,
) -> None:
    case = CASES[name]
    if os.geteuid():  # only root may make a folder read-only
        case = case._replace(prefix=())
    if case.output == "full":
        case = case._replace(output=str(device("full")))
    folder = work
    if case.is_empty:
        folder = tmp_path / "empty"
        folder.mkdir()
    for printed in run_all(case, folder, tmp_path):
        on_pipe = piped[printed.subject]
        printed.is_well({on_pipe.code, 2})
        lost = words_of(on_pipe.out) - words_of(printed.out)
        if case.output not in ("pipe", "40", "80"):
            refused = "standard output: cannot write" in printed.err
            assert refused == (on_pipe.code != 2 and on_pipe.out != ""), printed
        elif not case.is_empty:
            is_written_here = printed.command == "log report" and case.prefix
            assert not lost or is_written_here, (printed, lost)
            if not is_written_here:
                assert steady(printed.err) == steady(on_pipe.err), printed


@pytest.mark.slow
def test_json_is_json_everywhere(
    work: Path, piped: dict[tuple[str, ...], Printed], tmp_path: Path
) -> None:
    commands = []
    for result in piped.values():
        has_json = "--json " in piped[result.command, "--help"].out
        if has_json and not result.is_help and result.code != 2:
            commands.append((result.command, [*result.arguments, "--json"]))
    assert len(commands) > 8
    for printed in run_each(CASES["hostile"], work, tmp_path, commands):
        printed.is_well({0, 1})
        json.loads(printed.out)


def test_pythons_own_settings_change_no_command() -> None:
    """Not even those of the interpreter's start."""
    settings = {
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONINSPECT": "1",
        "PYTHONOPTIMIZE": "2",
        "PYTHONUTF8": "0",
        "PYTHONWARNINGS": "error",
    }
    printed = []
    for variables in ({}, settings):
        command = [str(PROGRAM), "log", "--help"]
        environment = os.environ | variables
        done = finished(command, env=environment, stdin=subprocess.DEVNULL)
        printed.append((done.returncode, done.stdout, done.stderr))
    assert printed[0] == printed[1]
