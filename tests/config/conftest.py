from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one: origins are then plain file names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
