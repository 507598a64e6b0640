"""Two steps and an evaluation of presets in one process: `python preset_steps.py OUT < JOBS`.

JOBS is a JSON object, preset name -> overrides; a # and what follows it in the name tell jobs of
one preset apart. One JSON line a job goes to stdout. One process for all: MXNet and Horovod take
seconds to load and start once in a process.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rn50  # noqa: F401  before MXNet, whose finder it installs

# isort: split
import numpy as np
from mxnet import nd

from rn50.config.load import load
from rn50.train.capabilities import check_supported
from rn50.train.context import RunContext
from rn50.train.loop import train_steps
from rn50.train.network.build import trainable
from rn50.train.process_info import ProcessInfo
from rn50.train.progress import Progress
from rn50.train.run import evaluate_epoch, log_point
from rn50.train.trainer import Trainer, start_up

STEPS = 2


def two_steps(name: str, overrides: list[str], out: Path) -> dict[str, Any]:
    """A run of the preset cut off after `STEPS` steps, then evaluated: calls and order of `run`."""
    loaded = load(name.partition("#")[0], overrides)
    check_supported(loaded.run)
    context = RunContext(loaded, out, ProcessInfo(0, 1, 0, "here"))
    context.progress = Progress(
        context.plan,
        loaded.run.eval.target,
        shown=False,
    )
    context.prepare()
    trainer = start_up(context)
    before = dict(weights(trainer))
    context.log.block_start(1, 1)
    context.log.epoch_start(1)
    for point in train_steps(trainer.steps, 1, STEPS, log_every=1):
        log_point(trainer, point)
    context.log.epoch_stop(1)
    nd.waitall()
    after = dict(weights(trainer))
    accuracy = evaluate_epoch(trainer, 1)
    context.log.block_stop(1)
    context.log.run_stop(success=False)
    everything = [
        p.data().asnumpy() for p in trainer.model.net.collect_params().values()
    ]
    lines = [
        json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()
    ]
    return {
        "train": [line for line in lines if line["kind"] == "train"],
        "evaluated": accuracy.total,
        "correct": accuracy.correct,
        "not_finite": sum(int((~np.isfinite(array)).sum()) for array in everything),
        "tensors": len(before),
        "first_weight": float(
            next(array.flat[0] for array in before.values() if array.std())
        ),
        "unchanged": [key for key in before if np.array_equal(before[key], after[key])],
        "log_state": context.log.state,
    }


def weights(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    for parameter in trainable(trainer.model.net):
        yield parameter.name, parameter.data().asnumpy()


def main(out: Path) -> None:
    faulthandler.enable()
    for name, overrides in json.load(sys.stdin).items():
        start_s = time.perf_counter()
        folder = out / name
        folder.mkdir()
        try:
            result = two_steps(name, overrides, folder)
        except Exception:
            result = {"error": traceback.format_exc()}
        result |= {"name": name, "seconds": round(time.perf_counter() - start_s, 2)}
        print(json.dumps(result), flush=True)
        gc.collect()  # nets and pipelines of this preset go before the next one's come


if __name__ == "__main__":
    main(Path(sys.argv[1]))
