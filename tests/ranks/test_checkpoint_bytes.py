"""What each rank writes of a checkpoint, on real ranks (docs/notebook/reliability.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save

from rn50.config.load import load
from rn50.train import checkpoint, checkpoint_folder
from rn50.train.networks import build_networks, trainable

pytestmark = pytest.mark.slow


def expected_bytes() -> tuple[int, int]:
    """(rank 0's part, that of any other rank), by the layout of the network alone."""
    run = load("smoke").run
    net, _, _ = build_networks(
        run.model, run.data.classes, crop_px=run.data.crop_px, seed=1, ctx=mx.cpu()
    )
    learned = {f"{kind}/{p.name}": p for p in trainable(net) for kind in ("weight", "velocity")}
    own = {f"statistics/{p.name}": p for p in net.collect_params().values()}
    own = {name: p for name, p in own.items() if p.grad_req == "null"}

    def size(parameters: dict[str, Any]) -> int:
        return len(save({name: np.zeros(p.shape, np.float32) for name, p in parameters.items()}))

    return size(learned | own), size(own)


def test_bytes_of_a_checkpoint(rn50: Any, smoke_data: Path) -> None:
    rn50(
        *(
            "launch",
            "smoke",
            "seed=1",
            "schedule.length=2 epochs",
        ),
        *("eval.period=1", "eval.offset=0", "eval.target=0.999", "limits.min_accuracy_by=2 epochs"),
        *("checkpoint.every=20 steps", "checkpoint.keep=99", f"data.path={smoke_data}"),
        f"system.results={rn50.results}",
    )
    folder = rn50.run_folder() / "checkpoint"
    of_rank_0, of_others = expected_bytes()
    found = {path: checkpoint.read(path) for path in checkpoint_folder.listed(folder)}
    evaluated = {path for path, c in found.items() if c.meta.state.epochs_evaluated}
    right_after = {p for p in evaluated if found[p].meta.step % 50 == 0}
    assert right_after and len(found) > len(right_after)
    for path, one in found.items():
        one.verify()
        ranks_with_parts = 1 if path in right_after else 2
        sizes = [part.size_bytes for part in one.parts]
        assert sizes == [of_rank_0, *[of_others] * (ranks_with_parts - 1)]
        others = [load_file(one.file_of(part)) for part in one.parts[1:]]
        assert all(name.startswith("statistics/") for held in others for name in held)
    best = checkpoint.read(folder / checkpoint.BEST)
    best.verify()
    assert len(best.parts) == 1 and best.meta.state.best_accuracy == best.meta.state.accuracy
