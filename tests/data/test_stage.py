import errno
import io
import re
import shutil
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import pytest

from rn50.config.manifest import Part
from rn50.config.plan import Plan, Segment
from rn50.config.schema import Data
from rn50.data.dataset import check_before_run, load_table, verify
from rn50.data.pack import pack_images
from rn50.data.pipeline import RecordFile, build_train_source
from rn50.data.stage import remove, stage
from rn50.host.reading import open_file
from tests.conftest import flip_bit, invoke, read_json, refused, write_json
from tests.data.images import contents, image_folder, names_in
from tests.data.test_pipeline import SEEDS
from tests.rooms import sources


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 300 training images, which are three chunks."""
    folder = tmp_path_factory.mktemp("pristine")
    counts = {"train/a": 150, "train/b": 150, "val/a": 2, "val/b": 2}
    pack_images(image_folder(folder / "images", counts), folder / "set")
    return folder / "set"


def test_a_set_is_copied_once_and_removed(pristine: Path, tmp_path: Path) -> None:
    target = tmp_path / "disk/node/set"
    # of one that was killed
    (tmp_path / "disk/node/.set.staging/train.rec").mkdir(parents=True)
    calls: list[tuple[int, int]] = []

    def copy() -> None:
        stage(pristine, target, progress=lambda *counts: calls.append(counts))

    copy()
    assert contents(pristine) == contents(target)
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] > 0
    calls.clear()
    copy()
    assert calls == []
    remove(pristine, target)
    remove(pristine, target)
    assert names_in(target.parent) == set()


def test_other_bytes_than_the_manifest_says_are_refused(
    packed: Path, tmp_path: Path
) -> None:
    path = packed / "train.idx"
    original = path.read_bytes()
    path.write_bytes(b"x" + original[1:])
    target = tmp_path / "disk/set"
    with refused(r"/train\.idx: SHA-256 .* expected"):
        stage(packed, target)
    # a copy that is begun anew is of no use
    assert names_in(target.parent) == set()
    path.write_bytes(original)
    stage(packed, target)
    assert contents(packed) == contents(target)


class BadDisk(io.BytesIO):
    """A file that is open when its disk fails."""

    def read(self, size: int | None = -1) -> bytes:  # noqa: ARG002
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("name", ["train.rec", "val.idx"])
def test_a_read_error_is_the_sources(
    pristine: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: Path) -> BinaryIO:
        return BadDisk() if path == pristine / name else open_file(path)

    for module in ("rn50.host.atomic", "rn50.data.stage"):
        monkeypatch.setattr(f"{module}.open_file", opened)
    with refused(f"^{pristine}/{name}: cannot read: Input/output error$"):
        stage(pristine, tmp_path / "disk/set")


def test_all_copies_of_files_tell_a_read_error_from_a_write_error() -> None:
    copy_call = re.compile(r"copyfile|copytree|shutil\.copy2?\(")
    assert not [path for path in sources() if copy_call.search(path.read_text())]


def test_a_set_that_is_gone_in_training_is_named(packed: Path) -> None:
    records = RecordFile(packed, "val")
    shutil.rmtree(packed)
    with refused(f"^the image set {packed} is gone: {packed}/val.rec: No such file"):
        records.images(np.array([0]))


def test_something_else_at_the_target_is_left_alone(
    pristine: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("mine")
    with refused(str(tmp_path)):
        stage(pristine, tmp_path)
    with refused(str(tmp_path)):
        remove(pristine, tmp_path)
    assert contents(tmp_path) == {"precious": b"mine"}


def test_a_set_that_is_no_copy_and_an_interrupted_pack_are_left_alone(
    pristine: Path, tmp_path: Path
) -> None:
    counts = {"train/a": 2, "train/b": 1, "val/a": 1}
    images = image_folder(tmp_path / "images", counts)
    other_set = tmp_path / "other"
    pack_images(images, other_set)
    contents_before = contents(other_set)
    for call in (stage, remove):
        with refused(
            f"^{other_set}: .* expected, found another set; .* rm -r {other_set}"
        ):
            call(pristine, other_set)
    renamed = shutil.copytree(pristine, tmp_path / "renamed")
    manifest = read_json(renamed / "manifest.json")
    manifest["classes"][0] += " of another kind"
    write_json(renamed / "manifest.json", manifest)
    with refused("expected, found another set"):
        remove(pristine, renamed)
    with refused(f"cannot be compared .* rm -r {other_set}"):
        remove(tmp_path / "gone", other_set)
    assert contents(other_set) == contents_before
    half = tmp_path / ".mine.partial/train-000000.rec"
    half.parent.mkdir()
    half.touch()
    stage(pristine, tmp_path / "mine")
    remove(pristine, tmp_path / "mine")
    assert half.exists()


# --- a part of the training records ---------------------------------------------------------------


def data_of(folder: Path, shards: Literal["node"] | None = "node") -> Data:
    return Data(
        path=str(folder),
        classes=2,
        train_samples=300,
        eval_samples=4,
        crop_px=16,
        eval_resize_px=20,
        last_batch="pad",
        shards=shards,
    )


def test_a_part_holds_its_own_records_where_they_lie_in_the_whole(
    pristine: Path, tmp_path: Path
) -> None:
    files = contents(pristine)
    all_records = files["train.rec"]
    size = len(all_records)
    offsets = load_table(pristine, "train")["offset"].tolist()
    # Images 0 to 99 lie in the chunk 0 to 127, 100 to 199 in this and in 128 to 255.
    bounds = [(0, offsets[128]), (0, offsets[256]), (offsets[128], size)]
    for node, (begin, end) in enumerate(bounds):
        target = tmp_path / f"disk{node}/set"
        calls: list[tuple[int, int]] = []
        stage(
            pristine,
            target,
            Part(node, 3),
            progress=lambda *counts: calls.append(counts),  # noqa: B023
        )
        copied = end - begin + len(files["val.rec"])
        assert calls[-1] == (copied, copied)
        staged = contents(target)
        hole = bytes(begin) + all_records[begin:end] + bytes(size - end)
        assert staged["train.rec"] == hole
        blocks = (target / "train.rec").stat().st_blocks
        assert blocks * 512 < end - begin + (16 << 10)
        for name in ("val.rec", "train.npy"):
            assert staged[name] == files[name]
        check_before_run(data_of(target))


def test_a_part_reads_and_checks_the_chunks_that_it_needs(
    packed: Path, tmp_path: Path
) -> None:
    flip_bit(packed / "train.rec", -100)  # in the last chunk
    stage(packed, tmp_path / "first", Part(0, 3))
    with refused(r"train\.rec: CRC-32 .* of bytes .* copied"):
        stage(packed, tmp_path / "last", Part(2, 3))
    assert not (tmp_path / "last").exists()


def test_another_part_than_a_node_reads_is_refused_at_the_start(
    pristine: Path, tmp_path: Path
) -> None:
    target = tmp_path / "set1"
    stage(pristine, target, Part(1, 3))
    plan = Plan(3, 300, "pad", (Segment(1, 0, 0, 10, 3),), parts=3)
    data = data_of(target)
    source = build_train_source(data, plan, rank=1, seeds=SEEDS)
    for _ in range(20):  # two epochs, of which no record lies in a hole
        source.next()
    with refused(r"manifest\.json: part 1 of 3 expected .* found part 2 of 3"):
        build_train_source(data, plan, rank=0, seeds=SEEDS)
    only = "all training records expected .*, found part 2 of 3"
    with refused(only):
        check_before_run(data_of(target, None))
    with refused(only):
        verify(target)
    with refused(only):
        stage(target, tmp_path / "copy")
    with refused(r"part 3 of 3 of .* expected, found .* part 2 of 3; --remove it"):
        stage(pristine, target, Part(2, 3))
    remove(pristine, target)
    assert not target.exists()


def test_a_manifest_without_chunks_is_refused(packed: Path, tmp_path: Path) -> None:
    manifest = read_json(packed / "manifest.json")
    del manifest["splits"]["train"]["chunks"]
    write_json(packed / "manifest.json", manifest)
    with refused(r"splits.train.chunks: \d+ bytes expected, found 0"):
        stage(packed, tmp_path / "part", Part(0, 3))


def test_only_local_rank_0_copies(pristine: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"name: c\ndata: {{path: {pristine}}}\n")
    whole_set = tmp_path / "disk/whole"
    part = tmp_path / "disk/part"

    def staged(to: Path, *overrides: str, **environment: str) -> str:
        command = ("data", "stage", config, "--to", to, *overrides)
        return invoke(*command, env=environment).stdout

    # the launcher's own comes before that of Slurm around it
    assert staged(whole_set, SLURM_LOCALID="0", OMPI_COMM_WORLD_LOCAL_RANK="2") == ""
    assert not whole_set.exists()
    line = staged(whole_set, SLURM_LOCALID="x")
    assert line == f"{whole_set}: staged, all training records\n"
    line = staged(
        part,
        "data.shards=node",
        "system.nodes=3",
        OMPI_COMM_WORLD_RANK="4",
        OMPI_COMM_WORLD_SIZE="6",
        OMPI_COMM_WORLD_LOCAL_RANK="0",
    )
    assert line == f"{part}: staged, part 3 of 3\n"
