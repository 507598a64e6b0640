"""Packing a small environment, carrying its pieces over in any order, starting it there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from rn50.gpu_bringup import check
from rn50.gpu_bringup.fatbin import entries
from tests.gpu_bringup.fat import Code, fat_binary, library

ROOT = Path(__file__).resolve().parents[2]
PIECE_BYTES = 6 << 20
MODULE = "rn50.gpu_bringup.check"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("zstd"), reason="zstd expected: apt-get install zstd"),
]


def run_script(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    settings = {
        "RN50_BRINGUP": str(folder),
        "RN50_BRINGUP_PIECE_KIB": str(PIECE_BYTES >> 10),
        "RN50_BRINGUP_LEVEL": "1",
        "PYTHON": sys.executable,
    }
    return subprocess.run(
        ["bash", str(ROOT / "scripts/gpu_bringup.sh"), *words],
        env=os.environ | settings | more,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `setup.sh --gpu` leaves it, with a handful of packages and one thin-able library."""
    folder = tmp_path_factory.mktemp("gpu") / "environment"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in ("mxnet", "mxnet/tests", "nvidia/demo/lib", "pip", "pip-23.0.dist-info"):
        (site / name).mkdir(parents=True)
    (site / "mxnet/__init__.py").write_text("VALUE = 42\n")
    (site / "mxnet/tests/big.py").write_text("")
    (site / "mxnet/other.cpython-39-x86_64-linux-gnu.so").write_text("")
    (site / "pip/__init__.py").write_text("")
    (site / "pip-23.0.dist-info/RECORD").write_text("pip/__init__.py,,\n")
    codes = [Code(2, 50, os.urandom(1 << 20)), Code(2, 90, b"B" * 64)]
    library(site / "nvidia/demo/lib/libdemo.so.1", nv_fatbin=fat_binary(codes))
    (site / "mxnet/libdemo.so.1").symlink_to("../nvidia/demo/lib/libdemo.so.1")
    # Does not compress: there are several pieces, also where Python itself comes small.
    (site / "mxnet/noise.bin").write_bytes(os.urandom(2 * PIECE_BYTES))
    return folder


@pytest.fixture(scope="module")
def packed(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "bringup"
    done = run_script(folder, "pack", str(environment), "--images", "10")
    assert done.returncode == 0, done.stderr
    assert "kept MB" in done.stdout
    return folder


@pytest.fixture
def here(packed: Path, tmp_path: Path) -> Path:
    """The packing side, and what arrives: one folder, as pieces and received may share it."""
    (tmp_path / "bringup").mkdir()
    (tmp_path / "bringup/pieces").symlink_to(packed / "pieces")
    return tmp_path / "bringup"


def manifest_of(folder: Path) -> dict[str, tuple[int, str]]:
    rows = [line.split("\t") for line in (folder / "pieces/manifest").read_text().splitlines()]
    return {name: (int(size), sha) for name, size, sha in rows if name != "needs"}


def test_the_manifest_tells_the_pieces_and_the_whole(packed: Path) -> None:
    manifest = manifest_of(packed)
    pieces = sorted(path for path in (packed / "pieces").iterdir() if path.name != "manifest")
    assert list(manifest) == ["bringup.tar.zst", *(path.name for path in pieces)]
    assert len(pieces) > 2
    whole = b"".join(path.read_bytes() for path in pieces)
    for name, content in [("bringup.tar.zst", whole)] + [(p.name, p.read_bytes()) for p in pieces]:
        assert manifest[name] == (len(content), hashlib.sha256(content).hexdigest())
    assert all(path.stat().st_size <= PIECE_BYTES for path in pieces)
    assert {path.name for path in packed.iterdir()} == {".gitignore", "pieces", "stage"}


def test_pieces_in_any_order_become_an_environment_that_runs(here: Path, environment: Path) -> None:
    count = len(manifest_of(here)) - 1
    order = [2, 2, count, *range(3, count), 1, 1]
    for place, number in enumerate(order):
        sent = run_script(here, "send", str(number))
        assert sent.returncode == 0, sent.stderr
        assert sent.stdout == "scripts/gpu_bringup.sh receive\n"
        assert len(list((here / "send").glob("piece-*"))) == 1
        done = run_script(here, "receive")
        assert done.returncode == 0, done.stderr
        missing = [f"piece-{n:02d}" for n in range(1, count + 1) if n not in order[: place + 1]]
        if missing:
            assert done.stderr.endswith(f"missing: {' '.join(missing)}\n")
            assert not (here / "target").exists()
    assert "all pieces are here and unpacked" in done.stderr  # the last one came twice

    target = here / "target"
    assert not (target / "site/pip").exists()
    assert not list(target.glob("site/mxnet/tests")) + list(target.glob("site/mxnet/other*"))
    assert (target / "site/mxnet/libdemo.so.1").is_symlink()
    (old,) = environment.glob("lib/python3*/site-packages/nvidia/demo/lib/libdemo.so.1")
    thinned = target / "site/mxnet/libdemo.so.1"
    first, second = entries(thinned)
    content = thinned.read_bytes()
    assert content[first.offset : first.offset + first.size] == bytes(first.size)
    assert content[second.offset : second.offset + second.size] == b"B" * 64
    assert list(entries(old)) == [first, second]
    moved = target.rename(here / "moved")
    code = "import ctypes, ssl, sys, mxnet, rn50; print(mxnet.VALUE, sys.prefix, rn50.__file__)"
    done = subprocess.run(
        ["env", "-i", moved / "python", "-c", code],
        cwd=moved.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["42", str(moved), str(moved / "site/rn50/__init__.py")]
    for name in ("whole", "broken", "cut"):
        assert (moved / "images" / name / "train.rec").stat().st_size > 10_000


def test_a_piece_that_was_spoilt_is_named_and_not_kept(here: Path) -> None:
    run_script(here, "send", "2")
    piece = here / "send/piece-02"
    whole = piece.read_bytes()
    piece.unlink()  # a link to the packed one
    for content, words in [
        (whole[:-1], f"piece-02: {len(whole)} bytes expected, found {len(whole) - 1}"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "piece-02: sha256 "),
    ]:
        piece.write_bytes(content)
        done = run_script(here, "receive")
        assert done.returncode == 1
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (here / "received/piece-02").exists()
    piece.write_bytes(whole)
    assert run_script(here, "receive").returncode == 0
    assert (here / "received/piece-02").read_bytes() == whole


def test_a_piece_that_went_bad_where_it_lay_is_named_before_unpacking(here: Path) -> None:
    count = len(manifest_of(here)) - 1
    for number in range(1, count + 1):
        if number == count:
            kept = here / "received/piece-01"
            kept.write_bytes(kept.read_bytes()[:-4] + b"oops")
        run_script(here, "send", str(number))
        done = run_script(here, "receive")
    assert done.returncode == 1
    assert "received/piece-01: sha256 " in done.stderr
    assert not (here / "target").exists()


def test_pieces_of_another_packing_are_not_mixed_in(here: Path) -> None:
    run_script(here, "send", "1")
    assert run_script(here, "receive").returncode == 0
    run_script(here, "send", "2")
    manifest = here / "send/manifest"
    manifest.write_text(manifest.read_text().replace("needs\tsm\t90", "needs\tsm\t86"))
    done = run_script(here, "receive")
    assert "pieces of another packing: starting anew" in done.stderr
    assert {path.name for path in (here / "received").glob("piece-*")} == {"piece-02"}


def test_a_machine_without_zstd_uses_the_one_that_came_along(here: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in (
        *("awk", "bash", "cat", "chmod", "cmp", "cp", "cut", "dirname", "getconf", "head", "mkdir"),
        *("mv", "rm", "sha256sum", "sort", "stat", "tar", "wc"),
    ):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    for number in range(1, len(manifest_of(here))):
        run_script(here, "send", str(number))
        done = run_script(here, "receive", PATH=str(tools))
        assert done.returncode == 0, done.stderr
    assert (here / "target/python").exists()


def test_mistakes_are_told_in_one_line(here: Path, tmp_path: Path) -> None:
    last = len(manifest_of(here)) - 1
    empty = tmp_path / "empty"
    for folder, words, expected in [
        (here, ("send", "0"), f"send: a piece from 1 to {last} expected, found 0"),
        (here, ("send", "99"), f"send: a piece from 1 to {last} expected, found 99"),
        (here, ("send", "one"), "send: a piece's number expected, found 'one'"),
        (
            empty,
            ("send", "1"),
            "pieces/manifest expected (scripts/gpu_bringup.sh pack), found none",
        ),
        (empty, ("receive",), "send/manifest expected"),
        (empty, ("check",), "target/python expected"),
        (
            empty,
            ("pack", "/nowhere"),
            "/nowhere: an environment of 'scripts/setup.sh --gpu' expected",
        ),
    ]:
        done = run_script(folder, *words)
        assert done.returncode == 1
        assert done.stderr.startswith("gpu_bringup: error: ")
        assert expected in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert run_script(here, "nonsense").returncode == 2
    assert "gpu_bringup.sh pack" in run_script(here, "--help").stdout


# --- on the machine -----------------------------------------------------------------------------


def test_probe_reads_nvidia_smi(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        '*query*) echo "NVIDIA H200, 580.159.04, 9.0, 143771 MiB";;\n'
        "-L) echo GPU 0;;\n"
        '*) echo "| NVIDIA-SMI 580.159.04   Driver Version: 580.159.04   CUDA Version: 13.0 |";;\n'
        "esac\n"
    )
    smi.chmod(0o755)
    done = run_script(tmp_path, "probe", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0
    assert "NVIDIA H200, 580.159.04, 9.0, 143771 MiB" in done.stdout
    assert "CUDA driver API: 13.0\n" in done.stdout
    assert "glibc 2." in done.stdout


def run_check(images: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", MODULE, *words, "--images", str(images), "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


has_driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi")


@pytest.mark.skipif(bool(has_driver), reason="a machine without a GPU expected")
def test_without_a_gpu_every_check_says_so(tmp_path: Path) -> None:
    assert run_script(tmp_path, "probe").returncode == 1
    done = run_check(tmp_path, tmp_path / "out", "facts", "refusal", "dlpack", "copy", "horovod")
    assert done.returncode == 1
    *rows, summary = done.stdout.splitlines()
    assert len(rows) == 5
    for line in rows:
        assert line.endswith("no GPU: a driver (libcuda.so.1) expected, found none")
    assert summary.startswith("check: 5 no GPU, in ")
    results = json.loads((tmp_path / "out/results.json").read_text())["checks"]
    assert {result["outcome"] for result in results.values()} == {"no GPU"}
    assert (tmp_path / "out/table.txt").read_text() == done.stdout


def test_a_rehearsal_runs_the_checks_themselves(packed: Path, tmp_path: Path) -> None:
    names = (
        "exit_codes",
        "dali_broken",
        "copy",
        "conv_backward-float32-NCHW",
        "batch_norm-float16",
    )
    done = run_check(packed / "stage/images", tmp_path / "out", *names, "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("check (rehearsal on a CPU): 5 pass, in ")
    broken = json.loads((tmp_path / "out/results.json").read_text())["checks"]["dali_broken"]
    assert "does not decode, skipped (1 of at most 1" in broken["found"]["broken, skip_bad=1"]


def test_what_ends_badly_or_not_at_all_stops_nothing(tmp_path: Path) -> None:
    late = check.run_check("copy", tmp_path, tmp_path, 0.01, True)
    assert late == {"outcome": "time out", "found": "an end within 0 s expected"}
    crash = check.run_check("no such check", tmp_path, tmp_path, 60, True)
    assert crash["outcome"] == "crash"
    assert crash["found"].startswith("exit code 2: ")
    error = check.run_check("dlpack", tmp_path / "nowhere", tmp_path, 60, True)
    assert error["outcome"] == "error"
    assert "nowhere/whole" in error["found"]
    done = run_check(tmp_path, tmp_path / "out", "nonsense")
    assert done.returncode == 2
    assert "horovod expected, found nonsense" in done.stderr
