"""The places of a plan's values: never two at one that are needed at a time."""

from itertools import combinations
from operator import attrgetter

from hypothesis import given
from hypothesis import strategies as st

from rn50.train.gpu.memory import ALIGN_BYTES, Buffer, lay_out

USES = st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 12))


@given(st.lists(USES, max_size=25))
def test_values_that_live_together_lie_apart(uses: list[tuple[int, int, int]]) -> None:
    buffers = []
    for size_bytes, first, length in uses:
        buffer = Buffer(size_bytes)
        buffer.calls += range(first, first + length + 1)
        buffers.append(buffer)
    end_bytes = lay_out(buffers)
    for pair in combinations(buffers, 2):
        low, high = sorted(pair, key=attrgetter("offset", "size_bytes"))
        is_apart = low.offset + low.size_bytes <= high.offset
        assert is_apart or not set(low.calls) & set(high.calls)
    for buffer in buffers:
        assert buffer.offset % ALIGN_BYTES == 0
        assert buffer.offset + buffer.size_bytes <= end_bytes


def test_a_place_is_used_again() -> None:
    buffers = [Buffer(1024) for _ in range(4)]
    for number, buffer in enumerate(buffers):
        buffer.calls.append(2 * number)
    assert lay_out(buffers) == 1024
