"""The script for the day a GPU is there, from beginning to end on the fake one."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rn50.config.load import load_system
from tests.gpu.hardware_body import DEFAULTS
from tests.gpu.on_hardware import ROOT, Part, outcome, sections
from tests.waiting import output_of

pytestmark = pytest.mark.slow
SMALL = ("model.width=16", "model.depth=tiny", "data.crop_px=32")
LONGEST_S = 15 * 60

Table = dict[str, list[str]]


def tables(page: str) -> Iterator[Table]:
    """The cells of each table's rows, by the first one."""
    for section in page.split("\n### ")[1:]:
        table = {}
        _, _, *rows = re.findall(r"^\| (.*) \|$", section, re.M)
        for row in rows:
            first, *cells = row.split(" | ")
            table[first] = cells
        yield table


def test_all_parts_together_take_15_minutes_at_most() -> None:
    """As docs/gpu.md and `make help` promise."""
    limits_s = []
    for section in sections(("32", "208", "400")):
        limits_s += [part.patience_s for part in section.parts]
    assert len(limits_s) > 10
    assert sum(limits_s) <= LONGEST_S


def test_the_page_is_written_to_its_end(
    fake_environment: Path,
    emulated: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKECUDA_LAZY", "1")
    monkeypatch.setenv("FAKECUDA_KERNELS", str(emulated))
    monkeypatch.setenv("FAKECUDA_CAPABILITY", "9.0")
    page = tmp_path / "new" / "page.md"
    options = shlex.split("--patience 4 --batches 2,3 --rounds 2 --steps 2")
    output_of(
        [
            sys.executable,
            "-m",
            "tests.gpu.on_hardware",
            str(page),
            *options,
            *SMALL,
        ],
        cwd=ROOT,
        timeout=4 * LONGEST_S,
    )
    print(page.read_text())
    machine, doctor, losses, rates, kinds, nccl = tables(page.read_text())
    assert "fake" in machine
    assert doctor["driver"][0] == doctor["GPU 0"][0] == "ok"
    cpu, gpu, gpu_half = map(float, losses["1"])
    assert gpu == pytest.approx(cpu, 1e-3)
    assert gpu_half == pytest.approx(cpu, 1e-3)
    assert list(rates) == [
        "graphs, 2",
        "graphs, 3",
        "eager, 2",
        "eager, 3",
        "operators, 2",
        "operators, 3",
    ]
    assert rates["operators, 2"][0].startswith("refused: model.step")
    assert float(rates["graphs, 2"][3]) > 0
    assert float(rates["eager, 3"][3]) > 0
    calls = int(kinds.pop("all")[0])
    del kinds["update, from the host"]
    assert calls == sum(int(cells[0]) for cells in kinds.values())
    assert calls > 90
    assert all(float(cells[0]) > 0 for cells in nccl.values())
    assert len(nccl) == 2


def test_bytes_of_a_step_are_those_that_predict_prices(
    fake_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 5 MB an image more: a strided convolution's input counts whole here."""
    monkeypatch.setenv("FAKECUDA_COMPUTE", "0")
    monkeypatch.setenv("FAKECUDA_CAPABILITY", "9.0")
    monkeypatch.setenv("FAKECUDA_MEMORY_GIB", "80")
    options = DEFAULTS._replace(rounds=1, steps=1)
    rows, ended = outcome(
        Part(("calls", "208"), 90),
        options,
        patience=4,
    )
    assert ended, rows
    counted = re.search(r"^\| all \| \d+ \| ([\d.]+)", rows, re.M)
    assert counted is not None
    about = load_system("dgxh100_own").performance
    assert about is not None
    assert about.bytes_per_image is not None
    assert 0 < float(counted[1]) - about.bytes_per_image / 1e6 < 5


def test_a_part_that_fails_or_hangs_says_so(
    fake_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_MEMORY_GIB", "1")
    rows, ended = outcome(Part(("rate", "graphs", "400"), 400))
    assert not ended
    assert "| rate graphs 400 | **failed**: exit code 1: " in rows
    rows, ended = outcome(Part(("losses",), 1))
    assert not ended
    assert "| losses | **failed**: no end within 1 s" in rows
