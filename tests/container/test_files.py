"""The container's files without a container."""

from pathlib import Path

import pytest

from rn50.launch.engine_environment import EngineSettings
from rn50.launch.environment_record import describe_environment
from rn50.logging.records import Commit
from tests.rooms import ROOMS


def test_the_context_holds_the_rooms_and_nothing_else(root: Path) -> None:
    """All is left out first, so that no result, key or environment gets into an image; of data/
    only the sources are let in, because readers put images there."""
    lines = [
        line
        for line in (root / ".dockerignore").read_text().splitlines()
        if line[:1] != "#"
    ]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    files = {
        "LICENSE",
        "pyproject.toml",
        "requirements",
        "requirements*.txt",
        "run_and_time.sh",
    }
    folders = {*ROOMS, "rn50", "scripts"} - {"data"}
    assert let_in == folders | files | {"data/*.py"}


def test_the_pages_containers_run_as_the_reader_and_leave_the_checkout_alone(
    root: Path,
) -> None:
    page = (root / "docs/containers.md").read_text().replace("\\\n", " ")
    lines = page.splitlines()
    commands = [line for line in lines if line.startswith("docker run ")]
    assert len(commands) > 4
    for command in commands:
        assert "--user $(id -u):$(id -g)" in command
        assert "PWD" not in command


@pytest.mark.parametrize(
    ("variable", "git"),
    [
        ("ab12", Commit("ab12", modified=False)),
        ("ab12-dirty", Commit("ab12", modified=True)),
    ],
)
def test_an_image_knows_the_commit_it_was_built_from(
    monkeypatch: pytest.MonkeyPatch, variable: str, git: Commit
) -> None:
    monkeypatch.setenv("RN50_COMMIT", variable)
    settings = EngineSettings({}, {})
    assert describe_environment(settings, "gloo", ["true"]).git == git
