"""Steps whose convolutions sum for the norm beside them, and apply it, each way forced: numbers,
what is refused, and what a step of a preset asks of the device."""

from typing import Any

import pytest

from rn50.launch.doctor import MOST_OFF
from tests.gpu.runs import Body
from tests.gpu.test_plan import distance, moved_megabytes

pytestmark = pytest.mark.slow
LAYERS = 53
STEM = 1
"""Its four channels no engine takes, and pooling reads it."""
LAST = 1
"""Averaged: no convolution's gradient leads to it."""
PROJECTIONS = 4
"""They have no ReLU."""
BACK = LAYERS - STEM - LAST - PROJECTIONS
INNER = 32
"""Norms that one convolution alone reads: two a block."""
CAPABILITY = "FAKECUDA_CAPABILITY"


def graphs_of(answer: dict[str, Any]) -> dict[str, int]:
    """Calls of cuDNN's backend by pattern."""
    name = "cudnnBackendExecute "
    return {
        key.removeprefix(name): count
        for key, count in answer["counts"].items()
        if key.startswith(name)
    }


@pytest.mark.parametrize(
    ("norms", "capability", "dtype", "patterns"),
    [
        ("EPILOGUE", "8.0", "float16", 3),
        ("EPILOGUE", "9.0", "float16", 3),
        ("MAIN_LOOP", "8.6", "float16", 5),
        ("MAIN_LOOP", "9.0", "float16", 5),
        ("EPILOGUE", "7.0", "float16", 0),
        ("MAIN_LOOP", "8.9", "float16", 0),
        ("MAIN_LOOP", "9.0", "float32", 0),
    ],
)
def test_losses_are_the_cpus_step_for_step(
    norms: str, capability: str, dtype: str, patterns: int, body: Body
) -> None:
    """A GPU without the engines runs our own kernels, as float32 does, and nothing is wrong."""
    options = {"do": "losses", "dtype": dtype, "layout": "NHWC"}
    answer = body({CAPABILITY: capability}, norms=norms, **options)
    assert distance(answer) <= MOST_OFF[dtype]
    assert len(graphs_of(answer)) == patterns
    assert "calls that are not deterministic" not in answer["counts"]
    assert "kernels not computed" not in answer["counts"]


def test_gradients_are_as_exact_as_with_cudnns_norms(body: Body) -> None:
    """Losses of units that begin as the identity say little of backward."""
    kinds = ["CUDNN", "OWN", "EPILOGUE", "MAIN_LOOP"]
    shares = body({CAPABILITY: "9.0"}, do="distances", kinds=kinds)["shares"]
    print(shares)
    assert max(shares.values()) < 1.5 * shares["CUDNN"]


@pytest.mark.parametrize(
    ("norms", "sums", "slopes", "applied", "limit", "most_calls"),
    [
        ("CUDNN", 0, 0, 0, 279, 278),
        ("OWN", 0, 0, 0, 345, 385),
        ("EPILOGUE", LAYERS - STEM, BACK, 0, 306, 338),
        ("MAIN_LOOP", LAYERS - STEM, BACK, INNER, 293, 306),
    ],
)
def test_a_step_of_a_preset_says_how_its_norms_run(
    norms: str,
    sums: int,
    slopes: int,
    applied: int,
    limit: int,
    most_calls: int,
    body: Body,
) -> None:
    answer = body(
        {CAPABILITY: "9.0", "FAKECUDA_COMPUTE": "0"},
        do="count",
        preset="dgxh100_8",
        overrides=["comm.groups=single"],
        norms=norms,
    )
    print(f"{answer['norms']}; {answer['calls']} calls")
    assert answer["norms"] == (
        f"{norms.lower()}: of {LAYERS} layers convolutions sum {sums}, "
        f"{slopes} in backward, and apply {applied}"
    )
    assert moved_megabytes(answer) <= limit
    assert answer["calls"] <= most_calls
    assert answer["each"]["launches"] <= answer["groups"] + 3
    assert answer["each"].get("cudaMalloc", 0) == 0
