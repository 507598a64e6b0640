"""Which norms run where, and how their kernels divide maps."""

import pytest

from rn50.train.cuda.code import PLAN_CAPABILITIES
from rn50.train.gpu.norms import ANY, TABLE, Division, Gpu, Norms, Row, choose, gpu_of

H200 = TABLE[9, 0]
SHAPES = {"stem": (112, 64), "wide": (56, 256), "deep": (7, 2048), "odd": (7, 13)}


def test_every_gpu_of_the_plan_has_a_row_for_every_batch() -> None:
    assert (min(TABLE), max(TABLE)) == PLAN_CAPABILITIES
    for gpu in TABLE.values():
        limits = [row.images for row in gpu.rows]
        assert limits == sorted(limits)
        assert limits[-1] == ANY
    assert gpu_of((8, 7)) == TABLE[8, 6]


def test_the_first_row_that_holds_a_batch_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (Row(64, Norms.OWN), Row(ANY, Norms.EPILOGUE))
    monkeypatch.setitem(TABLE, (8, 9), H200._replace(rows=rows))
    assert choose((8, 9), 64) is Norms.OWN
    assert choose((8, 9), 65) is Norms.EPILOGUE


@pytest.mark.parametrize("images", [1, 32, 400])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gpu", TABLE.values(), ids=map(str, TABLE))
def test_a_launch_fills_the_gpu_and_leaves_few_sums(
    gpu: Gpu, shape: str, images: int
) -> None:
    side, channels = SHAPES[shape]
    rows = images * side * side
    division = Division(gpu, rows, channels, 2)
    sums = division.sums()
    apply = division.apply()
    assert max(sums.blocks, apply.blocks) <= max(4 * gpu.multiprocessors, channels)
    if images == 400 and shape != "odd":
        assert apply.blocks >= gpu.multiprocessors
    tensor_bytes = 2 * rows * channels
    assert sums.partials_bytes < max(0.12 * tensor_bytes, 16 * channels)


def test_small_maps_that_the_cache_holds_are_one_launch() -> None:
    def is_one_launch(gpu: Gpu, images: int, side: int) -> bool:
        division = Division(gpu, images * side**2, 2048, 2)
        return division.is_one_launch(2)

    assert is_one_launch(H200, 32, 7)
    assert not is_one_launch(H200, 32, 14)
    assert not is_one_launch(H200, 208, 7)
    assert is_one_launch(TABLE[7, 0], 8, 7)
    assert not is_one_launch(TABLE[7, 0], 32, 7)  # 13 MB of 6
