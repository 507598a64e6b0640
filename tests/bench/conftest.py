"""Benchmarks run as a user runs them."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.conftest import Rn50

Measure: TypeAlias = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def measure(rn50: Rn50, tmp_path: Path) -> Measure:
    """`measure("bench loop quick", *overrides)`: what `--json` prints, and the plot's SVG. Nothing
    else is left."""

    def run(command: str, *overrides: str) -> tuple[dict[str, Any], str]:
        plot = tmp_path / "plot.svg"
        results = tmp_path / "results"
        options = ("--json", "--plot", str(plot), f"system.results={results}")
        printed = rn50.output(*shlex.split(command), *overrides, *options)
        assert not any(results.glob("*"))
        return json.loads(printed), plot.read_text()

    return run
