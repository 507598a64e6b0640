"""Shared by all tests: the repository's root and small image sets made once a session."""

import contextlib
import io
import json
import math
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import HealthCheck, settings

# Before Horovod, which loads MXNet's symbols for everybody: Pillow would then write JPEG files with
# MXNet's older libjpeg ("library is 80, caller expects 62"). The program never has both at once.
from PIL import Image  # noqa: F401
from typer.testing import CliRunner, Result

from rn50.host.errors import UserError
from rn50.host.lock import hold
from rn50.host.progress import untracked
from rn50.host.stop_signals import command_stop_signals
from rn50.logging.parse import read_events
from rn50.logging.run_time import TIME_KEYS

# Before any test imports MXNet, whose finder the package installs.
from rn50.train import mxnet_import  # noqa: F401
from tests.conserved import check_all_times

ROOT = Path(__file__).resolve().parent.parent
GOLDEN_LOG = ROOT / "tests/golden/smoke_result_0.txt"
PROGRAM = Path(sys.executable).with_name("rn50")

# A busy machine must not fail a property: nothing is timed, and the examples are the same in every
# whole run of one tree. For new ones: `pytest --hypothesis-profile=search`. Fixtures are folders,
# written anew.
CHECKS = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
settings.register_profile(
    "search", deadline=None, suppress_health_check=CHECKS, max_examples=500
)
settings.register_profile(
    "same", settings.get_profile("search"), derandomize=True, max_examples=50
)
settings.register_profile("fast", settings.get_profile("same"), max_examples=10)
settings.load_profile("same")


_OF_PROCESSES = ("container", "faults", "gpu", "ranks", "slurm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help="neither slow tests nor those that run the command; ten examples of a property",
    )
    parser.addoption(
        "--nightly",
        action="store_true",
        help="instead of all others: tests/lab and what is marked nightly (make test-nightly)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast"):
        settings.load_profile("fast")
    # a shell's background job; inherited
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders whose files all start processes are not even imported with --fast."""
    left_out = []
    if not config.getoption("--nightly"):
        left_out.append("lab")
    if config.getoption("--fast"):
        left_out += _OF_PROCESSES
    return True if collection_path.name in left_out else None


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Files with slow tests come first: of several processes that run files, the one with a long
    file at the end would be alone."""
    nightly = config.getoption("--nightly")
    fast = config.getoption("--fast")

    def is_left_out(item: pytest.Item) -> bool:
        if _is_nightly(item) != nightly:
            return True
        return fast and (_is_slow(item) or _starts_processes(item))

    config.hook.pytest_deselected(items=[*filter(is_left_out, items)])
    items[:] = [item for item in items if not is_left_out(item)]
    slow_files = {item.path for item in items if _is_slow(item)}
    items.sort(key=lambda item: item.path not in slow_files)


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _is_nightly(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("nightly")
    return marker is not None or item.path.parent.name == "lab"


def _starts_processes(item: pytest.Item) -> bool:
    runs_commands = "rn50" in getattr(item, "fixturenames", ())
    return runs_commands and item.get_closest_marker("in_process") is None


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture
def alarm() -> Iterator[None]:
    """Ends a test after a minute: who waits for a FIFO, or reads zeros, does so for ever."""

    def stop(*_: object) -> None:
        raise TimeoutError

    previous_handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous_handler)


def packed(folder: Path, samples: str) -> Path:
    """A drawn set like that of `smoke`; `samples`: what differs, as YAML."""
    from rn50.config.load import load
    from rn50.data.prepare import prepare

    overrides = [f"data.path={folder}", f"data.synthetic={samples}"]
    prepare(load("smoke", overrides).run.data, untracked)
    return folder


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes that run this session's tests."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        return base.parent
    return base


@pytest.fixture(scope="session", autouse=True)
def conserved_times(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The times of every run that the session made are checked at its end (tests/conserved.py)."""
    since_unix_s = time.time()
    yield
    check_all_times(tmp_path_factory.getbasetemp(), since_unix_s)
    for marker in shared_folder(tmp_path_factory).glob("*.made"):
        check_all_times(marker.with_suffix(""), since_unix_s)


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """`folder`, which the first process that asks for it makes. To be read, or copied."""
    marker = folder.with_name(f"{folder.name}.made")
    lock = folder.with_name(f"{folder.name}.lock")
    with hold(lock, wait_s=math.inf):
        if not marker.exists():
            make(folder)
            marker.touch()
    return folder


@pytest.fixture(scope="session")
def smoke_data(shared: Path) -> Path:
    """The packed set of `smoke`."""
    return made_once(shared / "set", lambda folder: packed(folder, "{}"))


@pytest.fixture(scope="session")
def small_data(shared: Path) -> Path:
    """The same in small: an epoch of two ranks is 20 steps, not 50. For runs that need not learn
    much: one of four epochs costs 5 CPU-seconds less, and its start 9."""
    few = "{train_samples: 400, eval_samples: 200}"
    return made_once(shared / "small_set", lambda folder: packed(folder, few))


IN_PROCESS = {"config", "log", "predict", "runs", "submission"}
"""Commands that start no process and load no framework: each saves the start of a Python, 1 s. With
`-` for a file they write to the descriptor of standard output, which a process of their own has."""


def in_this_process(
    arguments: tuple[str, ...], folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """What `rn50 ARGUMENTS` prints in `folder`, and its exit code."""
    from rn50.cli import entry

    out = io.StringIO()
    err = io.StringIO()
    code: Any = 0
    handlers = {number: signal.getsignal(number) for number in command_stop_signals()}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["rn50", *arguments])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                entry.main()
            except SystemExit as done:
                code = done.code
    for number, handler in handlers.items():  # the command has ignored them at its end
        signal.signal(number, handler)
    texts = (out.getvalue(), err.getvalue())
    return subprocess.CompletedProcess(arguments, code, *texts)


def invoke(*arguments: object, **options: Any) -> Result:
    """The result of a command in this process, which holds what it printed and raised."""
    from rn50.cli.main import app

    return CliRunner().invoke(app, list(map(str, arguments)), **options)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def write_file(path: Path, content: str | bytes) -> Path:
    """A file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    return path


def flip_bit(path: Path, offset: int) -> None:
    """The lowest of a byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def write_json(path: Path, content: object) -> None:
    write_file(path, json.dumps(content))


def metrics(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """The records of some kinds that a run has left."""
    records = map(json.loads, (folder / "metrics.jsonl").open())
    return [record for record in records if record["kind"] in kinds]


def logged(
    folder: Path, name: str = "result_0.txt"
) -> list[tuple[str, object, dict[str, object]]]:
    """The events of a run's log, without stamps and the lines of our own code."""
    events = []
    for event in read_events(folder / name):
        metadata = event.metadata | dict.fromkeys(("file", "lineno"))
        events.append((event.key, event.value, metadata))
    return events


def of_training(folder: Path) -> list[tuple[str, object, dict[str, object]]]:
    """The same without saves and resumptions: all that an uninterrupted run would have."""
    return [event for event in logged(folder) if event[0] not in TIME_KEYS]


def stop_of(folder: Path) -> object:
    """The status in the last record of a run's log, which is its run_stop."""
    key, _, metadata = logged(folder)[-1]
    assert key == "run_stop"
    return metadata["status"]


def logged_keys(folder: Path) -> list[str]:
    return [key for key, *_ in logged(folder)]


def write_metrics(folder: Path, records: Iterable[object]) -> None:
    lines = (json.dumps(record) + "\n" for record in records)
    write_file(folder / "metrics.jsonl", "".join(lines))


def write_script(path: Path, body: str) -> None:
    """A program of Bash."""
    write_file(path, f"#!/bin/bash\n{body}\n").chmod(0o755)


def refused(pattern: str | None) -> contextlib.AbstractContextManager[Any]:
    """The block ends in a UserError with these words, a regular expression; None: it ends well."""
    if pattern is None:
        return contextlib.nullcontext()
    return pytest.raises(UserError, match=pattern)


class Process(subprocess.Popen[str]):
    """One whose output is read."""

    stdout: IO[str]
    stderr: IO[str]


class Rn50:
    """The installed command, as a user calls it."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def start(self, *arguments: str, **options: object) -> Process:
        command = [str(PROGRAM), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        settings: dict[str, Any] = {"cwd": ROOT, "text": True, **pipes, **options}
        return Process(command, **settings)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        if arguments and arguments[0] in IN_PROCESS and "-" not in arguments:
            return in_this_process(arguments)
        process = self.start(*arguments)
        texts = process.communicate(timeout=600)
        return subprocess.CompletedProcess(arguments, process.returncode, *texts)

    def output(self, *arguments: str) -> str:
        """What a command prints that ends well."""
        done = self(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def error(self, *arguments: str) -> str:
        """The one line of a command that refuses to begin."""
        done = in_this_process(arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stdout + done.stderr
        lines = done.stderr.splitlines()
        (line,) = (line for line in lines if line.startswith("rn50: error: "))
        return line

    def run_folder(self) -> Path:
        """The folder of the newest run."""
        folders = self.results.glob("[!.]*/*")
        return max(folders, key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture
def device(tmp_path: Path) -> Callable[[str], Path]:
    """`device("full")`: a node like /dev/full. Root has one of its own: the machine's may not be
    harmed by what is tested, and another user cannot harm it."""

    def node(name: str) -> Path:
        theirs = Path("/dev") / name
        mine = tmp_path / name
        try:
            os.mknod(mine, 0o666 | stat.S_IFCHR, theirs.stat().st_rdev)
            mine.open("wb").close()
        except PermissionError:  # not root, or a file system without devices
            if os.geteuid() == 0:
                pytest.skip("no devices here, and the machine's are not root's to risk")
            return theirs
        return mine

    return node


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], None]:
    """`program("squeue", "echo RUNNING")`: one of this name comes first on the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return lambda name, body: write_script(tmp_path / name, body)


@pytest.fixture
def rn50(tmp_path: Path) -> Rn50:
    return Rn50(tmp_path / "results")


RUN = (
    "smoke",
    "seed=1",
    "schedule.length=4 epochs",
    "eval.period=2",
    "eval.offset=1",
    "eval.target=0.999",
    "log.every=5 steps",
    "checkpoint.every=8 steps",
)
"""Four epochs of 20 steps on `small_data`, evaluated after 2 and 4; the target is out of reach."""


@pytest.fixture(scope="session")
def uninterrupted(shared: Path, small_data: Path) -> Path:
    """The folder of a finished RUN that nobody interrupted, for all tests of the session; its bits
    do not depend on the launcher."""
    rn50 = Rn50(shared / "whole")

    def run(_: Path) -> None:
        paths = (f"data.path={small_data}", f"system.results={rn50.results}")
        done = rn50("launch", *RUN, *paths)
        assert done.returncode == 1, done.stderr

    made_once(rn50.results, run)
    return rn50.run_folder()


@pytest.fixture(scope="session")
def smoke_run(shared: Path, smoke_data: Path) -> Callable[[str], Path]:
    """`smoke_run(launcher)`: the folder of a finished run of `smoke seed=1`, for all tests of the
    session; `printed.txt` in it: its standard output."""

    def finished(launcher: str) -> Path:
        rn50 = Rn50(shared / f"smoke_{launcher}")

        def run(_: Path) -> None:
            command = ("launch", "smoke", "--launcher", launcher)
            paths = (f"data.path={smoke_data}", f"system.results={rn50.results}")
            out = rn50.output(*command, *paths, "seed=1", "log.profile=5")
            (rn50.run_folder() / "printed.txt").write_text(out)

        made_once(rn50.results, run)
        return rn50.run_folder()

    return finished
