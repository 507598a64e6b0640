"""The door for foreign files: what is refused, with its reason, and without waiting."""

import os
from pathlib import Path

import pytest

from rn50.host.reading import open_file, read_file, read_object
from tests.conftest import refused


def reason(path: Path, **options: object) -> str:
    with pytest.raises(OSError) as caught:
        read_file(path, 99, **options)  # type: ignore[arg-type]
    return caught.value.strerror or ""


def test_a_link_within_the_folder_is_followed_to_the_last_byte(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert len(read_file(link, 100, within=tmp_path)) == 100
    assert reason(link).startswith("at most 99 bytes expected, found 100")


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


def test_a_stop_while_a_file_is_opened_stays_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file closes its descriptor as it goes; closed again, the stop became an error."""

    def stopped(descriptor: int, mode: str) -> None:
        open(descriptor, mode).close()
        raise KeyboardInterrupt

    path = tmp_path / "file"
    path.touch()
    monkeypatch.setattr(os, "fdopen", stopped)
    with pytest.raises(KeyboardInterrupt):
        open_file(path)
