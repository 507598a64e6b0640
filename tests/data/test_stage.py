import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from rn50.config.errors import UserError
from rn50.config.local_rank import local_rank
from rn50.data.pack import pack_images
from rn50.data.stage import remove, stage, wait_until_staged


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        (tmp_path / "images" / split / "a").mkdir(parents=True)
        for number in range(20):
            image = Image.effect_noise((64, 64), number + 1)
            image.save(tmp_path / "images" / split / "a" / f"{number}.jpg")
    pack_images(tmp_path / "images", tmp_path / "set")
    return tmp_path / "set"


def same(one: Path, other: Path) -> bool:
    names = {path.name for path in one.iterdir()}
    return names == {path.name for path in other.iterdir()} and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def test_a_set_is_copied_once_and_removed(packed: Path, tmp_path: Path) -> None:
    target = tmp_path / "disk/node/set"
    calls: list[tuple[int, int]] = []
    stage(packed, target, progress=lambda *counts: calls.append(counts))
    assert same(packed, target)
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] > 0
    before = (target / "train.rec").stat().st_mtime_ns
    stage(packed, target)
    wait_until_staged(packed, target, 0)
    assert (target / "train.rec").stat().st_mtime_ns == before
    remove(target)
    remove(target)
    assert list((tmp_path / "disk/node").iterdir()) == []


def test_ranks_that_wait_read_the_shared_folder_once(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five times a second 2,048 ranks would read its manifest, for as long as the copy takes."""
    looks: list[Path] = []

    def look(folder: Path) -> bytes:
        looks.append(folder)
        return (folder / "manifest.json").read_bytes()

    monkeypatch.setattr("rn50.data.stage._manifest_text", look)
    monkeypatch.setattr("rn50.data.stage._POLL_S", 0.001)
    with pytest.raises(UserError, match="a staged set expected within"):
        wait_until_staged(packed, tmp_path / "disk/none", 0.1)
    stage(packed, tmp_path / "disk/set")
    looks.clear()
    wait_until_staged(packed, tmp_path / "disk/set", 0)
    assert looks.count(packed) == 1


def test_what_a_killed_copy_left_is_taken_up_and_checked(packed: Path, tmp_path: Path) -> None:
    partial = tmp_path / "disk/.set.partial"
    partial.mkdir(parents=True)
    whole = (packed / "train.rec").read_bytes()
    (partial / "train.rec").write_bytes(whole[:5000])
    stage(packed, tmp_path / "disk/set")
    assert same(packed, tmp_path / "disk/set")
    remove(tmp_path / "disk/set")
    partial.mkdir()
    (partial / "train.rec").write_bytes(b"x" + whole[1:5000])
    with pytest.raises(UserError, match=r"train\.rec: \d+ bytes with SHA-256 .* copied"):
        stage(packed, tmp_path / "disk/set")
    assert not (tmp_path / "disk/set").exists()
    stage(packed, tmp_path / "disk/set")  # the bad copy is gone
    assert same(packed, tmp_path / "disk/set")


def test_a_source_that_changed_is_named(packed: Path, tmp_path: Path) -> None:
    content = bytearray((packed / "val.rec").read_bytes())
    content[100] ^= 1
    (packed / "val.rec").write_bytes(content)
    with pytest.raises(UserError, match=r"/set/val\.rec: .* expected"):
        stage(packed, tmp_path / "disk/set")
    assert not (tmp_path / "disk/set").exists()


def test_something_else_at_the_target_is_left_alone(packed: Path, tmp_path: Path) -> None:
    target = tmp_path / "other"
    target.mkdir()
    (target / "precious").write_text("mine")
    for act in (lambda: stage(packed, target), lambda: remove(target)):
        with pytest.raises(UserError, match="/other"):
            act()
    assert (target / "precious").read_text() == "mine"


def test_a_full_disk_is_named(packed: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    try:
        with pytest.raises(UserError, match="cannot write: No space left on device"):
            stage(packed, disk / "set")
        assert not (disk / "set").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        ({"SLURM_LOCALID": "3"}, 3),
        ({"SLURM_LOCALID": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
        ({"HOROVOD_LOCAL_RANK": "1"}, 1),
        ({"SLURM_LOCALID": "x"}, 0),
    ],
)
def test_the_local_rank_of_any_launcher(environment: dict[str, str], rank: int) -> None:
    assert local_rank(environment) == rank


def test_only_local_rank_0_copies(packed: Path, tmp_path: Path, root: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"name: c\ndata: {{path: {packed}}}\n")
    command = [sys.executable, "-m", "rn50.cli.entry", "data", "stage", str(config)]
    command += ["--to", str(tmp_path / "disk/set")]
    for rank, there in (("1", False), ("0", True)):
        subprocess.run(command, check=True, env={"SLURM_LOCALID": rank, "PYTHONPATH": str(root)})
        assert (tmp_path / "disk/set").exists() == there
