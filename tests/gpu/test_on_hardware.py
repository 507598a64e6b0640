"""The script for the day a GPU is there, from beginning to end on the fake one."""

import csv
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from rn50.config.load import load, load_system
from tests.gpu.hardware_body import DEFAULTS
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
from tests.waiting import finished, output_of

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
    words = [str(page), *shlex.split(OPTIONS), "--parts", parts, *SMALL]
    command = [sys.executable, "-m", "tests.gpu.on_hardware", *words]
    done = finished(command, cwd=ROOT, timeout=8 * ALL_S)
    print(done.stderr[-2000:])
    print(page.read_text())
    assert done.returncode == 0
    found = {}
    for name in parts.split(","):
        with (page.with_suffix("") / f"{name}.csv").open(newline="") as file:
            _, *found[name] = csv.reader(file)
    return found


@pytest.fixture
def computing(
    fake_environment: Path, emulated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_LAZY", "1")
    monkeypatch.setenv("FAKECUDA_KERNELS", str(emulated))
    monkeypatch.setenv("FAKECUDA_CAPABILITY", "9.0")


def test_a_part_has_its_limit() -> None:
    """One GPU ends within the promised minutes."""
    found = list(sections(BATCHES))
    limits_s = [part.patience_s for section in found for part in section.parts]
    assert len({section.name for section in found}) == len(found)
    assert sum(limits_s) <= ALL_S


def test_whole_runs_have_overrides_that_are_some() -> None:
    script = (ROOT / "tests/gpu/on_hardware.sh").read_text()
    (drawn,) = re.findall(r"^drawn=\((.*?)^\)", script, re.M | re.S)
    words = [*shlex.split(drawn), "data.decode_threads=12", "data.hw_decoder_load=0.3"]
    for groups in ("single", "equal_bytes(8)"):
        run = load("dgxh100_8", [*words, f"comm.groups={groups}"]).run
        assert run.data.synthetic is not None
        assert run.data.synthetic.train_samples == 8 * 400


def test_one_gpu_fills_its_tables(computing: None, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.md"
    found = tables(page, "machine,calls,engines,ways,steps,memory,deterministic")
    machine = dict(found["machine"])
    assert "fake" in machine
    assert re.fullmatch(r"[\d,]+ GB/s", machine["copy"])
    calls = [row for row in found["calls"] if row[3]]
    for batch in ("2", "3"):
        of_batch = [row for row in calls if row[1] == batch]
        assert len(of_batch) > 90
        filters = [int(row[6]) for row in of_batch if "BackwardFilter" in row[3]]
        forward = [int(row[6]) for row in of_batch if "ConvolutionForward" in row[3]]
        assert sorted(filters) == sorted(forward)
        assert min(filters) > 0
    assert {row[2] for row in found["engines"]} >= {"forward", "data", "filter"}
    ways = [row[:3] for row in found["steps"]]
    assert ["through Horovod", "2", "1.0"] in ways
    assert len(ways) == 9
    capabilities = {row[2] for row in found["ways"]}
    assert capabilities == {"9.0"}
    assert {row[0] for row in found["memory"]} == {"LAZY", "EAGER"}
    first = found["deterministic"][:2]
    second = found["deterministic"][2:]
    assert first == second
    page_text = page.read_text()
    assert all(f"| all | {batch} |" in page_text for batch in (2, 3))


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


def test_bytes_of_a_step_are_those_that_predict_prices(
    fake_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 5 MB an image more: a strided convolution's input counts whole here."""
    monkeypatch.setenv("FAKECUDA_COMPUTE", "0")
    monkeypatch.setenv("FAKECUDA_CAPABILITY", "9.0")
    monkeypatch.setenv("FAKECUDA_MEMORY_GIB", "80")
    options = DEFAULTS._replace(rounds=1, steps=1)
    rows, failure = outcome(Part(("calls", "208"), 360), options)
    assert not failure
    counted = sum(row[5] for row in rows) / 208 / 1e6
    about = load_system("dgxh100_own").performance
    assert about is not None
    assert about.bytes_per_image is not None
    assert 0 < counted - about.bytes_per_image / 1e6 < 5


def test_a_part_that_fails_or_hangs_says_so_and_none_begins_too_late(
    fake_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_MEMORY_GIB", "1")
    options = DEFAULTS._replace(rounds=1, steps=1)
    rows, failure = outcome(Part(("steps", "400"), 400), options)
    assert not rows
    assert failure.startswith("exit code 1: ")
    _, failure = outcome(Part(("machine", "2"), 1))
    assert failure == "no end within 1 s"
    page = tmp_path / "page.md"
    assert main(shlex.split(f"{page} --patience 0 --parts calls,ways")) == 1
    assert page.read_text().count("**failed**: no time left") == 4


REFUSES = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"
TOGETHER = """
import json
from rn50.launch.doctor import gpus_together
print(json.dumps([*gpus_together(2)]))
"""


@pytest.mark.parametrize(
    ("variable", "value", "outcomes", "told"),
    [
        ("FAKECUDA_NCCL", "1", ["ok", "ok"], ("",)),
        ("FAKECUDA_NCCL_REFUSES", REFUSES, ["failed"], (REFUSES, "NCCL_DEBUG")),
        ("FAKECUDA_NCCL_DROPS", "1", ["failed"], ("wrong sums",)),
    ],
)
def test_doctor_sums_over_two_gpus_and_says_what_nccl_says(
    fake_environment: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    outcomes: list[str],
    told: tuple[str, ...],
) -> None:
    monkeypatch.setenv("FAKECUDA_DEVICES", "2")
    monkeypatch.setenv(variable, value)
    printed = output_of([sys.executable, "-c", TOGETHER], cwd=ROOT, timeout=300)
    rows = json.loads(printed.splitlines()[-1])
    checks = [check for check, *_ in rows]
    assert checks == ["NCCL over 2 GPUs", "peer access"][: len(outcomes)]
    assert [outcome for _, outcome, _ in rows] == outcomes
    assert all(words in rows[0][2] for words in told)
