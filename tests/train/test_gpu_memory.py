"""Where a plan's values lie: never two at a place that are needed at a time."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from rn50.train.gpu.memory import ALIGN_BYTES, Buffer, place

USES = st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 12))


@given(st.lists(USES, max_size=25))
def test_values_that_live_together_lie_apart(uses: list[tuple[int, int, int]]) -> None:
    buffers = []
    for size_bytes, first, length in uses:
        buffer = Buffer(size_bytes)
        buffer.calls += [first, first + length]
        buffers.append((buffer, range(first, first + length + 1)))
    end_bytes = place([buffer for buffer, _ in buffers])
    for (a, life), (b, other) in combinations(buffers, 2):
        apart = (
            a.offset + a.size_bytes <= b.offset or b.offset + b.size_bytes <= a.offset
        )
        assert apart or not set(life) & set(other)
    for buffer, _ in buffers:
        assert buffer.offset % ALIGN_BYTES == 0
        assert buffer.offset + buffer.size_bytes <= end_bytes


def test_a_place_is_used_again() -> None:
    buffers = [Buffer(1024) for _ in range(4)]
    for number, buffer in enumerate(buffers):
        buffer.calls.append(2 * number)
    assert place(buffers) == 1024
