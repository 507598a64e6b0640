"""docs/own_data.md does what it says: its commands run in order, and print the lines it shows."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from rn50.config.manifest import load_manifest
from tests.waiting import leave_nothing, wait_until

pytestmark = pytest.mark.slow

SMALLER = {
    "--train 1500": "--train 480",
    "base: quick": "base: smoke",
    "target: 0.8": "target: 0.35",
}
INTERRUPT = "# press Ctrl-C"


class Block(NamedTuple):
    """Commands of the page, and the lines that it shows of what they print."""

    commands: str
    expected_lines: list[str]


def blocks(page: str) -> Iterator[Block]:
    """Each ```bash block, with the ```text block right behind it if there is one."""
    fence = r"```bash\n(.*?)```\n(?:\n```text\n(.*?)```)?"
    for commands, output in re.findall(fence, page, re.DOTALL):
        lines = [line for line in output.splitlines() if line.strip(". ")]
        yield Block(commands, lines)


def shape(line: str) -> str:
    """A line without its numbers, times and widths."""
    line = re.sub(r"[\d,.]*\d[\dTZ:.,]*", "#", line)
    line = re.sub(r"[<>]=?", "<", line)
    return " ".join(line.split())


def is_printed(line: str, printed: set[str]) -> bool:
    """Whether a line is among them; one that ends in "..." goes on in a way that varies."""
    expected = shape(line.removesuffix("..."))
    if line.endswith("..."):
        return any(printed_line.startswith(expected) for printed_line in printed)
    return expected in printed


def run(commands: str, folder: Path) -> str:
    """What a block prints; Ctrl-C at the first checkpoint where it says so."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "200",
    }
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    stopped = INTERRUPT in commands
    if stopped:
        checkpoints = lambda: list(folder.glob("results/*/*/checkpoint/*.ckpt"))  # noqa: E731
        wait_until(lambda: checkpoints() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == (130 if stopped else 0), f"{commands}\n{out}"
    return out


def test_smaller_copies_lose_nothing(root: Path, tmp_path: Path) -> None:
    """Photos whose names differ by suffix alone, deep in a class, transparent, of 16 bits."""
    (commands,) = (
        block.commands
        for block in blocks((root / "docs/own_data.md").read_text())
        if "thumbnail" in block.commands
    )
    for name, mode, level in (
        ("a/1.png", "RGBA", 0),
        ("a/1.jpg", "RGB", 0),
        ("b/c/2.png", "I;16", 30_000),
        ("b/3.png", "P", 0),
    ):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.new(mode, (600, 300), level)
        image.save(path)
    (tmp_path / "photos/b/notes.txt").write_text("no image")
    assert "photos/b/notes.txt" in run(commands, tmp_path)
    small = tmp_path / "small"
    pixels = {}
    for path in small.rglob("*.jpg"):
        name = str(path.relative_to(small))
        image = Image.open(path)
        pixels[name] = image.getpixel((9, 9))
    assert pixels == {
        "a/1.png.jpg": (255, 255, 255),
        "a/1.jpg.jpg": (0, 0, 0),
        "b/c/2.png.jpg": (117, 117, 117),
        "b/3.png.jpg": (0, 0, 0),
    }
    manifest = load_manifest(tmp_path / "datasets/small")
    assert manifest.counts == (2, 2, 2)


@pytest.mark.nightly
def test_the_page_is_walked_as_it_stands(root: Path, tmp_path: Path) -> None:
    page = (root / "docs/own_data.md").read_text()
    for long, short in SMALLER.items():
        assert long in page
        page = page.replace(long, short)
    page_blocks = list(blocks(page))
    assert len(page_blocks) >= 9
    assert sum(INTERRUPT in block.commands for block in page_blocks) == 1
    for commands, expected_lines in page_blocks:
        out = run(commands, tmp_path)
        printed = {shape(line) for line in out.splitlines()}
        for line in expected_lines:
            assert is_printed(line, printed), (
                f"{line!r} is not printed by\n{commands}\nbut\n{out}"
            )
    leave_nothing(tmp_path)
