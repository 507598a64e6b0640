"""The script for the day a GPU is there, from beginning to end on the fake one."""

import csv
import re
import shlex
import sys
from pathlib import Path

import pytest

from rn50.config.load import load_system
from tests.gpu.hardware_body import DEFAULTS
from tests.gpu.norm_rows import rows
from tests.gpu.on_hardware import (
    ALL_S,
    ROOT,
    Part,
    Row,
    fastest,
    kinds,
    main,
    outcome,
    sections,
)
from tests.gpu.runs import rows_of
from tests.waiting import finished

pytestmark = pytest.mark.slow
BATCHES = ("32", "208", "400")
OPTIONS = "--batches 2,3 --rounds 2 --steps 2 --patience 8"
SMALL = (
    "model.width=16",
    "model.depth=tiny",
    "data.crop_px=32",
    "data.eval_resize_px=36",
    "data.decoder=cpu",
    "data.classes=10",
    "data.synthetic={classes: 10, train_samples: 64, eval_samples: 20, min_px: 40, max_px: 50}",
    "batch.per_rank=4",
    "eval.batch_per_rank=4",
    "schedule.length=4 epochs",
    "eval.period=4",
    "eval.offset=3",
    "schedule.warmup=1 epochs",
)


def tables(page: Path, parts: str) -> dict[str, list[list[str]]]:
    """Rows of the CSV of these parts."""
    arguments = [str(page), *shlex.split(OPTIONS), "--parts", parts, *SMALL]
    command = [sys.executable, "-m", "tests.gpu.on_hardware", *arguments]
    done = finished(command, cwd=ROOT, timeout=8 * ALL_S)
    print(done.stderr[-2000:])
    print(page.read_text())
    assert done.returncode == 0
    contents = {}
    for name in parts.split(","):
        with (page.with_suffix("") / f"{name}.csv").open(newline="") as file:
            _, *contents[name] = csv.reader(file)
    return contents


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_a_part_has_its_limit_and_several_gpus_come_first(gpus: int) -> None:
    """One GPU ends within the promised minutes; several GPUs leave out the last parts."""
    page_sections = list(sections(BATCHES, "dgxh100_8", Path("results/gpu"), gpus))
    limits_s = [part.patience_s for section in page_sections for part in section.parts]
    assert len({section.name for section in page_sections}) == len(page_sections)
    assert sum(limits_s) <= ALL_S * (1 + (gpus > 1) / 3)
    assert (page_sections[0].name == "nccl") == (gpus > 1)
    names = [section.name for section in page_sections][-10:]
    assert names[:4] == ["calls", "engines", "norms", "ways"]


def test_one_gpu_fills_its_tables(computing: None, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.md"
    contents = tables(
        page, "machine,calls,engines,norms,ways,spin,steps,memory,deterministic"
    )
    machine = dict(contents["machine"])
    assert "fake" in machine
    assert re.fullmatch(r"[\d,]+ GB/s", machine["copy"])
    calls = [row for row in contents["calls"] if row[3]]
    for batch in ("2", "3"):
        of_batch = [row for row in calls if row[1] == batch]
        assert len(of_batch) > 90
        filters = [int(row[6]) for row in of_batch if "BackwardFilter" in row[3]]
        forward = [int(row[6]) for row in of_batch if "ConvolutionForward" in row[3]]
        assert sorted(filters) == sorted(forward)
        assert min(filters) > 0
    assert [row[0] for row in contents["spin"]] == ["0", "1", "8"]
    step_rows = [row[:3] for row in contents["steps"]]
    assert ["through Horovod", "2", "1.0"] in step_rows
    assert len(step_rows) == 9
    capabilities = {row[2] for row in contents["ways"]}
    assert capabilities == {"9.0"}
    assert {row[0] for row in contents["memory"]} == {"LAZY", "EAGER"}
    first = contents["deterministic"][:2]
    second = contents["deterministic"][2:]
    assert first == second
    page_text = page.read_text()
    assert all(f"| all | {batch} |" in page_text for batch in (2, 3))


def test_one_rank_trains_from_files(
    computing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (jpeg,) = (
        section
        for section in sections(["2"], "dgxh100_8", tmp_path, 1)
        if section.name == "jpeg"
    )
    options = DEFAULTS._replace(overrides=SMALL, folder=str(tmp_path))
    ((label, code, rate, step_ms, *_),), failure = outcome(
        jpeg.parts[0], options, limit_s=300
    )
    assert not failure
    assert label == "12 threads, hw_decoder_load 0.0"
    assert code == 1  # no target can be reached
    assert rate > 0
    assert step_ms > 0


def test_two_gpus_are_summed_compared_and_resumed(
    computing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_DEVICES", "2")
    contents = tables(tmp_path / "page.md", "nccl,groups,resume")
    nccl, peers = contents["nccl"]
    assert nccl[:2] == ["NCCL over 2 GPUs", "ok"]
    assert peers[:2] == ["peer access", "ok"]
    assert [row[0] for row in contents["groups"]] == [
        "single, 2 GPUs",
        "equal_bytes(8), 2 GPUs",
    ]
    assert all(float(row[2]) > 0 for row in contents["groups"])
    once, resumed = contents["resume"]
    assert "epochs=1" in once[-1]
    assert "epochs=2" in resumed[-1]


def test_calls_are_summed_by_kind_and_engines_by_the_fastest() -> None:
    header = ["kind", "batch", "layer", "call", "us", "bytes", "FLOP"]
    rows: list[Row] = [
        ["a", 2, "", "f", 10.0, 4_000_000, 20_000_000],
        ["b", 2, "", "g", 30.0, 0, 0],
        ["a", 2, "", "f", 30.0, 4_000_000, 60_000_000],
        ["update, from the host", 2, "", "", 5.0, 0, 0],
    ]
    _, *sums = kinds([header, *rows])
    assert sums[0] == ["a", 2, 2, "4.0", "0.04", "200", "2"]
    assert sums[1][:3] == ["all", 2, 3]
    engines: list[Row] = [
        ["filter", "graph", "engine", "us"],
        ["3x3", "forward", 0, 9.0],
        ["3x3", "forward", 1, 7.0],
        ["1x1", "forward", "none", ""],
    ]
    assert fastest(engines)[1:] == [
        ["3x3", "forward", 2, 1, 7.0],
        ["1x1", "forward", 1, "none", ""],
    ]
    assert fastest([["not there", "x"]]) == [["not there", "x"]]


def test_the_fastest_way_becomes_a_row_of_the_table(tmp_path: Path) -> None:
    lines = [
        "way,batch,capability,median ms,lowest,highest",
        "CUDNN,400,9.0,54.2,54,55",
        "OWN,400,9.0,49.9,49,50",
        "EPILOGUE,400,9.0,,,,refused",
        "CUDNN,32,9.0,6.7,6,7",
        "OWN,32,9.0,6.9,6,7",
        "OWN,208,9.0,27.0,6,7",
    ]
    (tmp_path / "ways.csv").write_text("\n".join(lines))
    assert list(rows(tmp_path)) == [
        "# 32: CUDNN 6.70, OWN 6.90 ms",
        "# 208: OWN 27.00 ms",
        "# 400: CUDNN 54.20, OWN 49.90 ms",
        "(9, 0): (Row(32, Norms.CUDNN), Row(ANY, Norms.OWN),)",
    ]


def test_bytes_of_a_step_are_those_that_predict_prices(
    fake_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 5 MB an image more: a strided convolution's input counts whole here."""
    rows = rows_of(monkeypatch, "calls", "208")
    counted = sum(row[5] for row in rows) / 208 / 1e6
    performance = load_system("dgxh100_own").performance
    assert performance is not None
    assert performance.bytes_per_image is not None
    assert 0 < counted - performance.bytes_per_image / 1e6 < 5


def test_a_part_that_fails_or_hangs_says_so_and_none_begins_too_late(
    fake_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_MEMORY_GIB", "1")
    options = DEFAULTS._replace(rounds=1, steps=1)
    rows, failure = outcome(Part(("steps", "400"), 400), options)
    assert not rows
    assert failure.startswith("exit code 1: ")
    _, failure = outcome(Part(("doctor",), 1))
    assert failure == "no end within 1 s"
    page = tmp_path / "page.md"
    assert main(shlex.split(f"{page} --patience 0 --parts calls,spin")) == 1
    assert page.read_text().count("**failed**: no time left") == 4


def test_ranks_of_two_gpus_that_nccl_refuses_are_told_in_its_words(
    fake_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nccl_message = (
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"
    )
    monkeypatch.setenv("FAKECUDA_DEVICES", "2")
    monkeypatch.setenv("FAKECUDA_NCCL_REFUSES", nccl_message)
    ((check, result, message),), failure = outcome(Part(("nccl",), 300, alone=False))
    assert not failure
    assert (check, result) == ("NCCL over 2 GPUs", "failed")
    assert nccl_message in message
    assert "NCCL_DEBUG" in message


def test_a_sum_that_is_wrong_is_no_success(
    fake_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_DEVICES", "2")
    monkeypatch.setenv("FAKECUDA_NCCL_DROPS", "1")
    ((_, result, message),), _ = outcome(Part(("nccl",), 300, alone=False))
    assert result == "failed"
    assert "wrong sums" in message
