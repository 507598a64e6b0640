"""ThreadSanitizer on the emulated kernels (races.cc): a block's threads meet at barriers alone."""

import subprocess
from pathlib import Path

from tests.train import emulated
from tests.waiting import finished

MAIN = Path(__file__).with_name("races.cc")
LAST_BARRIER = "  const float sum = parts[0];\n  __syncthreads();\n"
"""Of block_sum: without it sums are still right, most of the time."""


def run_under_sanitizer(
    source: Path,
    folder: Path,
) -> subprocess.CompletedProcess[str]:
    program = folder / "races"
    text = emulated.wrapper(source) + MAIN.read_text()
    emulated.compile_text(
        text,
        program,
        "-g",
        "-fsanitize=thread",
        "-Wno-tsan",
    )
    done = finished([program])
    # GCC's sanitizer on a kernel that scatters more
    if "unexpected memory mapping" in done.stderr:
        plain = ["setarch", "-R", program]
        done = finished(plain)
    return done


def test_kernels_that_sum_over_a_block_have_no_race(tmp_path: Path) -> None:
    done = run_under_sanitizer(emulated.SOURCE, tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[:3000]


def test_a_barrier_that_is_missing_is_noticed(tmp_path: Path) -> None:
    text = emulated.SOURCE.read_text()
    assert text.count(LAST_BARRIER) == 1
    copy = tmp_path / "device.cu"
    without = LAST_BARRIER.splitlines()[0] + "\n"
    copy.write_text(text.replace(LAST_BARRIER, without))
    done = run_under_sanitizer(copy, tmp_path)
    assert done.returncode == 66  # ThreadSanitizer's
    assert "data race" in done.stderr
    assert "block_sum" in done.stderr
