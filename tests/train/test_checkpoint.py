"""Checkpoint files: what goes in comes out, and nothing torn, damaged or hostile does harm."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.train import checkpoint, checkpoint_folder
from rn50.train.checkpoint import BEST, Checkpoint, Part, digest_of, parts_of, row_of
from rn50.train.identity import code_digest, image_set_in
from rn50.train.resume import check_config, differences_in_bits, other_origin, resumed_config
from rn50.train.state import LossScaleState, Meta, TrainState

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
        "image_set": image_set_in(Path(loaded.run.data.path)) or "none here",
        "code": code_digest(),
    }
    return Meta(**(values | changes))


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "weight/a": rng.standard_normal((3, 5)).astype(np.float32),
        "velocity/a": rng.standard_normal((7,)).astype(np.float16),
        "empty": np.zeros((2, 0), np.float32),
    }


def of_rank(rank: int, values: float = 2.0) -> tuple[Part, bytes]:
    """The part of a rank above 0."""
    data = save({"statistics/a": np.full(3, values, np.float32)})
    return Part(rank=rank, size_bytes=len(data), digest=digest_of(data)), data


def shapes(of: dict[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, array.dtype.name) for name, array in of.items()}


def write(folder: Path, step: int = 7) -> Path:
    """A checkpoint of two ranks; its manifest."""
    path = folder / checkpoint.file_name(step)
    part, data = of_rank(1)
    checkpoint.write_part(path, part, data)
    checkpoint.write(path, meta(step), arrays(), [part])
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path)


def whole(path: Path) -> Checkpoint:
    found = checkpoint.read(path)
    found.verify()
    return found


def test_what_goes_in_comes_out_bit_for_bit(good: Path) -> None:
    found = whole(good)
    assert found.meta == meta()
    held = found.load(found.part_of(0), shapes(arrays()))
    for name, array in arrays().items():
        assert held[name].dtype == array.dtype and held[name].shape == array.shape
        assert held[name].tobytes() == array.tobytes()
    assert found.load(found.part_of(1), {"statistics/a": ((3,), "float32")})["statistics/a"][0] == 2
    assert found.part_of(5) == found.part_of(0), "a rank without a part has rank 0's statistics"
    names = {"step_0000000007" + end for end in (".ckpt", ".model.safetensors")}
    assert {path.name for path in good.parent.iterdir()} == {
        *names,
        "step_0000000007.rank_00001.safetensors",
    }


def test_any_cut_and_any_flipped_bit_of_any_file_is_found(good: Path) -> None:
    chosen = random.Random(0)
    for path in sorted(good.parent.iterdir()):
        text = path.read_bytes()
        for size in {0, 1, 8, 15, 16, len(text) - 1, *chosen.choices(range(len(text)), k=10)}:
            path.write_bytes(text[:size])
            with pytest.raises(UserError, match=path.name):
                whole(good)
        for place in chosen.choices(range(len(text)), k=30):
            damaged = bytearray(text)
            damaged[place] ^= 1 << chosen.randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=path.name):
                whole(good)
        path.write_bytes(text)


def hostile(body: object) -> bytes:
    """A manifest whose digest is right whatever the rest is."""
    text = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    text = text.removesuffix(b"}")
    return text + f',"digest":"{digest_of(text)}"}}\n'.encode()


def manifest(*parts: dict[str, object], **changes: object) -> dict[str, object]:
    """A manifest of two ranks; `parts`: changes to rank 0's, and to more of them."""
    usual = {"rank": 0, "size_bytes": 8, "digest": "0" * 64}
    values = {"format": FORMAT, "meta": meta().model_dump(mode="json")}
    return values | {"parts": [usual | part for part in parts or ({},)]} | changes


FORMAT = "rn50 checkpoint 2"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x04\x95 a pickle, perhaps" * 4, "something else"),
        (hostile(b'{"format":"rn50 checkpoint ' + b"[" * 100_000), "torn or damaged"),
        (hostile(manifest(format="rn50 checkpoint 3")), "format"),
        (hostile(manifest({"size_bytes": -1})), r"parts\.0\.size_bytes"),
        (hostile(manifest({"size_bytes": 1 << 60})), "bytes of parts expected"),
        (hostile(manifest({"digest": "../../etc"})), r"parts\.0\.digest"),
        (hostile(manifest({"rank": 1})), "parts of different ranks"),
        (hostile(manifest({}, {"rank": 2})), "parts of different ranks"),
        (hostile(manifest(parts=[])), "parts of different ranks"),
        (hostile(manifest(meta={"state": {"step": "1"}})), r"meta\.state\.step"),
    ],
)
def test_a_hostile_manifest_is_one_line(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "step_0000000001.ckpt"
    path.write_bytes(data)
    with pytest.raises(UserError, match=words) as caught:
        checkpoint.read(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def tensors(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def about(dtype: str, shape: list[int], end: int) -> dict[str, object]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "torn or damaged"),
        (tensors({}, length=1 << 60), "torn or damaged"),
        (tensors(about("F32", [2**62, 2**62], 8), bytes(8)), "torn or damaged"),
        (tensors(about("F64", [1], 8), bytes(8)), r"a: float32 \[2\] expected, found F64 \[1\]"),
        (tensors({}), r"a: float32 \[2\] expected, found no such array"),
    ],
)
def test_a_hostile_part_with_the_right_digest_is_one_line(
    good: Path, data: bytes, words: str
) -> None:
    part = Part(rank=1, size_bytes=len(data), digest=digest_of(data))
    checkpoint.write_part(good, part, data)
    checkpoint.write(good, meta(), arrays(), [part])
    found = whole(good)
    with pytest.raises(UserError, match=words) as caught:
        found.load(found.part_of(1), {"a": ((2,), "float32")})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_a_torn_newest_file_costs_one_checkpoint(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        write(tmp_path, step)
    newest = tmp_path / checkpoint.file_name(15)
    newest.write_bytes(newest.read_bytes()[:-10])
    (tmp_path / "step_0000000020.rank_00001.safetensors").unlink()  # its rank died before
    (tmp_path / "step_0000000099.ckpt").mkdir()  # not even a file
    (tmp_path / "step_evil.ckpt").write_bytes(b"")  # not one of ours
    found, problems = checkpoint_folder.newest(tmp_path)
    assert found is not None and found.meta.step == 10
    assert len(problems) == 3
    assert "rank_00001.safetensors: cannot read: No such file" in problems[1]
    assert "torn or damaged" in problems[2]
    assert checkpoint_folder.newest(tmp_path / "missing") == (None, [])


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        path = write(tmp_path, step)
        if step < 3:
            checkpoint_folder.mark_best(path, of_rank(1)[0])
            checkpoint_folder.mark_best(path)
        checkpoint_folder.prune(tmp_path, 2)
    assert [whole(path).meta.step for path in checkpoint_folder.listed(tmp_path)] == [3, 4]
    assert whole(tmp_path / BEST).meta.step == 2
    assert len(list(tmp_path.iterdir())) == 3 * 3, "three files each"


def test_the_newest_at_which_replicas_agreed_is_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        write(tmp_path, step)
        checkpoint_folder.prune(tmp_path, 2, agreed_step=2)
    assert [whole(path).meta.step for path in checkpoint_folder.listed(tmp_path)] == [2, 4, 5]


def test_one_that_lacks_a_part_does_not_push_another_out(tmp_path: Path) -> None:
    """The manifest may be there before the part of a rank whose disk is slower."""
    for step in (1, 2, 3):
        write(tmp_path, step)
    late = tmp_path / "step_0000000003.rank_00001.safetensors"
    data = late.read_bytes()
    late.unlink()
    checkpoint_folder.prune(tmp_path, 2)
    assert len(checkpoint_folder.listed(tmp_path)) == 3
    late.write_bytes(data)
    checkpoint_folder.prune(tmp_path, 2)
    assert [whole(path).meta.step for path in checkpoint_folder.listed(tmp_path)] == [2, 3]


def test_parts_that_no_manifest_names_go(good: Path) -> None:
    folder = good.parent
    before = sorted(folder.iterdir())
    for step in (good_step := whole(good).meta.step, 9, 12):
        name = checkpoint.file_name(step).replace(".ckpt", ".rank_00003.safetensors")
        (folder / name).write_bytes(b"part")
    checkpoint_folder.remove_unnamed(folder, 10)
    kept = [
        checkpoint.file_name(step).replace("ckpt", "rank_00003.safetensors")
        for step in (good_step, 12)
    ]
    assert sorted(folder.iterdir()) == sorted([*before, *(folder / name for name in kept)])


def test_an_older_checkpoint_is_known_by_its_format(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.file_name(7)
    path.write_bytes(b"RN50CKP1" + bytes(20 << 20))
    with pytest.raises(UserError, match="format 2 expected, found one of format 1"):
        checkpoint.read(path)


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the file is synced."""
    before = {path.name: path.read_bytes() for path in good.parent.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.write(good, meta(8), arrays())
    assert {path.name: path.read_bytes() for path in good.parent.iterdir()} == before


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("seed=2", "seed"),
        ("comm.groups=single", "comm.groups"),
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


def test_the_image_set_is_known_by_its_content(tmp_path: Path) -> None:
    """A copy elsewhere is the same set; another under the same name is not."""

    def found(**of_set: str) -> Checkpoint:
        checkpoint.write(tmp_path / "a.ckpt", meta(**of_set), arrays())
        return checkpoint.read(tmp_path / "a.ckpt")

    file = {"bytes": 1, "sha256": "0" * 64}
    split = {"samples": 4, "class_counts": [4], "files": dict.fromkeys(("rec", "idx", "npy"), file)}
    held = {"format": "rn50-recordio-1", "classes": list("abcd"), "shuffle_seed": 0}
    counts = {"train": split | {"samples": 1000}, "val": split | {"samples": 400}}
    data = tmp_path / "data"
    data.mkdir()
    (data / "manifest.json").write_text(json.dumps(held | {"splits": counts}))
    here = load("smoke", ["seed=1", f"data.path={data}"])
    digest = image_set_in(data)
    assert digest is not None
    check_config(found(image_set=digest), here)
    with pytest.raises(UserError, match=f"^data.path: .* 77 expected, as in .*, found {digest} in"):
        check_config(found(image_set="77"), here)
    assert "written by other sources of rn50, 77, here " in other_origin(found(code="77"))[0]
    assert other_origin(found(code=code_digest())) == []


def test_logs_are_on_the_disk_before_a_manifest_has_their_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    logs = [tmp_path / name for name in ("result_0.txt", "metrics.jsonl")]
    for log in logs:
        log.write_text("a")
    checkpoint.write(tmp_path / "a.ckpt", meta(), arrays(), logs=logs)
    last = max(n for n, path in enumerate(synced) if ".a.ckpt." in path.name)
    assert {*logs, tmp_path} <= set(synced[:last])


def test_another_rank_count_keeps_the_global_batch_and_says_so(good: Path, tmp_path: Path) -> None:
    found = checkpoint.read(good)
    source = tmp_path / "config.yaml"
    source.write_text(load(*CONFIG).to_yaml())
    loaded = resumed_config(found, ["system.ranks_per_node=4"], source)
    assert loaded.run.batch.per_rank == 5
    check_config(found, loaded)
    assert differences_in_bits(found, loaded) == [
        "system.ranks_per_node 2 -> 4",
        "batch.per_rank 10 -> 5",
    ]
    uneven = resumed_config(found, ["system.ranks_per_node=3"], source)
    assert (uneven.run.batch.per_rank, uneven.run.batch.active_ranks) == (10, 2)
    check_config(found, uneven)
    assert "batch.active_ranks None -> 2" in differences_in_bits(found, uneven)
    other = load("smoke", ["seed=1", "system.ranks_per_node=4"])
    with pytest.raises(UserError, match=r"a global batch of 20 expected.*found 40"):
        check_config(found, other)


def test_rank_0_lists_the_parts_of_all_and_each_other_rank_its_own() -> None:
    """All parts on all ranks would be the square of the ranks."""
    rows = [row_of(data, busy=False) for data in (b"a", b"bb", b"a", b"cc")]
    assert [part.rank for part in parts_of(rows, 0) or ()] == [1, 3]
    assert [parts_of(rows, rank) for rank in (1, 2, 3)] == [
        (Part(rank=1, size_bytes=2, digest=digest_of(b"bb")),),
        (),
        (Part(rank=3, size_bytes=2, digest=digest_of(b"cc")),),
    ]
    busy = [*rows[:3], row_of(b"cc", busy=True)]
    assert [parts_of(busy, rank) for rank in range(4)] == [None] * 4
    assert {len(row) % 4 for row in rows} == {0}  # what comm.gather_bytes takes
