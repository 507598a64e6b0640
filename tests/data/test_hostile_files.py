"""Files that somebody planted: links that lead to a file of the user's, FIFOs, bombs, sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.data import atomic
from rn50.data.atomic import create_new, new_folder, write_file, write_within
from rn50.data.journal import partial_folder
from rn50.data.lock import hold
from rn50.data.pack import pack_images
from rn50.data.stage import stage
from rn50.scripts.reserve import reserve
from rn50.train import checkpoint
from tests.data.test_stage import packed  # noqa: F401 (a fixture)
from tests.train.test_checkpoint import arrays, meta

PRECIOUS = "a file of the user's"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "precious"
    path.parent.mkdir()
    path.write_text(PRECIOUS)
    return path


# --- what is written ----------------------------------------------------------------------------


def test_nobody_guesses_the_name_of_what_is_written_beside(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links under every name that the process, its parent or the time would give; and where a
    name is guessed all the same, the write fails."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    for number in {os.getpid(), os.getppid(), 0, 1}:
        for name in ("page.html", checkpoint.file_name(7), "best.ckpt", "set"):
            (folder / f".{name}.partial-{number}").symlink_to(precious)
    planted = set(folder.iterdir())
    write_file(folder / "page.html", "new")
    path = folder / checkpoint.file_name(7)
    checkpoint.write(path, meta(), arrays())
    checkpoint.mark_best(path)
    with new_folder(folder / "set") as made:
        (made / "x").write_text("new")
    written = {"page.html", path.name, "best.ckpt", "set"}
    assert {entry.name for entry in set(folder.iterdir()) - planted} == written
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda _: "guessed")
    (folder / ".page.html.partial-guessed").symlink_to(precious)
    with pytest.raises(FileExistsError):
        write_file(folder / "page.html", "newer")
    assert (folder / "page.html").read_text() == "new"
    assert precious.read_text() == PRECIOUS


def test_what_is_made_new_is_not_there_yet(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "link").symlink_to(precious)
    (tmp_path / "dangling").symlink_to(tmp_path / "made")
    for name in ("link", "dangling", "home/precious"):
        with pytest.raises(FileExistsError):
            create_new(tmp_path / name)
    assert precious.read_text() == PRECIOUS and not (tmp_path / "made").exists()


def plant_link(path: Path, precious: Path) -> None:
    path.symlink_to(precious)


def plant_fifo(path: Path, precious: Path) -> None:
    os.mkfifo(path)


def plant_folder(path: Path, precious: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("plant", [plant_link, plant_fifo, plant_folder])
def test_a_default_report_replaces_regular_files_alone(
    tmp_path: Path, precious: Path, plant: Callable[[Path, Path], None]
) -> None:
    plant(tmp_path / "report.html", precious)
    with pytest.raises(UserError, match=r"report\.html: a regular file or none expected.*--out"):
        write_within(tmp_path, "report.html", "page")
    assert precious.read_text() == PRECIOUS
    write_within(tmp_path, "other.html", "page")
    assert write_within(tmp_path, "other.html", "again").read_text() == "again"


def test_a_lock_and_a_reserve_are_no_links(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "lock").symlink_to(precious)
    with (
        pytest.raises(OSError, match="a link, which is not followed"),
        hold(tmp_path / "lock", wait=False, tell=lambda holder: None),
    ):
        pass
    (tmp_path / ".reserve").symlink_to(precious)
    reserve(tmp_path)
    assert precious.read_text() == PRECIOUS
    assert (tmp_path / ".reserve").stat().st_size > 0


@pytest.mark.parametrize("name", ["", "lock", "key", "train.rec", "train.journal"])
def test_a_folder_of_packing_that_somebody_prepared_is_refused(
    packed: Path,  # noqa: F811
    tmp_path: Path,
    precious: Path,
    name: str,
) -> None:
    partial = partial_folder(tmp_path / "out")
    if name:
        partial.mkdir()
        (partial / name).symlink_to(precious)
    else:
        partial.symlink_to(precious.parent)
    with pytest.raises(UserError, match=r"cannot create: (a link|a regular file expected)"):
        pack_images(tmp_path / "images", tmp_path / "out")
    assert precious.read_text() == PRECIOUS
    assert [path.name for path in precious.parent.iterdir()] == ["precious"]


@pytest.mark.parametrize("name", ["", "train.rec"])
def test_a_folder_of_staging_that_somebody_prepared_is_refused(
    packed: Path,  # noqa: F811
    tmp_path: Path,
    precious: Path,
    name: str,
) -> None:
    disk = tmp_path / "disk"
    (disk / ".set.partial").mkdir(parents=True)
    if name:
        (disk / ".set.partial" / name).symlink_to(precious)
    else:
        (disk / ".set.partial").rmdir()
        (disk / ".set.partial").symlink_to(precious.parent)
    with pytest.raises(UserError, match=r"a link|a regular file expected"):
        stage(packed, disk / "set")
    assert precious.read_text() == PRECIOUS
