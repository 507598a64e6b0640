"""What is there is not destroyed: devices and FIFOs are written through, links followed."""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.config.atomic import check_output, new_folder, write_file, write_output
from rn50.config.errors import UserError
from tests.waiting import wait_until

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of two users: needs root")


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that another user may enter and write."""
    made = tmp_path_factory.mktemp("open")
    let_in(made)
    made.chmod(0o777)
    return made


def let_in(path: Path) -> None:
    """Let every user through the test's own folders to `path`."""
    for part in path.parents:
        if part.stat().st_uid == os.geteuid() and "pytest-" in str(part):
            part.chmod(part.stat().st_mode | 0o011)
        elif not part.stat().st_mode & 0o001:
            pytest.skip(f"no other user may enter {part}")


def as_nobody(action: Callable[[], object]) -> str:
    """What `action` raised in a process without root's rights; "" if nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            action()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def beside(path: Path) -> set[str]:
    return {found.name for found in path.parent.iterdir()}


# --- regular files ------------------------------------------------------------------------------


def test_a_file_is_made_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_output(path, "one")
    first = path.stat().st_ino
    write_output(path, b"two")
    assert path.read_text() == "two"
    assert path.stat().st_ino != first  # a reader of the old one goes on with the old one
    assert beside(path) == {"page.html"}


def test_what_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(0o600)
    write_file(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@needs_root
def test_what_root_replaces_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.write_text("old")
    os.chown(path, NOBODY, NOBODY)
    write_file(path, "new")
    assert (path.read_text(), path.stat().st_uid) == ("new", NOBODY)


def test_a_file_whose_content_cannot_be_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_output(path, "\udcff")
    assert path.read_text() == "old"
    assert beside(path) == {"page.html"}


def test_a_write_protected_file_is_not_replaced(folder: Path) -> None:
    path = folder / "protected"
    path.write_text("old")
    path.chmod(0o444)
    said = as_nobody(lambda: write_output(path, "new"))
    assert said == f"UserError: {path}: cannot write: Permission denied"
    assert as_nobody(lambda: check_output(path)).startswith(f"UserError: {path}: cannot write: ")
    assert path.read_text() == "old"


def test_a_file_is_written_in_a_folder_that_is_not_ours(folder: Path) -> None:
    path = folder / "closed" / "open.html"
    path.parent.mkdir()
    path.write_text("a longer old content")
    path.chmod(0o666)
    path.parent.chmod(0o555)
    assert as_nobody(lambda: check_output(path)) == ""
    assert as_nobody(lambda: write_output(path, "new")) == ""
    assert path.read_text() == "new"


@pytest.mark.parametrize("write", [write_output, lambda path, _: check_output(path)])
def test_no_new_file_in_a_folder_that_is_not_ours(folder: Path, write) -> None:
    path = folder / "closed" / "new.html"
    path.parent.mkdir()
    path.parent.chmod(0o555)
    said = as_nobody(lambda: write(path, "new"))
    assert said.startswith(f"UserError: {path}: cannot write: ")
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("write", [write_output, lambda path, _: check_output(path)])
def test_a_folder_and_a_missing_one_are_refused(tmp_path: Path, write) -> None:
    with pytest.raises(UserError, match=r"(a file expected, found a folder|Is a directory)"):
        write(tmp_path, "text")
    with pytest.raises(UserError, match="none/x: cannot write: "):
        write(tmp_path / "none/x", "text")
    assert not list(tmp_path.iterdir())


# --- links --------------------------------------------------------------------------------------


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    first = target.stat().st_ino
    link.symlink_to("target")
    write_output(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert target.stat().st_ino != first
    assert beside(link) == {"link", "target"}


def test_a_dangling_link_gets_its_target(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to("there/new")
    check_output(link)
    write_output(link, "new")
    assert link.is_symlink() and (tmp_path / "there/new").read_text() == "new"
    link.unlink()
    link.symlink_to("nowhere/new")
    with pytest.raises(UserError, match="cannot write"):
        check_output(link)


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    link = tmp_path / "a"
    link.symlink_to("a")
    for act in (check_output, lambda path: write_output(path, "")):
        with pytest.raises(UserError, match="Too many levels of symbolic links"):
            act(link)


def test_a_new_folder_is_made_where_its_link_leads(tmp_path: Path) -> None:
    link, empty = tmp_path / "link", tmp_path / "disk" / "empty"
    empty.mkdir(parents=True)
    link.symlink_to(empty)
    with new_folder(link) as folder:
        (folder / "file").write_text("content")
    assert link.is_symlink() and (empty / "file").read_text() == "content"
    assert beside(empty) == {"empty"}


# --- what is no file ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["null", "full"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_device_stays_a_device(tmp_path: Path, device, name: str, linked: bool) -> None:
    path = node = device(name)
    if linked:
        path = tmp_path / "link"
        path.symlink_to(node)
    check_output(path)
    if name == "full":
        with pytest.raises(UserError, match="cannot write: No space left on device"):
            write_output(path, "text")
    else:
        write_output(path, "text")
    assert stat.S_ISCHR(node.stat().st_mode)
    assert path.is_symlink() == linked


def test_a_device_stays_one_for_any_user(device) -> None:
    full = device("full")
    if os.geteuid() == 0:
        let_in(full)
        full.chmod(0o666)
    said = as_nobody(lambda: write_output(full, "text"))
    assert said == f"UserError: {full}: cannot write: No space left on device"
    assert stat.S_ISCHR(full.stat().st_mode)


def test_a_fifo_is_written_through_and_waits_for_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    check_output(path)
    said = io.StringIO()  # capsys, asked while a thread prints, loses lines
    monkeypatch.setattr(sys, "stderr", said)
    content = "x" * 1_000_000  # more than a pipe holds
    writer = threading.Thread(target=write_output, args=(path, content))
    writer.start()
    wait_until(said.getvalue)
    assert path.read_text() == content
    writer.join()
    assert said.getvalue() == f"rn50: {path}: waiting for a reader of this FIFO\n"
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert beside(path) == {"fifo"}


def test_a_reader_that_goes_away_is_an_error_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    closing = threading.Timer(0.2, os.close, (reader,))
    closing.start()
    with pytest.raises(UserError, match="fifo: cannot write: Broken pipe"):
        write_output(path, "x" * 1_000_000)
    closing.join()


def test_an_open_descriptor_is_written_from_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        write_output(Path(f"/dev/fd/{descriptor}"), "one\n")
        write_output(Path(f"/proc/self/fd/{descriptor}"), "two\n")
    finally:
        os.close(descriptor)
    assert path.read_text() == "before\none\ntwo\n"


def test_standard_output_by_each_of_its_names(capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("-", "/dev/stdout", "/dev/fd/1"):
        check_output(Path(name))
        write_output(Path(name), f"{name} ")
    assert capfd.readouterr().out == "- /dev/stdout /dev/fd/1 "
    assert not Path("-").exists()
