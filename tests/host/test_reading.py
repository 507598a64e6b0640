"""The door for foreign files: what is refused, with its reason, and without waiting."""

from pathlib import Path

import pytest

from rn50.host.reading import read_file, read_object
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
