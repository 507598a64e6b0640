"""The script for the day a GPU is there, from beginning to end on the fake one."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rn50.config.load import load_system
from tests.gpu.on_hardware import ROOT, Part, outcome, sections

pytestmark = pytest.mark.slow
SMALL = ("model.width=16", "model.depth=tiny", "data.crop_px=32")
LONGEST_S = 15 * 60

Tables = list[list[list[str]]]


def tables(page: str) -> Tables:
    """The cells of each table's rows."""
    found: Tables = []
    for section in page.split("\n### ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("| ")]
        found.append(
            [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
        )
    return found


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
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.gpu.on_hardware",
            str(page),
            *options,
            *SMALL,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(page.read_text())
    machine, doctor, losses, rates, kinds, nccl = tables(page.read_text())
    assert machine[0][0] == "fake"
    assert {"driver", "GPU 0"} <= {check for check, found, _ in doctor if found == "ok"}
    assert [float(value) for value in losses[0][1:]] == pytest.approx(
        [float(losses[0][1])] * 3, 1e-3
    )
    named = {cells[0]: cells[1:] for cells in rates}
    assert set(named) == {
        f"{r}, {b}" for r in ("graphs", "eager", "operators") for b in (2, 3)
    }
    assert named["operators, 2"][0].startswith("refused: model.step")
    assert float(named["graphs, 2"][3]) > 0
    assert float(named["eager, 3"][3]) > 0
    counts = {cells[0]: int(cells[1]) for cells in kinds}
    assert (
        counts.pop("all") == sum(counts.values()) - counts["update, from the host"] > 90
    )
    assert [float(cells[1]) > 0 for cells in nccl] == [True, True]


def test_bytes_of_a_step_are_those_that_predict_prices(
    fake_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 5 MB an image more: a strided convolution's input counts whole here."""
    monkeypatch.setenv("FAKECUDA_COMPUTE", "0")
    monkeypatch.setenv("FAKECUDA_CAPABILITY", "9.0")
    monkeypatch.setenv("FAKECUDA_MEMORY_GIB", "80")
    options = ("--rounds", "1", "--steps", "1")
    rows, ended = outcome(
        Part(("calls", "208"), 90),
        options,
        patience=4,
    )
    assert ended, rows
    counted = next(
        line.split("|") for line in rows.splitlines() if line.startswith("| all ")
    )
    about = load_system("dgxh100_own").performance
    assert about is not None
    assert about.bytes_per_image is not None
    assert 0 < float(counted[3]) - about.bytes_per_image / 1e6 < 5


def test_a_part_that_fails_or_hangs_says_so(
    fake_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_MEMORY_GIB", "1")
    for part, reason in (
        (Part(("rate", "graphs", "400"), 400), "exit code 1: "),
        (Part(("losses",), 1), "no end within 1 s"),
    ):
        rows, ended = outcome(part, ())
        assert not ended
        assert rows.splitlines()[-1].startswith(
            f"| {' '.join(part.words)} | **failed**: {reason}"
        )


def test_all_parts_together_take_15_minutes_at_most() -> None:
    every = [
        part for section in sections(("32", "208", "400")) for part in section.parts
    ]
    assert sum(part.patience_s for part in every) <= LONGEST_S
    assert len(every) > 10
