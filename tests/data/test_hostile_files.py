"""Files that somebody planted: links that lead to a file of the user's, FIFOs, bombs, sizes."""

from __future__ import annotations

import io
import json
import os
import resource
import struct
import tarfile
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rn50.config import atomic
from rn50.config.atomic import create_new, new_folder, write_file, write_within
from rn50.config.errors import UserError
from rn50.data.dataset import TABLE, verify
from rn50.data.journal import partial_folder
from rn50.data.jpeg import decode_error
from rn50.data.listing import list_images
from rn50.data.lock import hold
from rn50.data.pack import BadFilesError, pack_images
from rn50.data.stage import stage
from rn50.launch.run_files import reserve
from rn50.train import checkpoint, checkpoint_folder
from tests.data.test_dataset_checks import edit_table, reseal
from tests.data.test_stage import packed  # noqa: F401 (a fixture)
from tests.fuzz.records import jpeg_of_scans
from tests.train.test_checkpoint import arrays, meta

pytestmark = pytest.mark.usefixtures("alarm")

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
    checkpoint_folder.mark_best(path)
    with new_folder(folder / "set") as made:
        (made / "x").write_text("new")
    parts = {f"{name}_0000000007.model.safetensors" for name in ("step", "best")}
    written = {"page.html", path.name, "best.ckpt", "set", *parts}
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
    with pytest.raises(
        UserError, match=r"report\.html: a regular file or none expected.* or \.\.\."
    ):
        write_within(tmp_path, "report.html", "page", " or ...")
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


# --- what is read -------------------------------------------------------------------------------

SPARSE_BYTES = 6 << 30


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE_BYTES)


def png_header(width: int, height: int) -> bytes:
    """A PNG of the largest compression: rows of zeros, as many as it says."""
    row_bytes, compressor = 1 + 3 * width, zlib.compressobj(9)
    block = b"".join(compressor.compress(bytes(row_bytes)) for _ in range(min(height, 20)))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", block + compressor.flush()),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def png_bomb(path: Path) -> None:
    path.write_bytes(png_header(12_000, 12_000))


def pillow_bomb(path: Path) -> None:
    """Where Pillow itself raises."""
    path.write_bytes(png_header(60_000, 60_000))


def jpeg_bomb(path: Path) -> None:
    small = io.BytesIO()
    Image.new("RGB", (16, 16)).save(small, "jpeg")
    content = bytearray(small.getvalue())
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = struct.pack(">HH", 65_500, 65_500)
    path.write_bytes(content)


def scan_bomb(path: Path) -> None:
    """1.1 MB."""
    path.write_bytes(jpeg_of_scans(9400, 5000))


REFUSED = {
    fifo: "a regular file expected, found a FIFO",
    zeros: "a regular file expected, found a device",
    sparse: "at most 67,108,864 bytes expected, found 6,442,450,944",
    png_bomb: "found 12000 x 12000 pixels, more than 89,478,485",
    pillow_bomb: "more than 89,478,485",
    jpeg_bomb: "found 65500 x 65500 pixels, more than 89,478,485",
}


def in_little_memory(action: Callable[[], object], most_mb: int = 400) -> None:
    """Run in a child whose memory may grow by `most_mb`; it fails as `action` does."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (used + (most_mb << 20), used + (most_mb << 20)))
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_hostile_image_is_a_bad_file_with_its_reason(
    packed: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    for plant in REFUSED:
        plant(tmp_path / "images/train/a" / f"{plant.__name__}.jpg")

    def pack() -> None:
        with pytest.raises(BadFilesError) as caught:
            pack_images(tmp_path / "images", tmp_path / "out", decode=True, processes=2)
        for plant, told in REFUSED.items():
            (line,) = [one for one in str(caught.value).split("\n") if plant.__name__ in one]
            assert told in line

    in_little_memory(pack)


@pytest.mark.parametrize("plant", [png_bomb, pillow_bomb, jpeg_bomb, scan_bomb])
def test_a_bomb_in_a_record_is_not_decoded(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / "image")

    def decode() -> None:
        problem = decode_error((tmp_path / "image").read_bytes())
        assert problem is not None and "pixels" in problem

    in_little_memory(decode)


@pytest.mark.slow
def test_an_index_that_is_a_hole_is_not_read(packed: Path) -> None:  # noqa: F811
    """600 MB of nothing, beside a table of as many rows."""
    rows = 15_000_000
    header = f"{{'descr': {TABLE.descr}, 'fortran_order': False, 'shape': ({rows},), }}"
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    (packed / "val.npy").write_bytes(start)
    os.truncate(packed / "val.npy", len(start) + rows * TABLE.itemsize)
    os.truncate(packed / "val.idx", rows * 40)
    manifest = json.loads((packed / "manifest.json").read_text())
    manifest["splits"]["val"]["samples"] = rows
    for suffix in ("npy", "idx"):
        size = (packed / f"val.{suffix}").stat().st_size
        manifest["splits"]["val"]["files"][suffix]["bytes"] = size
    (packed / "manifest.json").write_text(json.dumps(manifest))

    def refuse() -> None:
        with pytest.raises(UserError, match="lines of number<TAB>offset expected"):
            verify(packed, sample=2)

    in_little_memory(refuse, 700)


def test_a_table_that_tells_of_a_bomb_is_refused(packed: Path) -> None:  # noqa: F811
    def grow(table: Any) -> Any:
        table["height"][3] = table["width"][3] = 65_500
        return table

    edit_table(packed, "train", grow)
    reseal(packed)
    with pytest.raises(UserError, match=r"train\.rec: record at byte \d+: at most 89,478,485 pix"):
        verify(packed, sample=1)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [fifo, zeros, sparse])
@pytest.mark.parametrize("name", ["manifest.json", "train.rec", "val.idx", "val.npy"])
def test_a_set_of_hostile_files_is_one_error(
    packed: Path,  # noqa: F811
    name: str,
    plant: Callable[[Path], None],
) -> None:
    (packed / name).unlink()
    plant(packed / name)
    with pytest.raises(UserError, match=rf"{name}: .*(regular file|bytes) expected") as caught:
        verify(packed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("plant", [fifo, zeros, sparse])
@pytest.mark.parametrize("name", ["images/val_labels.txt", "images/train/b.tar"])
def test_labels_and_tars_that_are_no_files(
    packed: Path,  # noqa: F811
    tmp_path: Path,
    name: str,
    plant: Callable[[Path], None],
) -> None:
    plant(tmp_path / name)
    labels = tmp_path / name if name.endswith(".txt") else None
    if labels:
        for path in [*(tmp_path / "images/val/a").iterdir()]:
            path.replace(tmp_path / "images/val" / path.name)
        (tmp_path / "images/val/a").rmdir()
    with pytest.raises(UserError, match=rf"{Path(name).stem}.*: .*expected") as caught:
        pack_images(tmp_path / "images", tmp_path / "out", val_labels=labels)
    assert "\n" not in str(caught.value)


def tar_header(kind: bytes, size: bytes) -> bytes:
    header = bytearray(tarfile.TarInfo("x.jpg").tobuf())
    header[124:136] = size
    header[156:157] = kind
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize("size", [b"\x80" + (5 << 30).to_bytes(11, "big"), b"\xff" * 11 + b"\x00"])
@pytest.mark.parametrize("kind", [b"0", b"x", b"g", b"L", b"K"])
def test_a_tar_whose_headers_lie_is_one_error(tmp_path: Path, kind: bytes, size: bytes) -> None:
    """A long name of 5 GB, of which there are as many zeros; members of less than no bytes."""
    (tmp_path / "train").mkdir()
    path = tmp_path / "train/a.tar"
    path.write_bytes(tar_header(kind, size) + tar_header(b"0", b"00000000000\0"))
    os.truncate(path, SPARSE_BYTES)
    in_little_memory(lambda: listing_fails(tmp_path))


def listing_fails(images: Path) -> None:
    with pytest.raises(UserError, match=r"(a\.tar|val|train).*expected"):
        list_images(images)
