"""scripts/portability_test.sh: refusals in one line, and the table. No root is made."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.portability.results import BEGIN, DIGEST, END, main, rows_of

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="refusals of a root's call")


def refusal(
    root: Path, store: Path, *arguments: str, user: int | None = None, path: str = ""
) -> str:
    """The line, from a call that has to end with exit code 2."""
    environment = os.environ | {"RN50_ROOTS": str(store)}
    if path:
        environment["PATH"] = path
    done = subprocess.run(
        [root / "scripts/portability_test.sh", *arguments],
        env=environment,
        user=user if os.geteuid() == 0 else None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert done.stderr.endswith("\n")
    prefix, _, line = done.stderr.splitlines()[-1].partition("error: ")
    assert prefix == "portability_test: "
    assert len([line for line in done.stderr.splitlines() if line[:1] != "["]) == 1, done.stderr
    return line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--nonsense"], "unknown argument --nonsense; --roots NAME,..., --write PAGE or --keep"),
        (["--roots"], "--roots: a value expected, found none"),
        (["--roots", "trixie,sid"], "--roots: bookworm, trixie or mpich expected, found sid"),
        (["--roots", ","], "--roots: bookworm, trixie or mpich expected, found an empty name"),
        (["--write", "/no/page.md"], "--write: a page with markers expected, found no file /no/pa"),
    ],
)
def test_an_argument_that_is_wrong_is_named(
    root: Path, tmp_path: Path, arguments: list[str], line: str
) -> None:
    assert refusal(root, tmp_path, *arguments).startswith(line)


def test_another_user_than_root_is_refused(root: Path, tmp_path: Path) -> None:
    assert refusal(root, tmp_path, user=NOBODY).startswith("root expected (chroot and mounts), fou")


@pytest.fixture
def tools(tmp_path: Path) -> Callable[[str, str], str]:
    """`tools(name, body)`: a PATH whose first folder has a program of that name."""

    def make(name: str, body: str) -> str:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
        return f"{program.parent}:/usr/bin:/bin"  # no sbin: no debootstrap

    return make


@needs_root
def test_a_machine_without_namespaces_is_refused(
    root: Path, tmp_path: Path, tools: Callable[[str, str], str]
) -> None:
    line = refusal(root, tmp_path, path=tools("unshare", "exit 1"))
    assert line.startswith("a mount and a process namespace expected")


@needs_root
def test_too_little_disk_is_refused(
    root: Path, tmp_path: Path, tools: Callable[[str, str], str]
) -> None:
    path = tools("df", "echo Avail; echo 7340032")
    line = refusal(root, tmp_path / "store", "--keep", path=path)
    assert line == f"{tmp_path}/store: 15 GB of disk expected, found 7 free"


@needs_root
def test_debootstrap_that_apt_cannot_install_is_named(
    root: Path, tmp_path: Path, tools: Callable[[str, str], str]
) -> None:
    tools("df", "echo Avail; echo 73400320")
    line = refusal(root, tmp_path / "store", path=tools("apt-get", "exit 100"))
    assert line.startswith("debootstrap expected, found none (apt-get install debootstrap")


@needs_root
def test_two_runs_do_not_share_their_roots(
    root: Path, tmp_path: Path, tools: Callable[[str, str], str]
) -> None:
    line = refusal(root, tmp_path / "store", path=tools("flock", "exit 1"))
    assert line == f"{tmp_path}/store is in use by another run"


# --- the table ----------------------------------------------------------------------------------

LOG = """$ ./run_and_time.sh smoke seed=1
[setup   9 s] Python 3.13.5, g++-13 13.3.0, Open MPI 5.0.7
[setup  12 s] building Horovod 0.28.1 for MXNet in the background
[setup 233 s] ready: source .venv/bin/activate, then rn50 --help
"""
XML = '<testsuites><testsuite tests="9" failures="{}" errors="0" skipped="1" /></testsuites>'


def left(folder: Path, name: str, digest: str = "ab12", failures: int = 0, smoke: int = 0) -> None:
    """What a root leaves."""
    logs = folder / name
    logs.mkdir()
    seconds = {"smoke": smoke, "smoke_s": 250, "tests": 2 * bool(failures), "tests_s": 90}
    (logs / "record.json").write_text(
        json.dumps({"date": "2026-11-23", "commit": "76e86d7", **seconds})
    )
    (logs / "log.txt").write_text(LOG)
    if not smoke:
        mpi = "mpirun (Open MPI) 5.0.7"
        environment = {"python": "3.13.5", "packages": {"numpy": "2.5.5"}, "mpi": mpi}
        (logs / "environment.json").write_text(json.dumps(environment))
        (logs / "result.json").write_text(json.dumps({"weights_digest": digest}))
        (logs / "debian_version").write_text("13.1\n")
        (logs / "tests.xml").write_text(XML.format(failures))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    return page


def test_rows_are_what_the_roots_left(tmp_path: Path, page: Path) -> None:
    left(tmp_path, "trixie")
    assert main([str(tmp_path), "trixie", "--write", str(page)]) == 0
    assert page.read_text().startswith("before\n") and page.read_text().endswith("\nafter\n")
    assert rows_of(page.read_text())["trixie"] == (
        *("trixie", "2026-11-23", "`76e86d7`", "13.1", "3.13.5", "2.5.5", "g++-13 (13.3.0)"),
        *("mpirun (Open MPI) 5.0.7", "`ab12`", "233 s, Horovod built", "250 s"),
        "8 passed, 0 failed, 1 skipped, 90 s",
    )


def test_other_roots_keep_their_rows_in_one_order(tmp_path: Path, page: Path) -> None:
    for name in ("mpich", "bookworm", "trixie"):
        left(tmp_path, name)
        assert main([str(tmp_path), name, "--write", str(page)]) == 0
    assert list(rows_of(page.read_text())) == ["bookworm", "trixie", "mpich"]


@pytest.mark.parametrize("together", [True, False])
def test_another_digest_is_a_failure(
    tmp_path: Path, page: Path, capsys: pytest.CaptureFixture[str], together: bool
) -> None:
    left(tmp_path, "bookworm")
    left(tmp_path, "trixie", digest="cd34")
    if together:
        code = main([str(tmp_path), "bookworm", "trixie"])
    else:
        assert main([str(tmp_path), "bookworm", "--write", str(page)]) == 0
        code = main([str(tmp_path), "trixie", "--write", str(page)])
    assert code == 1
    assert capsys.readouterr().err == (
        "portability_test: error: smoke seed=1: one digest over all roots expected, "
        "found ab12 (bookworm), cd34 (trixie)\n"
    )


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"failures": 2}, "make test: exit code 0 expected, found 2; 6 passed, 2 failed"),
        ({"smoke": 1}, "./run_and_time.sh smoke: exit code 0 expected, found 1"),
    ],
)
def test_what_failed_is_a_failure_and_has_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: dict[str, int], line: str
) -> None:
    left(tmp_path, "bookworm")
    left(tmp_path, "trixie", **wrong)
    assert main([str(tmp_path), "bookworm", "trixie"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"portability_test: error: trixie: {line}")
    row = next(line for line in printed.out.splitlines() if line.startswith("| trixie"))
    assert row.split(" | ")[DIGEST] == ("?" if "smoke" in wrong else "`ab12`")
