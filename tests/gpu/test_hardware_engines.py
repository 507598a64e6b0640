"""The part of `make gpu-hardware` about cuDNN's engines, whole on the fake."""

from pathlib import Path

import pytest

from tests.gpu.runs import rows_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("capability", "takes"), [("9.0", True), ("7.0", False)])
def test_every_graph_of_the_network_has_its_rows(
    capability: str,
    takes: bool,
    fake_environment: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = ("of_module", "hardware_engines", "4")
    header, *rows = rows_of(monkeypatch, *part, capability=capability)
    assert {len(row) for row in rows} == {len(header)}
    fused = [row for row in rows if "sums" in row[2] or "norm" in row[2]]
    plain = [row for row in rows if row not in fused]
    assert rows == fused + plain
    taken_layers = {row[0] for row in fused if row[3] != "none"}
    layers = {row[0]: row[1] for row in plain}
    assert sum(layers.values()) == 53
    stem = {name for name in layers if name.startswith("7x7")}
    assert taken_layers == (layers.keys() - stem if takes else set())
    assert "none" not in {row[3] for row in plain}
