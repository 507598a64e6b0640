"""Checkpoint files: what goes in comes out, and nothing torn, damaged or hostile does harm."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50.config.load import load
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
    held_checkpoint,
    mark_best,
    newest_checkpoint,
    prune,
)
from rn50.train.checkpoint.resume import check_config, resumed_config
from rn50.train.checkpoint.state import LossScaleState, Meta, TrainState
from rn50.train.communication.identity import image_set_in
from tests.conftest import refused, write_json
from tests.faults.file_system import refusing

CONFIG = ("smoke", ["seed=1"])
COPY = [
    "data.path=copy",
    "data.classes=4",
    "data.train_samples=1000",
    "data.eval_samples=400",
]
"""A copy of the set, which nobody would draw anew."""


def meta(step: int = 7, **changes: Any) -> Meta:
    loaded = load(*CONFIG)
    values: dict[str, Any] = {
        "state": TrainState(
            step=step,
            samples=step * 20,
            training_s=3.25,
            accuracy=0.5,
            best_accuracy=0.75,
        ),
        "log_bytes": 100,
        "metrics_bytes": 50,
        "run_started_unix_s": 1.5,
        "previous_lr": 0.1 + 0.2,
        "loss_scale": LossScaleState(
            value=0.5, growth_tracker=17, checks=((6, 1.0, False), (7, 0.5, True))
        ),
        "ranks": 2,
        "statistics_rows": 1,
        "config_sha256": loaded.sha256,
        "config": loaded.to_dict(),
        "image_set": image_set_in(Path(loaded.run.data.path)) or "none here",
    }
    return Meta(**(values | changes))


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "weight/a": rng.standard_normal((3, 5)).astype(np.float32),
        "velocity/a": rng.standard_normal((7,)).astype(np.float16),
        "empty": np.zeros((2, 0), np.float32),
        "statistics/a": np.arange(6, dtype=np.float32).reshape(2, 3)[:, 1:],
    }


def shapes(of: dict[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, array.dtype.name) for name, array in of.items()}


def write(folder: Path, step: int = 7) -> Path:
    path = folder / file_name(step)
    write_checkpoint(path, meta(step), arrays())
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path)


def whole(path: Path) -> Checkpoint:
    found = read_checkpoint(path)
    found.verify()
    return found


def test_what_goes_in_comes_out_bit_for_bit(good: Path) -> None:
    found = whole(good)
    assert found.meta == meta()
    held = found.load(shapes(arrays()))
    for name, array in arrays().items():
        assert held[name].dtype == array.dtype
        assert held[name].shape == array.shape
        assert held[name].tobytes() == array.tobytes()
    assert found.load(shapes({"empty": arrays()["empty"]}), some=True).keys() == {
        "empty"
    }
    assert list(good.parent.iterdir()) == [good]


def test_any_cut_and_any_flipped_bit_is_found(good: Path) -> None:
    chosen = random.Random(0)
    text = good.read_bytes()
    for size in {
        0,
        1,
        8,
        15,
        16,
        len(text) - 1,
        *chosen.choices(range(len(text)), k=20),
    }:
        good.write_bytes(text[:size])
        with refused(good.name):
            whole(good)
    for place in chosen.choices(range(len(text)), k=100):
        damaged = bytearray(text)
        damaged[place] ^= 1 << chosen.randrange(8)
        good.write_bytes(damaged)
        with refused(good.name):
            whole(good)


def tensors(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def hostile(digest: str = "0" * 64, **changes: object) -> bytes:
    values = json.dumps(meta().model_dump(mode="json") | changes)
    return tensors({"__metadata__": {"digest": digest, "meta": values}})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x04\x95 a pickle, perhaps" * 4, "something else"),
        (tensors({}, length=1 << 60), "something else"),
        (tensors({"a": 1}), "something else"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "something else"),
        (tensors({"__metadata__": {"digest": "0" * 64}}), "meta: Field required"),
        (hostile("../../etc"), "digest: String should match"),
        (hostile(statistics_rows=3), "1 or 2 sets of statistics expected"),
        (hostile(state={"step": "1"}), r"state\.step"),
    ],
)
def test_hostile_metadata_is_one_line(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "step_0000000001.ckpt"
    path.write_bytes(data)
    with refused(f"torn or damaged: .*{words}") as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ({"a": np.zeros(1)}, r"F64 \[1\]"),
        ({}, "no such array"),
        ({"b": np.zeros(2)}, "no such array"),
    ],
)
def test_other_arrays_are_one_line(
    tmp_path: Path, held: dict[str, Any], found: str
) -> None:
    write_checkpoint(tmp_path / "a.ckpt", meta(), held)
    with refused(rf"a: float32 \[2\] expected, found {found}") as caught:
        whole(tmp_path / "a.ckpt").load({"a": ((2,), "float32")})
    assert "\n" not in str(caught.value)


def test_a_torn_newest_file_costs_one_checkpoint(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        write(tmp_path, step)
    newest = tmp_path / file_name(15)
    newest.write_bytes(newest.read_bytes()[:-10])
    (tmp_path / "step_0000000099.ckpt").mkdir()  # not even a file
    (tmp_path / "step_evil.ckpt").write_bytes(b"")  # not one of ours
    found, problems = newest_checkpoint(tmp_path)
    assert found is not None
    assert found.meta.step == 10
    assert len(problems) == 2
    assert "a regular file expected" in problems[0]
    assert "torn or damaged" in problems[1]
    assert newest_checkpoint(tmp_path / "missing") == (None, [])


@pytest.mark.parametrize(
    ("agreed_step", "kept"), [(None, [4, 5]), (0, [4, 5]), (2, [2, 4, 5])]
)
def test_the_newest_the_best_and_the_newest_that_agreed_are_kept(
    tmp_path: Path, agreed_step: int | None, kept: list[int]
) -> None:
    for step in (1, 2, 3, 4, 5):
        path = write(tmp_path, step)
        if step < 4:
            mark_best(path)
        prune(tmp_path, 2, agreed_step)
    assert [whole(path).meta.step for path in checkpoints_in(tmp_path)] == kept
    assert whole(tmp_path / BEST).meta.step == 3
    assert len(list(tmp_path.iterdir())) == len(kept) + 1


def test_the_best_is_a_copy_where_there_are_no_links_and_kept_where_there_is_no_room(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from pathlib import Path; from rn50.train.checkpoint.folder import mark_best;"
        "mark_best(Path(sys.argv[1]))"
    )
    best = write(tmp_path, 1)
    command = [sys.executable, "-c", code, str(best)]
    full = {"link": "EPERM", "write": "ENOSPC"}
    done = [
        subprocess.run(
            command, env=os.environ | refusing(tmp_path, **calls), check=False
        )
        for calls in (full, {"link": "EPERM"})
    ]
    assert [one.returncode for one in done] == [1, 0]
    assert (tmp_path / BEST).read_bytes() == best.read_bytes()
    assert not best.samefile(tmp_path / BEST)
    for step in (2, 3, 4):
        write(tmp_path, step)
    prune(tmp_path, 2, unmarked=best)
    steps = [step_of(path) for path in checkpoints_in(tmp_path)]
    assert steps == [1, 3, 4]
    assert len(list(tmp_path.iterdir())) == 4


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the file is synced."""
    before = good.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(good, meta(8), arrays())
    assert good.read_bytes() == before
    assert list(good.parent.iterdir()) == [good]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["seed=2"], "^seed: "),
        (["comm.groups=single"], "^comm.groups: "),
        (["batch.per_rank=5"], "^batch.per_rank: "),
        (["checkpoint.keep=9", "limits.time_s=5.0", "log.every=2 steps"], None),
        (COPY, None),
    ],
)
def test_only_what_changes_no_bits_may_differ(
    good: Path, overrides: list[str], told: str | None
) -> None:
    loaded = load("smoke", ["seed=1", *overrides])
    with refused(told):
        check_config(read_checkpoint(good), loaded)


def test_nodes_with_a_part_each_stay_as_many(tmp_path: Path) -> None:
    parts = ["seed=1", "data.shards=node", "system.ranks_per_node=1"]
    config = load("smoke", [*parts, "system.nodes=2"]).to_dict()
    write_checkpoint(tmp_path / "a.ckpt", meta(config=config), arrays())
    others = load("smoke", [*parts, "system.nodes=4", "batch.per_rank=5"])
    with refused(r"^system.nodes: 2 expected"):
        check_config(read_checkpoint(tmp_path / "a.ckpt"), others)


def test_the_image_set_is_known_by_its_content(tmp_path: Path) -> None:
    """A copy elsewhere is the same set; another under the same name is not."""

    def found(**of_set: str) -> Checkpoint:
        write_checkpoint(tmp_path / "a.ckpt", meta(**of_set), arrays())
        return read_checkpoint(tmp_path / "a.ckpt")

    file = {"bytes": 1, "sha256": "0" * 64}
    split = {
        "samples": 4,
        "class_counts": [4],
        "files": dict.fromkeys(("rec", "idx", "npy"), file),
    }
    held = {"format": "rn50-recordio-1", "classes": list("abcd"), "shuffle_seed": 0}
    counts = {"train": split | {"samples": 1000}, "val": split | {"samples": 400}}
    data = tmp_path / "data"
    data.mkdir()
    write_json(data / "manifest.json", held | {"splits": counts})
    here = load("smoke", ["seed=1", f"data.path={data}"])
    digest = image_set_in(data)
    assert digest is not None
    check_config(found(image_set=digest), here)
    with refused(f"^data.path: .* 77 expected, as in .*, found {digest} in"):
        check_config(found(image_set="77"), here)


def test_logs_are_on_the_disk_before_a_checkpoint_has_their_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    logs = [tmp_path / name for name in ("result_0.txt", "metrics.jsonl")]
    for log in logs:
        log.write_text("a")
    write_checkpoint(tmp_path / "a.ckpt", meta(), arrays(), logs=logs)
    last = max(n for n, path in enumerate(synced) if ".a.ckpt." in path.name)
    assert {*logs, tmp_path} <= set(synced[:last])


def test_another_rank_count_keeps_the_global_batch(good: Path, tmp_path: Path) -> None:
    found = read_checkpoint(good)
    source = tmp_path / "config.yaml"
    source.write_text(load(*CONFIG).to_yaml())
    loaded = resumed_config(found, ["system.ranks_per_node=4"], source)
    assert loaded.run.batch.per_rank == 5
    check_config(found, loaded)
    uneven = resumed_config(found, ["system.ranks_per_node=3"], source)
    assert (uneven.run.batch.per_rank, uneven.run.batch.active_ranks) == (10, 2)
    check_config(found, uneven)
    other = load("smoke", ["seed=1", "system.ranks_per_node=4"])
    with refused(r"batch: .*\{1: 20\} expected.*found \{1: 40\}"):
        check_config(found, other)


@pytest.mark.parametrize("links", [True, False])
def test_a_held_checkpoint_is_one_whatever_the_run_writes(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run puts another best.ckpt in place between metadata and arrays."""
    best = tmp_path / "best.ckpt"
    write_checkpoint(best, meta(7), arrays())
    found = read_checkpoint(best)
    if not links:
        monkeypatch.setattr(os, "link", _refused)
    held = held_checkpoint(found, tmp_path / "held.ckpt")
    write_checkpoint(
        best, meta(9), {name: array + 1 for name, array in arrays().items()}
    )
    assert held.meta.step == 7
    assert np.array_equal(held.load(shapes(arrays()))["weight/a"], arrays()["weight/a"])


def _refused(*_: object) -> None:
    raise PermissionError
