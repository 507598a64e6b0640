"""Which norms run where, and how their kernels divide maps."""

import sys

import pytest

from rn50.train.gpu.code import PLAN_CAPABILITIES
from rn50.train.gpu.module import THREADS
from rn50.train.gpu.norms import (
    ANY,
    TABLE,
    Division,
    Gpu,
    Norms,
    Row,
    choose,
    gpu_of,
)
from tests.train import emulated

H200 = TABLE[9, 0]


def test_every_gpu_of_the_plan_has_a_row_for_every_batch() -> None:
    first, last = PLAN_CAPABILITIES
    assert (min(TABLE), max(TABLE)) == (first, last)
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
    chosen = [choose((8, 9), images) for images in (1, 64, 65, sys.maxsize)]
    assert chosen == [Norms.OWN, Norms.OWN, Norms.EPILOGUE, Norms.EPILOGUE]


@pytest.mark.parametrize("images", [1, 32, 208, 400])
@pytest.mark.parametrize(
    ("side", "channels"),
    [(112, 64), (56, 256), (28, 128), (7, 512), (7, 2048), (7, 13)],
)
@pytest.mark.parametrize("gpu", TABLE.values(), ids=map(str, TABLE))
def test_a_launch_fills_the_gpu_and_its_sums_are_few(
    gpu: Gpu, side: int, channels: int, images: int
) -> None:
    rows = images * side * side
    division = Division(gpu, rows, channels, 2)
    for launch in (division.sums(), division.apply()):
        assert launch.blocks % launch.slices == 0
        assert launch.blocks <= max(4 * gpu.multiprocessors, channels)
        assert launch.slices <= rows
        assert launch.maps == (rows, channels, 8, launch.slices)
    if images >= 208 and channels >= 64:
        assert division.apply().blocks >= gpu.multiprocessors
    sums = division.sums()
    assert sums.partials_bytes == 8 * channels * sums.slices
    assert sums.partials_bytes < max(0.12 * 2 * rows * channels, 16 * channels)


def test_small_maps_that_the_cache_holds_are_one_launch() -> None:
    def is_one_launch(gpu: Gpu, images: int, side: int) -> bool:
        return Division(gpu, images * side * side, 2048, 2).is_one_launch(2)

    assert is_one_launch(H200, 32, 7)
    assert not is_one_launch(H200, 32, 14)
    assert not is_one_launch(H200, 208, 7)
    assert not is_one_launch(TABLE[7, 0], 32, 7)  # 13 MB of 6
    assert is_one_launch(TABLE[7, 0], 8, 7)


def test_threads_and_vectors_are_the_kernels() -> None:
    text = emulated.SOURCE.read_text()
    assert f"#define THREADS {THREADS} " in text
    assert "Part<N, 4> part(maps);" in text
