"""A checkpoint as a run of `smoke` leaves it, for tests that load no MXNet."""

from pathlib import Path
from typing import Any

import numpy as np

from rn50.config.load import load
from rn50.train.checkpoint.file import file_name, write_checkpoint
from rn50.train.checkpoint.state import LossScaleState, Meta, TrainState
from rn50.train.communication.identity import image_set_in

CONFIG = ("smoke", ["seed=1"])


def meta(step: int = 7, **changes: Any) -> Meta:
    loaded = load(*CONFIG)
    values: dict[str, Any] = {
        "state": TrainState(step=step, best_accuracy=0.75),
        "log_bytes": 100,
        "metrics_bytes": 50,
        "run_started_unix_s": 1.5,
        "previous_lr": 0.1 + 0.2,
        "loss_scale": LossScaleState(value=0.5, checks=((7, 0.5, True),)),
        "ranks": 2,
        "statistics_rows": 1,
        "config_sha256": loaded.sha256,
        "config": loaded.to_dict(),
        "image_set": image_set_in(Path(loaded.run.data.path)) or "none here",
    }
    return Meta(**values | changes)


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "weight/a": rng.standard_normal((3, 5)).astype(np.float32),
        "velocity/a": rng.standard_normal((7,)).astype(np.float16),
        "empty": np.zeros((2, 0), np.float32),
        "statistics/a": rng.standard_normal((2, 3)).astype(np.float32)[:, 1:],
    }


def leave_checkpoint(folder: Path, step: int = 7, **changes: Any) -> Path:
    path = folder / file_name(step)
    write_checkpoint(path, meta(step, **changes), arrays())
    return path
