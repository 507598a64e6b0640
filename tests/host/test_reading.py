"""The door for foreign files: what is refused, with its reason, and without waiting."""

import os
from pathlib import Path

import pytest

from rn50.host.reading import read_file, read_object
from tests.conftest import refused


def reason(path: Path, **options: object) -> str:
    with pytest.raises(OSError) as caught:
        read_file(path, 100, **options)  # type: ignore[arg-type]
    return caught.value.strerror or ""


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    content = b"x" * 100
    (tmp_path / "file").write_bytes(content)
    assert read_file(tmp_path / "file", 100) == content
    assert read_file(link, 100, within=tmp_path) == content


def test_what_is_no_regular_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert reason(tmp_path / "fifo") == "a regular file expected, found prw-r--r--"
    assert reason(tmp_path / "zero") == "a regular file expected, found crw-rw-rw-"
    assert reason(tmp_path).startswith("a regular file expected, found d")
    assert reason(tmp_path / "none") == "No such file or directory"


def test_a_larger_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    sizes = "at most 100 bytes expected, found 1,099,511,627,776"
    assert reason(tmp_path / "sparse") == sizes


@pytest.mark.parametrize("target", ["../secret", "../home-2/secret", "out/secret"])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path, target: str) -> None:
    home = tmp_path / "home"
    for folder in (home, tmp_path / "home-2"):
        folder.mkdir()
        (folder.parent / "secret").write_text("secret")
    (tmp_path / "home-2" / "secret").write_text("secret")
    (home / "out").symlink_to(tmp_path)
    (home / "file").symlink_to(target)
    assert "which is not followed" in reason(home / "file", within=home)


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 1', "[" * 100_000])
def test_what_is_no_object_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with refused("/a.json: a JSON object expected, found something else"):
        read_object(tmp_path / "a.json")
