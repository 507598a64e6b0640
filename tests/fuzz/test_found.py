"""What fuzzing found, each as small as it could be made."""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rn50.cli.main import app
from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.manifest import load_manifest
from rn50.data import recordio
from rn50.data.dataset import TABLE, load_table
from rn50.launch.failure import Evidence, explain_failure, read_failures
from rn50.launch.resume import is_hopeless, read_result
from rn50.sweep.trial import read_end

DEEP = "[" * 100_000 + "]" * 100_000


def _npy(header: bytes, rest: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + rest


def _saved(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, np.zeros(3, TABLE))
    return file.getvalue()


_SHAPED = "{'descr': %r, 'fortran_order': False, 'shape': %s, }\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        _archive(),
        _saved(np.zeros(3)),
        _saved(np.zeros((3, 1), TABLE)),
        _saved(np.zeros((), TABLE)),
        _saved(np.array([{"an": "object"}], object)),
        _saved(np.zeros(3, TABLE))[:-1],
        _saved(np.zeros(3, TABLE)) + b"more",
        _npy(b"["),
        _npy(b"(" * 900),
        _npy(b"{" * 60_000),
        _npy(b"3"),
        _npy((_SHAPED % (TABLE.descr, "(10**12,)")).encode()),
        _npy((_SHAPED % (TABLE.descr, "(1000000000000,)")).encode()),
        _npy((_SHAPED % (TABLE.descr, "(-1,)")).encode()),
        _npy((_SHAPED % (TABLE.descr, "None")).encode()),
        _npy((_SHAPED % (TABLE.descr, "(0,)")).encode(), version=b"\x03\x00"),
    ],
    ids=range(17),
)
def test_a_table_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"train\.npy: a sample table expected"):
        load_table(tmp_path, "train")


def test_a_table_that_is_one(tmp_path: Path) -> None:
    table = np.arange(5 * TABLE.itemsize, dtype=np.uint8).view(TABLE)
    np.save(tmp_path / "train.npy", table)
    found = load_table(tmp_path, "train")
    assert (found == table).all() and found.dtype == TABLE and not found.flags.writeable  # mapped


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="not readable here")
def test_a_file_of_proc_that_waits(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").symlink_to("/proc/kmsg")
    try:
        load_manifest(tmp_path)
    except UserError as error:
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("offset", [2**63, 2**64 - 1, 2**63 - 1, 100])
def test_a_record_far_behind_the_end(tmp_path: Path, offset: int) -> None:
    (tmp_path / "a.rec").write_bytes(b"x" * 40)
    with (tmp_path / "a.rec").open("rb") as file, pytest.raises(UserError, match=f"byte {offset} "):
        recordio.read(file, offset, "a.rec")


@pytest.mark.parametrize("content", [DEEP, "[]", "3", "{", "\ufeff{}", "9" * 5000])
def test_a_result_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    assert read_result(tmp_path) == {}
    (tmp_path / "run").mkdir()
    (tmp_path / "run/result.json").write_text(content)
    assert read_end(tmp_path, 1).status == "failed"


@pytest.mark.parametrize(
    "content",
    [
        *(DEEP, "[]", "3", "null", "{}", '{"reason": null}', '{"reason": 3, "rank": 1}'),
        '{"reason": "x"}',
        '{"reason": "x", "rank": "1", "host": "a", "phase": "b", "step": 1}',
    ],
    ids=range(9),
)
def test_a_failure_of_another_shape(tmp_path: Path, content: str) -> None:
    (tmp_path / "failure_0.json").write_text(content)
    (tmp_path / "failure_1.json").symlink_to("nowhere")
    assert read_failures(tmp_path) == [] and not is_hopeless(tmp_path)
    whole = {"rank": 1, "host": "a", "phase": "train", "step": 3, "reason": "why", "hopeless": True}
    (tmp_path / "failure_2.json").write_text(json.dumps(whole))
    assert is_hopeless(tmp_path)  # as runs of older versions left it
    evidence = Evidence(read_failures(tmp_path), "", 1)
    assert explain_failure(evidence).endswith("in train at step 3: why")


@pytest.mark.parametrize(
    "override",
    [
        *("eval.period=4611686018427387904", "eval.period=500000000", "system.nodes=1000000000"),
        *("optimizer.base_lr=1e300", "optimizer.base_lr=1e-300", "watchdog.stall_s=1e12"),
        *("batch.per_rank=99999999999", "data.prefetch=1000000", "model.loss_scale=1e300"),
    ],
)
def test_a_number_beyond_its_bound(override: str) -> None:
    key = override.partition("=")[0]
    with pytest.raises(UserError, match=rf"command line: {key}: expected .*, found") as found:
        load("quick", [override])
    assert len(str(found.value).splitlines()) == 1


def test_a_step_that_grows_beyond_all_numbers() -> None:
    key = "system.performance.fp16.batch_exponent"
    with pytest.raises(UserError, match=f"{key}: expected .*, found 500"):
        load("dgx1_8", [f"{key}=500"])


@pytest.mark.parametrize(
    "words",
    [
        *(["simulate", "--slow-node", "inf"], ["simulate", "--slow-node", "nan"]),
        *(["simulate", "--slow-link", "1e300"], ["run", "--epochs", "nan"]),
        *(["run", "--epochs", "inf"], ["run", "--gpus", "9" * 400]),
    ],
)
def test_a_prediction_of_no_number(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["predict", words[0], "dgxa100_8", *words[1:], "--json"])
    assert isinstance(done.exception, UserError | SystemExit) and done.stdout == ""
    assert words[-2] in (done.stderr if done.exit_code == 2 else str(done.exception))


def test_a_slow_link_needs_two_nodes() -> None:
    """Of TPU pods, which are one node to the model, as of a single machine."""
    for system, gpus in (("tpu_v4", "64"), ("dgxa100", "8")):
        words = ["predict", "simulate", "--system", system, "--gpus", gpus, "--batch-per-gpu", "32"]
        result = CliRunner().invoke(app, [*words, "--steps", "3", "--slow-link", "9"])
        assert isinstance(result.exception, UserError)
        assert "two nodes or more expected" in str(result.exception)
