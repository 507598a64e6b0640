import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rn50.cli.main import app
from rn50.config.manifest import Part
from rn50.config.plan import Plan, Segment
from rn50.config.schema import Data
from rn50.data.dataset import check_before_run, load_table, verify
from rn50.data.pack import pack_images
from rn50.data.pipeline import build_train_source
from rn50.data.stage import remove, stage
from rn50.train.process_info import local_rank
from tests.conftest import read_json, refused, write_json
from tests.data.test_pack import image_folder


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 300 training images, which are three chunks."""
    folder = tmp_path_factory.mktemp("pristine")
    counts = {"train/a": 150, "train/b": 150, "val/a": 2, "val/b": 2}
    pack_images(image_folder(folder / "images", counts), folder / "set")
    return folder / "set"


@pytest.fixture
def packed(pristine: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "set"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_set_is_copied_once_and_removed(packed: Path, tmp_path: Path) -> None:
    target = tmp_path / "disk/node/set"
    # of one that was killed
    (tmp_path / "disk/node/.set.partial/train.rec").mkdir(parents=True)
    calls: list[tuple[int, int]] = []
    stage(
        packed,
        target,
        progress=lambda *counts: calls.append(counts),
    )
    assert files(packed) == files(target)
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] > 0
    before = (target / "train.rec").stat().st_mtime_ns
    stage(packed, target)
    assert (target / "train.rec").stat().st_mtime_ns == before
    remove(target)
    remove(target)
    assert list((tmp_path / "disk/node").iterdir()) == []


@pytest.mark.parametrize("name", ["train.rec", "train.idx", "val.npy"])
def test_other_bytes_than_the_manifest_says_are_refused(
    packed: Path, tmp_path: Path, name: str
) -> None:
    whole = (packed / name).read_bytes()
    (packed / name).write_bytes(b"x" + whole[1:])
    with refused(rf"/{name}: (SHA-256 .*|CRC-32 .*|a sample table) expected"):
        stage(packed, tmp_path / "disk/set")
    # a copy that is begun anew is of no use
    assert list((tmp_path / "disk").glob("*")) == []
    (packed / name).write_bytes(whole)
    stage(packed, tmp_path / "disk/set")
    assert files(packed) == files(tmp_path / "disk/set")


def test_something_else_at_the_target_is_left_alone(
    packed: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("mine")
    for act in (lambda: stage(packed, tmp_path), lambda: remove(tmp_path)):
        with refused(str(tmp_path)):
            act()
    assert (tmp_path / "precious").read_text() == "mine"


# --- a part of the training records ---------------------------------------------------------------


def data_of(folder: Path, **more: object) -> Data:
    counts = {"classes": 2, "train_samples": 300, "eval_samples": 4}
    sizes = {"crop_px": 16, "eval_resize_px": 20}
    return Data.model_validate(
        {"path": str(folder), "last_batch": "pad"} | counts | sizes | more
    )


def test_a_part_holds_its_own_records_where_they_lie_in_the_whole(
    packed: Path, tmp_path: Path
) -> None:
    whole = (packed / "train.rec").read_bytes()
    offsets = load_table(packed, "train")["offset"]
    held = bytearray(len(whole))
    for node in range(3):
        target = tmp_path / f"disk{node}/set"
        calls: list[tuple[int, int]] = []
        stage(
            packed,
            target,
            Part(node, 3),
            progress=lambda *done: calls.append(done),  # noqa: B023
        )
        assert calls == sorted(calls)
        assert calls[-1][0] == calls[-1][1]
        found = (target / "train.rec").read_bytes()
        # Images 0 to 99 lie in the chunk 0 to 127, 100 to 199 in this and in 128 to 255.
        bounds = [0, *offsets[[128, 256]].tolist(), len(whole)]
        begin = bounds[(0, 0, 1)[node]]
        end = bounds[node + 1]
        assert found == bytes(begin) + whole[begin:end] + bytes(len(whole) - end)
        assert (target / "train.rec").stat().st_blocks * 512 < end - begin + (16 << 10)
        held[begin:end] = found[begin:end]
        for name in ("val.rec", "train.npy"):
            assert (target / name).read_bytes() == (packed / name).read_bytes()
        check_before_run(data_of(target, shards="node"))
    assert held == whole


def test_a_part_reads_and_checks_the_chunks_that_it_needs(
    packed: Path, tmp_path: Path
) -> None:
    content = bytearray((packed / "train.rec").read_bytes())
    content[-100] ^= 1  # in the last chunk
    (packed / "train.rec").write_bytes(content)
    stage(packed, tmp_path / "first", Part(0, 3))
    with refused(r"train\.rec: CRC-32 .* of bytes .* copied"):
        stage(packed, tmp_path / "last", Part(2, 3))
    assert not (tmp_path / "last").exists()


def test_another_part_than_a_node_reads_is_refused_at_the_start(
    packed: Path, tmp_path: Path
) -> None:
    target = tmp_path / "set1"
    stage(packed, target, Part(1, 3))
    plan = Plan(3, 300, "pad", (Segment(1, 0, 0, 10, 3),), parts=3)
    seeds = {"shuffle": 1, "augment": 2, "flip": 3}
    sharded = data_of(target, shards="node")
    source = build_train_source(sharded, plan, rank=1, seeds=seeds)
    for _ in range(20):  # two epochs, of which no record lies in a hole
        source.next()
    with refused(r"manifest\.json: part 0/3 expected .* found part 1/3"):
        build_train_source(sharded, plan, rank=0, seeds=seeds)
    only = r"all training records expected \(see data.shards\), found part 1/3"
    for act in (
        lambda: check_before_run(data_of(target)),
        lambda: verify(target),
        lambda: stage(target, tmp_path / "copy"),
    ):
        with refused(only):
            act()
    with refused(r"the set of .* expected, found another"):
        stage(packed, target, Part(2, 3))


def test_a_manifest_without_chunks_is_refused(packed: Path, tmp_path: Path) -> None:
    manifest = read_json(packed / "manifest.json")
    del manifest["splits"]["train"]["chunks"]
    write_json(packed / "manifest.json", manifest)
    with refused(r"splits.train.chunks: \d+ bytes expected, found 0"):
        stage(packed, tmp_path / "part", Part(0, 3))


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        ({"SLURM_LOCALID": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
        ({"SLURM_LOCALID": "x"}, 0),
    ],
)
def test_the_local_rank_of_any_launcher(environment: dict[str, str], rank: int) -> None:
    assert local_rank(environment) == rank


def test_only_local_rank_0_copies(packed: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"name: c\ndata: {{path: {packed}}}\n")
    command = ["data", "stage", str(config), "--to"]
    whole = tmp_path / "disk/set"
    for rank, there in (("1", False), ("0", True)):
        done = CliRunner().invoke(
            app, [*command, str(whole)], env={"SLURM_LOCALID": rank}
        )
        assert (done.exit_code, whole.exists()) == (0, there)
    part = tmp_path / "disk/part"
    place = {
        "OMPI_COMM_WORLD_RANK": "4",
        "OMPI_COMM_WORLD_SIZE": "6",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    }
    command += [str(part), "data.shards=node", "system.nodes=3"]
    assert (
        CliRunner().invoke(app, command, env=place).stdout
        == f"{part}: staged, part 2/3\n"
    )
