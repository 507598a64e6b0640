"""A launch that fails in the last run of its segment, which is never called again to say so: no
score, no checkpoint and no result rests on it."""

import json
from pathlib import Path

import pytest

from rn50.launch.ending import RunError
from rn50.logging.parse import read_events
from tests.gpu.runs import ONE_RANK, SHORT, GpuRun

pytestmark = pytest.mark.slow
STEPS = 50
"""The steps of an epoch: 1,000 images by 20."""
BATCHES = 20
"""The batches of an evaluation: 400 images by 20."""
WARM_UP = 2
"""Batches before the first evaluation."""
WORDS = (
    *ONE_RANK,
    *SHORT,
    "batch.per_rank=20",
    "eval.batch_per_rank=20",
    "log.every=1000 steps",
)


@pytest.mark.parametrize(
    ("what", "number", "settings", "evaluations"),
    [
        pytest.param("step", STEPS, (), 0, id="before an evaluation"),
        pytest.param("batch", WARM_UP + BATCHES, (), 0, id="end of an evaluation"),
        pytest.param("step", 10, ("checkpoint.every=10 steps",), 0, id="checkpoint"),
        pytest.param("batch", WARM_UP + 2 * BATCHES, (), 1, id="end of the run"),
    ],
)
def test_nothing_is_concluded_from_work_that_failed(
    what: str,
    number: int,
    settings: tuple[str, ...],
    evaluations: int,
    gpu_run: GpuRun,
    tmp_path: Path,
) -> None:
    with pytest.raises(RunError, match="success expected on the GPU, found status 719"):
        gpu_run(*WORDS, *settings, accuracy=[0.5, 0.9], fails=[what, number])
    (out,) = tmp_path.glob("job0/*/*/")
    result = json.loads((out / "result.json").read_text())
    assert result["status"] == "failed"
    events = read_events(out / "result_0.txt")
    keys = [event.key for event in events]
    assert keys.count("eval_accuracy") == evaluations
    assert events[-1].key == "run_stop"
    assert events[-1].metadata["status"] == "aborted"
    saved = sorted(path.name for path in out.glob("checkpoint/*"))
    assert len(saved) == 2 * evaluations, (
        saved
    )  # of the first evaluation, and as the best
