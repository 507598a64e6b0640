"""Checkpoint files: what goes in comes out, and nothing torn, damaged or hostile does harm."""

import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from mxnet.gluon import nn

from rn50.config.load import load
from rn50.config.manifest import load_manifest
from rn50.train.checkpoint.file import (
    BEST,
    Checkpoint,
    file_name,
    read_checkpoint,
    step_of,
    write_checkpoint,
)
from rn50.train.checkpoint.folder import (
    checkpoints_in,
    chosen_checkpoint,
    copy_of,
    mark_best,
    newest_checkpoint,
    prune,
)
from rn50.train.checkpoint.model_export import describe
from rn50.train.checkpoint.restore import restore
from rn50.train.checkpoint.resume import check_config, resumed_config
from rn50.train.communication.identity import image_set_in
from rn50.train.network.build import statistics_arrays, weight_arrays
from tests.conftest import refused
from tests.faults.file_system import refusing
from tests.train.saved import CONFIG, arrays, leave_checkpoint, meta

COPY = [
    "data.path=copy",
    "data.classes=4",
    "data.train_samples=1000",
    "data.eval_samples=400",
]
"""A copy of the set, which nobody would draw anew."""


def shapes() -> dict[str, Any]:
    """The shapes and types of `arrays`."""
    return {name: (array.shape, array.dtype.name) for name, array in arrays().items()}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return leave_checkpoint(tmp_path)


def whole(path: Path) -> Checkpoint:
    checkpoint = read_checkpoint(path)
    checkpoint.verify()
    return checkpoint


def test_what_goes_in_comes_out_bit_for_bit(good: Path) -> None:
    checkpoint = whole(good)
    assert checkpoint.meta == meta()
    loaded = checkpoint.load(shapes())
    for name, array in arrays().items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)
    some = {"weight/a": ((3, 5), "float32")}
    assert checkpoint.load(some).keys() == some.keys()
    assert list(good.parent.iterdir()) == [good]


def test_any_cut_and_any_flipped_bit_is_found(good: Path) -> None:
    rng = random.Random(0)
    content = good.read_bytes()
    offsets = range(len(content))
    sizes = [0, 8, 16, *rng.choices(offsets, k=20)]
    damaged = [content[:size] for size in sizes]
    for offset in rng.choices(offsets, k=100):
        flipped = bytearray(content)
        flipped[offset] ^= 1 << rng.randrange(8)
        damaged.append(bytes(flipped))
    for data in damaged:
        good.write_bytes(data)
        with refused(good.name):
            whole(good)


def tensors(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    header_json = json.dumps(header).encode()
    if length is None:
        length = len(header_json)
    return struct.pack("<Q", length) + header_json + body


def hostile(digest: str = "0" * 64, **changes: object) -> bytes:
    values = meta().model_dump(mode="json") | changes
    metadata = {"digest": digest, "meta": json.dumps(values)}
    return tensors({"__metadata__": metadata})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x04\x95 a pickle, perhaps" * 4, "something else"),
        (tensors({}, length=1 << 60), "something else"),
        (tensors({}), "something else"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "something else"),
        (hostile("../../etc"), "digest: String should match"),
        (hostile(statistics_rows=3), "1 or 2 sets of statistics expected"),
        (hostile(state={"step": "1"}), r"state\.step"),
    ],
)
def test_hostile_metadata_is_one_line(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "step_0000000001.ckpt"
    path.write_bytes(data)
    with refused(f"torn or damaged: .*{message}") as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("saved", "message"), [({"a": np.zeros(1)}, r"F64 \[1\]"), ({}, "no such array")]
)
def test_other_arrays_are_refused(
    tmp_path: Path, saved: dict[str, Any], message: str
) -> None:
    write_checkpoint(tmp_path / "a.ckpt", meta(), saved)
    with refused(rf"a: float32 \[2\] expected, found {message}"):
        whole(tmp_path / "a.ckpt").load({"a": ((2,), "float32")})


def test_a_torn_newest_file_costs_one_checkpoint(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        leave_checkpoint(tmp_path, step)
    newest = tmp_path / file_name(15)
    newest.write_bytes(newest.read_bytes()[:-10])
    (tmp_path / "step_0000000099.ckpt").mkdir()  # not even a file
    (tmp_path / "step_evil.ckpt").write_bytes(b"")  # not one of ours
    checkpoint, (of_folder, of_torn) = newest_checkpoint(tmp_path)
    assert checkpoint
    assert checkpoint.meta.step == 10
    assert "a regular file expected" in of_folder
    assert "torn or damaged" in of_torn
    assert newest_checkpoint(tmp_path / "missing") == (None, [])


@pytest.mark.parametrize(
    ("agreed_step", "kept_steps"), [(None, [4, 5]), (2, [2, 4, 5])]
)
def test_the_newest_the_best_and_the_newest_that_agreed_are_kept(
    tmp_path: Path, agreed_step: int | None, kept_steps: list[int]
) -> None:
    for step in (1, 2, 3, 4, 5):
        path = leave_checkpoint(tmp_path, step)
        if step < 4:
            mark_best(path)
        prune(tmp_path, 2, agreed_step)
    assert list(map(step_of, checkpoints_in(tmp_path))) == kept_steps
    assert whole(tmp_path / BEST).meta.step == 3
    assert len(list(tmp_path.iterdir())) == len(kept_steps) + 1


def test_the_best_is_a_copy_where_there_are_no_links_and_kept_where_there_is_no_room(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from pathlib import Path; from rn50.train.checkpoint.folder import mark_best;"
        "mark_best(Path(sys.argv[1]))"
    )
    best = leave_checkpoint(tmp_path, 1)

    def mark(**calls: str) -> int:
        command = [sys.executable, "-c", code, str(best)]
        environment = os.environ | refusing(tmp_path, None, link="EPERM", **calls)
        return subprocess.run(command, env=environment, check=False).returncode

    assert mark(write="ENOSPC") == 1
    assert mark() == 0
    assert (tmp_path / BEST).read_bytes() == best.read_bytes()
    assert not best.samefile(tmp_path / BEST)
    for step in (2, 3, 4):
        leave_checkpoint(tmp_path, step)
    prune(tmp_path, 2, unmarked=best)
    assert list(map(step_of, checkpoints_in(tmp_path))) == [1, 3, 4]
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_of_checkpoints_that_is_a_link_out_of_its_run_is_not_opened(
    tmp_path: Path,
) -> None:
    """It may be in a stranger's run: `evaluate`, `export model` and `--resume` open it here."""
    other_folder = tmp_path / "others"
    link = tmp_path / "run/checkpoint"
    other_folder.mkdir()
    mark_best(leave_checkpoint(other_folder))
    link.parent.mkdir()
    link.symlink_to(other_folder)
    why = f"^{link}: no link out of its folder expected, found one to {other_folder}"
    with refused(why):
        chosen_checkpoint(link.parent)
    with refused(why):
        newest_checkpoint(link)
    assert checkpoints_in(link) == []
    assert chosen_checkpoint(link / file_name(7)).meta.step == 7


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=2"], "^seed: "),
        (["comm.groups=single"], "^comm.groups: "),
        (["batch.per_rank=5"], "^batch.per_rank: "),
        (["checkpoint.keep=9", "limits.time_s=5.0", "log.every=2 steps"], None),
        (COPY, None),
        (COPY[:1], "^data.path: .*/copy, found none .*: data.path=FOLDER"),
        ([*COPY[:3], "data.eval_samples=500"], "^data.eval_samples: "),
    ],
)
def test_only_what_changes_no_bits_may_differ(
    good: Path, overrides: list[str], message: str | None
) -> None:
    loaded = load("smoke", ["seed=1", *overrides])
    with refused(message):
        check_config(read_checkpoint(good), loaded)


def test_nodes_with_a_part_each_stay_as_many(tmp_path: Path) -> None:
    parts = ["seed=1", "data.shards=node", "system.ranks_per_node=1"]
    config = load("smoke", [*parts, "system.nodes=2"]).to_dict()
    checkpoint = read_checkpoint(leave_checkpoint(tmp_path, config=config))
    more_nodes = load("smoke", [*parts, "system.nodes=4", "batch.per_rank=5"])
    with refused(r"^system.nodes: 2 expected"):
        check_config(checkpoint, more_nodes)


def test_the_image_set_is_known_by_its_content(
    smoke_data: Path, tmp_path: Path
) -> None:
    """A copy elsewhere is the same set; another under the same name is not."""
    loaded = load("smoke", ["seed=1", f"data.path={smoke_data}"])
    digest = image_set_in(smoke_data)
    same = read_checkpoint(leave_checkpoint(tmp_path, image_set=digest))
    check_config(same, loaded)
    other_set = read_checkpoint(leave_checkpoint(tmp_path, image_set="77"))
    with refused(f"^data.path: .* 77 expected, as in .*, found {digest} in"):
        check_config(other_set, loaded)
    classes = load_manifest(smoke_data).classes
    assert describe(same, loaded.run)["output"]["classes"] == classes
    assert "classes" not in describe(other_set, loaded.run)["output"]


def test_logs_are_on_the_disk_before_a_checkpoint_has_their_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", note)
    logs = [tmp_path / name for name in ("result_0.txt", "metrics.jsonl")]
    for log in logs:
        log.write_text("a")
    write_checkpoint(tmp_path / "a.ckpt", meta(), arrays(), logs=logs)
    *synced_before, _, _ = synced  # the file and its folder come last
    assert set(synced_before) == {*logs, tmp_path}


def test_another_rank_count_keeps_the_global_batch(good: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(good)
    source = tmp_path / "config.yaml"
    source.write_text(load(*CONFIG).to_yaml())
    for ranks, per_rank, active_ranks in ((4, 5, None), (3, 10, 2)):
        overrides = [f"system.ranks_per_node={ranks}"]
        loaded = resumed_config(checkpoint, overrides, source)
        assert loaded.run.batch.per_rank == per_rank
        assert loaded.run.batch.active_ranks == active_ranks
        check_config(checkpoint, loaded)
    larger_batch = load("smoke", ["seed=1", "system.ranks_per_node=4"])
    with refused(r"batch: .*\{1: 20\} expected.*found \{1: 40\}"):
        check_config(checkpoint, larger_batch)


@pytest.mark.parametrize(
    ("step", "rank", "ranks", "bn_stats", "expected"),
    [
        (50, 1, 2, "average", {"mean": 4, "var": 4}),
        (50, 0, 1, "average", {"mean": 2.5, "var": 2.5}),
        (50, 2, 3, "average", {"mean": 2.5, "var": 2.5}),
        (51, 2, 3, "average", {"mean": 1, "var": 1}),
        (50, 1, 2, "batch", {"mean": 4, "var": 4}),
        (50, 0, 1, "batch", {"mean": 2.5, "var": 4.75}),
        (51, 2, 3, "batch", {"mean": 1, "var": 1}),
    ],
)
def test_statistics_of_each_rank_are_its_own_or_those_of_all_that_took_part(
    tmp_path: Path,
    step: int,
    rank: int,
    ranks: int,
    bn_stats: str,
    expected: dict[str, float],
) -> None:
    """The ranks' means and variances are 1 and 4. The variance of all their images has a share from
    the distance of their means. Of two ranks the second has no share of the batch from the second
    epoch on."""
    net = nn.BatchNorm(in_channels=3)
    net.initialize()
    saved = {name: array.asnumpy() for name, array in weight_arrays(net).items()}
    rows = np.array([1, 4], np.float32)
    for name in statistics_arrays(net):
        saved[name] = np.multiply.outer(rows, np.ones(3, np.float32))
    change = "batch.changes=[{after_epoch: 1, per_rank: 20, active_ranks: 1}]"
    config = load("smoke", ["seed=1", change, f"eval.bn_stats={bn_stats}"]).to_dict()
    path = tmp_path / "a.ckpt"
    metadata = meta(step, config=config, statistics_rows=2)
    write_checkpoint(path, metadata, saved)
    restore(read_checkpoint(path), net, rank=rank, ranks=ranks)
    for name, array in statistics_arrays(net).items():
        assert (array.asnumpy() == expected[name.rpartition("_")[2]]).all()
    other_modes = {"average": "batch", "batch": "average"}
    restore(read_checkpoint(path), net, ranks=1, bn_stats=other_modes[bn_stats])
    (variance,) = [v for k, v in statistics_arrays(net).items() if k.endswith("var")]
    of_epoch_1 = {"average": 4.75, "batch": 2.5}
    if step == 50:
        assert (variance.asnumpy() == of_epoch_1[bn_stats]).all()


@pytest.mark.parametrize("links", [True, False])
def test_a_copy_is_one_whatever_the_run_writes(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run puts another file in place between metadata and arrays."""
    best = leave_checkpoint(tmp_path)
    checkpoint = read_checkpoint(best)
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    copy = copy_of(checkpoint, tmp_path / "held.ckpt")
    write_checkpoint(best, meta(9), {"weight/a": np.zeros(3)})
    assert copy.meta.step == 7
    copy.load(shapes())
