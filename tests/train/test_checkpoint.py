"""Checkpoint files: what goes in comes out, and nothing torn, damaged or hostile does harm."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.train import checkpoint
from rn50.train.checkpoint import BEST, DIGEST_BYTES, MAGIC, LossScaleState, Meta
from rn50.train.resume import check_config, differences_in_bits, resumed_config
from rn50.train.state import TrainState

CONFIG = ("smoke", ["seed=1"])


def meta(step: int = 7, **changes: Any) -> Meta:
    loaded = load(*CONFIG)
    values: dict[str, Any] = {
        "state": TrainState(
            step=step, samples=step * 20, training_s=3.25, accuracy=0.5, best_accuracy=0.75
        ),
        "log_bytes": 100,
        "metrics_bytes": 50,
        "run_started_unix_s": 1.5,
        "previous_lr": 0.1 + 0.2,
        "loss_scale": LossScaleState(
            value=0.5, growth_tracker=17, checks=((6, 1.0, False), (7, 0.5, True))
        ),
        "ranks": 2,
        "seeds": {"weights": 2**62},
        "config_sha256": loaded.sha256,
        "config": loaded.to_dict(),
    }
    return Meta(**(values | changes))


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "weight/a": rng.standard_normal((3, 5)).astype(np.float32),
        "velocity/a": rng.standard_normal((7,)).astype(np.float16),
        "empty": np.zeros((2, 0), np.float32),
    }


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / checkpoint.file_name(7)
    checkpoint.write(path, meta(), arrays())
    return path


def test_what_goes_in_comes_out_bit_for_bit(good: Path) -> None:
    found = checkpoint.read(good)
    assert found.meta == meta()
    for name, array in arrays().items():
        assert found.arrays[name].dtype == array.dtype and found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()
    assert [path.name for path in good.parent.iterdir()] == [good.name]


def test_any_cut_and_any_flipped_bit_is_found(good: Path) -> None:
    whole = good.read_bytes()
    chosen = random.Random(0)
    for size in (0, 1, 8, 15, 16, len(whole) - 1, *chosen.sample(range(len(whole)), 30)):
        good.write_bytes(whole[:size])
        with pytest.raises(UserError, match=good.name):
            checkpoint.read(good)
    for place in chosen.sample(range(len(whole)), 100):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chosen.randrange(8)
        good.write_bytes(damaged)
        with pytest.raises(UserError, match=good.name):
            checkpoint.read(good)


def hostile(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    """A file whose digest is right whatever the rest is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = MAGIC + struct.pack("<Q", len(text) if length is None else length) + text + body
    return start + hashlib.blake2b(start, digest_size=DIGEST_BYTES).digest()


def array_header(**changes: object) -> dict[str, object]:
    array = {"name": "weight/a", "dtype": "float32", "shape": [2]} | changes
    return {"meta": meta().model_dump(mode="json"), "arrays": [array]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x04\x95 a pickle, perhaps" * 4, "something else"),
        (hostile(b"{"), "header"),
        (hostile(b"[" * 100_000), "header"),
        (hostile(b"\xff\xfe"), "header"),
        (hostile({}, length=1 << 60), "a header within the file"),
        (hostile(array_header(dtype="object"), bytes(8)), r"arrays\.0\.dtype"),
        (hostile(array_header(shape=[-2]), bytes(8)), r"arrays\.0\.shape"),
        (hostile(array_header(shape=[2**62, 2**62]), bytes(8)), "sides of an array expected"),
        (hostile(array_header(shape=[0, 2**63])), "sides of an array expected"),
        (hostile(array_header(shape=[0, 10**400])), "sides of an array expected"),
        (hostile(array_header(shape=[3]), bytes(8)), "12 bytes of arrays expected, found 8"),
        (hostile(array_header(code="import os"), bytes(8)), r"arrays\.0\.code"),
        (hostile({"meta": {"state": {"step": "1"}}, "arrays": []}), r"meta\.state\.step"),
        (hostile({**array_header(), "__class__": "os.system"}, bytes(8)), "__class__"),
    ],
)
def test_a_hostile_file_is_one_line(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "step_0000000001.ckpt"
    path.write_bytes(data)
    with pytest.raises(UserError, match=words) as caught:
        checkpoint.read(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(("size", "words"), [(3 << 30, "torn or damaged"), (1 << 40, "at most")])
def test_a_hole_in_place_of_arrays_is_not_read(tmp_path: Path, size: int, words: str) -> None:
    path = tmp_path / "step_0000000001.ckpt"
    path.write_bytes(hostile(array_header())[:-DIGEST_BYTES])
    os.truncate(path, size)
    tracemalloc.start()
    with pytest.raises(UserError, match=words):
        checkpoint.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_a_torn_newest_file_costs_one_checkpoint(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        checkpoint.write(tmp_path / checkpoint.file_name(step), meta(step), arrays())
    newest = tmp_path / checkpoint.file_name(15)
    newest.write_bytes(newest.read_bytes()[:-10])
    (tmp_path / "step_0000000099.ckpt").mkdir()  # not even a file
    (tmp_path / "step_evil.ckpt").write_bytes(b"")  # not one of ours
    found, problems = checkpoint.newest(tmp_path)
    assert found is not None and found.meta.step == 10
    assert len(problems) == 2 and "torn or damaged" in problems[1]
    assert checkpoint.newest(tmp_path / "missing") == (None, [])


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        path = tmp_path / checkpoint.file_name(step)
        checkpoint.write(path, meta(step), arrays())
        if step == 1:
            checkpoint.mark_best(path)
        checkpoint.prune(tmp_path, 2)
    assert [checkpoint.read(path).meta.step for path in checkpoint.listed(tmp_path)] == [3, 4]
    assert checkpoint.read(tmp_path / BEST).meta.step == 1


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the file is synced."""
    before = good.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.write(good, meta(8), arrays())
    assert good.read_bytes() == before
    assert [path.name for path in good.parent.iterdir()] == [good.name]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("optimizer.base_lr=0.1", "optimizer.base_lr"),
        ("seed=2", "seed"),
        ("model.width=32", "model.width"),
        ("comm.groups=single", "comm.groups"),
        ("schedule.length=9 epochs", "schedule.length"),
        ("batch.per_rank=5", "batch.per_rank"),
    ],
)
def test_another_config_is_refused_by_name(good: Path, override: str, key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}: "):
        check_config(checkpoint.read(good), load("smoke", ["seed=1", override]))


@pytest.mark.parametrize(
    "overrides",
    [
        ["checkpoint.keep=9"],
        ["limits.time_s=5.0"],
        ["log.every=2 steps"],
        # A copy of the set, which nobody would draw anew.
        [*("data.path=copy", "data.classes=4", "data.train_samples=1000", "data.eval_samples=400")],
    ],
)
def test_what_changes_no_bits_may_differ(good: Path, overrides: list[str]) -> None:
    loaded = load("smoke", ["seed=1", *overrides])
    check_config(checkpoint.read(good), loaded)
    assert differences_in_bits(checkpoint.read(good), loaded) == []


def test_another_rank_count_keeps_the_global_batch_and_says_so(good: Path, tmp_path: Path) -> None:
    found = checkpoint.read(good)
    source = tmp_path / "config.yaml"
    source.write_text(load(*CONFIG).to_yaml())
    loaded = resumed_config(found, ["system.ranks_per_node=4"], source)
    assert loaded.run.batch.per_rank == 5
    check_config(found, loaded)
    assert differences_in_bits(found, loaded) == ["system.ranks_per_node 2 -> 4"]
    with pytest.raises(UserError, match="a divisor of the global batch 20"):
        resumed_config(found, ["system.ranks_per_node=3"], source)
    other = load("smoke", ["seed=1", "system.ranks_per_node=4"])
    with pytest.raises(UserError, match=r"a global batch of 20 expected.*found 40"):
        check_config(found, other)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (TrainState(step=7, samples=139), "140 samples after step 7 expected, found 139"),
        (TrainState(step=7, samples=140, epochs_trained=1), "1 epochs trained and 0 evaluated do"),
        (TrainState(step=7, samples=140, epochs_evaluated=1), "0 epochs trained and 1 evaluated"),
        (TrainState(step=51, samples=1020), "0 epochs trained .* do not fit step 51"),
    ],
)
def test_a_state_that_does_not_fit_its_step_is_refused(
    tmp_path: Path, state: TrainState, words: str
) -> None:
    path = tmp_path / checkpoint.file_name(state.step)
    checkpoint.write(path, meta(state=state), arrays())
    with pytest.raises(UserError, match=words):
        check_config(checkpoint.read(path), load(*CONFIG))
