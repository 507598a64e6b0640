"""What is there is not destroyed: a file is replaced as a whole, devices and FIFOs are written."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.host.atomic import check_output, new_folder, write_file, write_output
from tests.conftest import refused
from tests.faults.file_system import refusing


def beside(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()}


def test_a_file_is_made_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_output(path, "one")
    path.chmod(0o600)
    first = path.stat().st_ino
    write_output(path, b"two")
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_ino != first  # a reader of the old one keeps the old one
    write_output(path, "a name that is no UTF-8: \udcff")
    assert path.read_text().endswith(r": \udcff")
    assert beside(path) == {"page.html"}


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine leaves the old or the new one, not one of 0 bytes."""
    path = tmp_path / "config.yaml"
    synced = []

    def sync(number: int) -> None:
        opened = Path(f"/proc/self/fd/{number}").readlink()
        synced.append((opened.name, path.exists()))

    monkeypatch.setattr(os, "fsync", sync)
    write_file(path, "name: smoke\n")
    (partial, existed), folder = synced
    assert partial.startswith(".config.yaml.partial-")
    assert not existed
    assert folder == (tmp_path.name, True)


@pytest.mark.parametrize("calls", [("chmod", "fchmod"), ("fsync",)])
def test_what_a_file_system_has_not_fails_no_write(
    tmp_path: Path, calls: tuple[str, ...]
) -> None:
    path = tmp_path / "page.html"
    code = f"from rn50.host.atomic import *; write_file(Path({str(path)!r}), 'two')"
    path.write_text("one")
    refusals = dict.fromkeys(calls, "EPERM")
    environment = os.environ | refusing(tmp_path, None, **refusals)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert path.read_text() == "two"
    assert beside(path) == {"page.html"}


def check(path: Path, _: str) -> None:
    check_output(path)


@pytest.mark.parametrize("write", [write_output, check])
def test_a_folder_and_a_missing_one_are_refused(
    tmp_path: Path, write: Callable[[Path, str], object]
) -> None:
    with refused(r"(a file expected, found a folder|Is a directory)"):
        write(tmp_path, "text")
    (tmp_path / "file").touch()
    for name in ("none/x", "file/x"):
        with refused(f"{name}: cannot write: "):
            write(tmp_path / name, "text")
    assert beside(tmp_path / "file") == {"file"}


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target"
    link = tmp_path / "link"
    link.symlink_to("target")
    for content in ("made", "replaced"):
        check_output(link)
        write_output(link, content)
        assert link.is_symlink()
        assert target.read_text() == content
    assert beside(link) == {"link", "target"}


def test_a_new_folder_is_made_where_its_link_leads(tmp_path: Path) -> None:
    link = tmp_path / "link"
    empty = tmp_path / "disk" / "empty"
    empty.mkdir(parents=True)
    link.symlink_to(empty)
    with pytest.raises(ValueError, match="mine"), new_folder(link):
        raise ValueError("mine")
    with refused(f"^{empty}/file: cannot write: full"), new_folder(link) as folder:
        raise OSError(28, "full", str(folder / "file"))
    with new_folder(link) as folder:
        (folder / "file").write_text("content")
    assert link.is_symlink()
    assert (empty / "file").read_text() == "content"
    assert beside(empty) == {"empty"}


@pytest.mark.parametrize("name", ["null", "full"])
def test_a_device_stays_a_device(device: Callable[[str], Path], name: str) -> None:
    path = device(name)
    check_output(path)
    with refused("No space left on device" if name == "full" else None):
        write_output(path, "text")
    assert stat.S_ISCHR(path.stat().st_mode)


def test_a_fifo_is_written_through(tmp_path: Path) -> None:
    # more than a pipe holds
    path = tmp_path / "fifo"
    content = "x" * 1_000_000
    os.mkfifo(path)
    writer = threading.Thread(target=write_file, args=(path, content))
    writer.start()
    assert path.read_text() == content
    writer.join()
    assert beside(path) == {"fifo"}


def test_an_open_descriptor_is_written_from_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        for line in ("one\n", "two\n"):
            write_output(Path(f"/dev/fd/{descriptor}"), line)
    finally:
        os.close(descriptor)
    assert path.read_text() == "before\none\ntwo\n"


def test_standard_output_by_each_of_its_names(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in ("-", "/dev/stdout", "/dev/fd/1"):
        check_output(Path(name))
        write_output(Path(name), f"{name} ")
    assert capfd.readouterr().out == "- /dev/stdout /dev/fd/1 "
    assert not Path("-").exists()
