from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.groups import gradient_groups

FUZZ = settings(max_examples=50)
RULES = st.one_of(
    st.just("single"),
    st.builds("cubic({})".format, st.integers(1, 50)),
    st.builds("equal_bytes({})".format, st.integers(1, 200)),
    st.builds("equal_count({})".format, st.integers(1, 200)),
    st.builds("halving({})".format, st.integers(1, 200)),
)
SIZES = st.lists(st.integers(1, 10**8), min_size=1, max_size=170)


def group_bytes(rule: str, sizes: list[int]) -> list[int]:
    n_bytes = []
    for group in gradient_groups(rule, sizes):
        n_bytes.append(sum(sizes[tensor] for tensor in group))
    return n_bytes


@pytest.mark.slow
@FUZZ
@given(rule=RULES, sizes=SIZES)
def test_every_rule_takes_each_tensor_once_last_layers_first(
    rule: str, sizes: list[int]
) -> None:
    groups = gradient_groups(rule, sizes)
    assert all(groups)
    assert list(chain(*groups)) == list(reversed(range(len(sizes))))


@FUZZ
@given(factor=st.integers(1, 20), tensors=st.integers(1, 400))
def test_cubic_groups_end_at_cubes_from_the_back(factor: int, tensors: int) -> None:
    groups = gradient_groups(f"cubic({factor})", [1] * tensors)
    for k, group in enumerate(groups, start=1):
        end = tensors - group[-1]
        assert end == min(factor * k**3, tensors)


@FUZZ
@given(sizes=SIZES, count=st.integers(1, 40))
def test_equal_bytes_is_balanced_within_the_largest_tensor(
    sizes: list[int], count: int
) -> None:
    n_bytes = group_bytes(f"equal_bytes({count})", sizes)
    assert len(n_bytes) <= count
    assert max(n_bytes) < sum(sizes) / count + max(sizes)


@FUZZ
@given(
    size=st.integers(1, 10**8), tensors=st.integers(1, 170), count=st.integers(1, 200)
)
def test_equal_count_differs_by_at_most_one(
    size: int, tensors: int, count: int
) -> None:
    groups = gradient_groups(f"equal_count({count})", [size] * tensors)
    lengths = list(map(len, groups))
    assert len(groups) == min(count, tensors)
    assert max(lengths) - min(lengths) <= 1


@FUZZ
@given(sizes=SIZES, count=st.integers(1, 12))
def test_halving_leaves_at_most_half_to_the_groups_that_follow(
    sizes: list[int], count: int
) -> None:
    *groups, _ = group_bytes(f"halving({count})", sizes)
    assert len(groups) < count
    remaining_bytes = sum(sizes)
    for n_bytes in groups:
        assert remaining_bytes / 2 <= n_bytes < remaining_bytes / 2 + max(sizes)
        remaining_bytes -= n_bytes


@pytest.mark.parametrize("rule", ["", "quadratic(3)", "Cubic(3)", "equal_bytes()"])
def test_an_unknown_rule_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"cubic\(F\), equal_bytes\(N\)"):
        gradient_groups(rule, [1, 2])


def test_explicit_sizes_are_taken_as_they_are() -> None:
    groups = gradient_groups("explicit(3,21,57,80)", [4] * 161)
    assert groups == gradient_groups("cubic(3)", [4] * 161)
    with pytest.raises(ValueError, match=r"161 tensors \(not to 24\)"):
        gradient_groups("explicit(3,21)", [4] * 161)
