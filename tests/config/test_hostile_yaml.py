"""Files that are no config: of another kind than a regular file, with aliases, or too deep."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load, load_system
from rn50.sweep.definition import load_sweep

pytestmark = pytest.mark.usefixtures("alarm")


def refused(path: Path, read: Callable[[Path], object] = load) -> str:
    """The one line of a file that is no config."""
    with pytest.raises(UserError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("read", [load, load_sweep, lambda path: load_system(str(path))])
@pytest.mark.parametrize("kind", ["a FIFO", "a device", "a large file", "a link to itself"])
def test_a_config_a_sweep_and_a_machine_are_regular_files(
    tmp_path: Path, kind: str, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "x.yaml"
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a large file":
        path.touch()
        os.truncate(path, 6 << 30)
    else:
        path.symlink_to("/dev/zero" if kind == "a device" else path.name)
    assert "x.yaml" in refused(path, read)
    for text in ("base: x.yaml", "system: x.yaml"):
        (tmp_path / "top.yaml").write_text(text)
        assert "x.yaml" in refused(tmp_path / "top.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 60_000, "too many levels"),
        ("{a: " * 15_000, "too many levels"),
        ("a: &a {b: *a}\n", "x.yaml:1: .*alias"),
    ],
)
def test_depth_and_aliases_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=expected):
        load(tmp_path / "x.yaml")
