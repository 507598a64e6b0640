"""YAML that never ends: bases twice over on each level, files that are none, aliases, depth."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.config import yaml_nodes
from rn50.config.errors import UserError
from rn50.config.load import load, load_system
from rn50.config.names import list_presets
from rn50.sweep.definition import load_sweep

pytestmark = pytest.mark.usefixtures("alarm")


def refused(path: Path, read: Callable[[Path], object] = load) -> str:
    """The one line of a file that is no config."""
    with pytest.raises(UserError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def nested(folder: Path, levels: int, text: str) -> Path:
    """Files of which each is read by the one before as often as `text` has its name."""
    for level in range(levels):
        (folder / f"{level}.yaml").write_text(text.replace("NEXT", f"{level + 1}.yaml"))
    (folder / f"{levels}.yaml").write_text("")
    return folder / "0.yaml"


@pytest.mark.parametrize(
    "text",
    [
        "base: NEXT\noptimizer: {base: NEXT}\n",
        "base: NEXT\ndata: {base: NEXT}\nmodel: {base: NEXT}\nsystem: {base: NEXT}\n",
        "optimizer: {base: NEXT}\nbatch: {base: NEXT}\n",
    ],
)
def test_bases_twice_over_on_each_of_40_levels_end(tmp_path: Path, text: str) -> None:
    """A trillion reads of 40 small files; a section's file may have no sections of its own, yet
    each is read before that is known."""
    said = refused(nested(tmp_path, 40, text))
    assert "at most 32 bases in all expected, found more" in said


def test_a_long_chain_without_a_branch_ends_too(tmp_path: Path) -> None:
    said = refused(nested(tmp_path, 1000, "base: NEXT\n"))
    assert "at most 32 bases in all expected" in said
    assert load(nested(tmp_path, 20, "base: NEXT\n")).run.name == "run"


@pytest.mark.slow
def test_many_keys_in_many_bases_end(tmp_path: Path) -> None:
    """Each file is small enough; together they are not: every leaf is held against all others."""
    for level in range(6):
        keys = "".join(f"k{level}_{n}: 1\n" for n in range(900))
        (tmp_path / f"{level}.yaml").write_text(f"base: {level + 1}.yaml\n{keys}")
    (tmp_path / "6.yaml").write_text("")
    assert "at most 4000 keys with all bases expected" in refused(tmp_path / "0.yaml")


def test_no_preset_comes_near_the_limits() -> None:
    for name in list_presets():
        load(name)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 6 << 30)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("read", [load, load_sweep, lambda path: load_system(str(path))])
@pytest.mark.parametrize("plant", [fifo, zeros, sparse, loop])
def test_a_config_a_sweep_and_a_machine_are_regular_files(
    tmp_path: Path, plant: Callable[[Path], None], read: Callable[[Path], object]
) -> None:
    plant(tmp_path / "x.yaml")
    assert "x.yaml" in refused(tmp_path / "x.yaml", read)


@pytest.mark.parametrize("plant", [fifo, zeros, sparse, loop])
@pytest.mark.parametrize("text", ["base: x.yaml", "system: x.yaml", "optimizer: {base: x.yaml}"])
def test_so_are_its_bases(tmp_path: Path, plant: Callable[[Path], None], text: str) -> None:
    plant(tmp_path / "x.yaml")
    (tmp_path / "top.yaml").write_text(text)
    assert "x.yaml" in refused(tmp_path / "top.yaml")


@pytest.mark.parametrize("plant", [fifo, zeros, sparse])
def test_and_the_manifest_of_its_data(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / "manifest.json")
    (tmp_path / "top.yaml").write_text("data: {path: .}")
    if plant is sparse:
        assert "manifest.json: " in refused(tmp_path / "top.yaml")
    else:
        load(tmp_path / "top.yaml")  # no packed set there


def test_a_billion_laughs(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (tmp_path / "x.yaml").write_text("\n".join(lines))
    assert "at most 2000 keys and values expected" in refused(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text("a: &a {b: *a}")
    refused(tmp_path / "x.yaml")


@pytest.mark.parametrize("text", ["[" * 60_000, "{a: " * 15_000, "[[[[[1, 2], " * 5000])
def test_depth_is_refused_at_once(tmp_path: Path, text: str) -> None:
    """The reader itself takes six seconds to refuse 2,000 brackets."""
    (tmp_path / "x.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_nodes, "_compose", lambda text: pytest.fail("it was composed"))
        assert "at most 20 levels expected, found more" in refused(tmp_path / "x.yaml")


def test_an_anchor_used_again_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "x.yaml").write_text("name: &a x\nbatch: {per_rank: &a 4}\n")
    load(tmp_path / "x.yaml")
    assert not recwarn.list and capfd.readouterr() == ("", "")
