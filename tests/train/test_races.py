"""ThreadSanitizer on the emulated kernels (races.cc): a block's threads meet at barriers alone."""

import subprocess
from pathlib import Path

import pytest

from tests.train import emulated
from tests.waiting import finished

MAIN = Path(__file__).with_name("races.cc")
BARRIERS = {
    "block_sum": "  const float sum = parts[0];\n  __syncthreads();\n",
    "add_threads": "    rest = half;\n    __syncthreads();\n",
}
"""The last of a function: without it sums are still right, most of the time."""


def run_under_sanitizer(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder / "races"
    code = emulated.wrapper(source) + MAIN.read_text()
    emulated.compile_text(code, program, "-g", "-fsanitize=thread", "-Wno-tsan")
    done = finished([program])
    # GCC's sanitizer on a kernel that scatters more
    if "unexpected memory mapping" in done.stderr:
        plain = ("setarch", "-R", program)
        done = finished(plain)
    return done


def test_kernels_that_sum_over_a_block_have_no_race(tmp_path: Path) -> None:
    done = run_under_sanitizer(emulated.SOURCE, tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[:3000]


@pytest.mark.nightly
@pytest.mark.parametrize("function", BARRIERS)
def test_a_barrier_that_is_missing_is_noticed(function: str, tmp_path: Path) -> None:
    code = emulated.SOURCE.read_text()
    lines = BARRIERS[function]
    assert code.count(lines) == 1
    copy = tmp_path / "device.cu"
    without = lines.splitlines()[0] + "\n"
    copy.write_text(code.replace(lines, without))
    done = run_under_sanitizer(copy, tmp_path)
    assert done.returncode == 66  # ThreadSanitizer's
    assert "data race" in done.stderr
    assert function in done.stderr
