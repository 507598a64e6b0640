"""The part of a page from hardware about our norm kernels, whole on the fake."""

from collections import Counter
from pathlib import Path

import pytest

from tests.gpu.runs import rows_of

pytestmark = pytest.mark.slow


def test_every_norm_of_the_network_is_timed_both_ways(
    fake_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, *rows = rows_of(monkeypatch, "of_module", "hardware_norms", "32")
    assert {len(row) for row in rows} == {len(header)}
    calls = Counter[str]()
    for kernel, _, _, number, *_ in rows:
        calls[kernel] += number
    one_launch = calls["norm_half"]
    assert calls["norm_back_half"] == one_launch > 0
    for kernel in ("norm_terms", "normalise", "norm_slopes", "normalise_back"):
        assert calls[f"{kernel}_half"] == 53 - one_launch
    megabytes = {
        (kernel, size, channels): mb for kernel, size, channels, _, _, mb, _ in rows
    }
    stem = megabytes["norm_terms_half", 32 * 112 * 112, 64]
    assert stem == pytest.approx(32 * 112 * 112 * 64 * 2 / 1e6, rel=0.01)
