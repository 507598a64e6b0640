"""`python -m rn50.train.score RESULT CONFIG CHECKPOINT ...`: one rank that scores checkpoints.

Rank 0 leaves the counts in the file RESULT: of each checkpoint, and of several then those of their
ensemble. Of a single one every rank leaves the guesses on its images beside it, in RESULT with
.<rank>.npy in the place of .json. The evaluation is that of a run: its network, its images by DALI,
its shards, its counting (`evaluate.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.load import load
from ..config.manifest import Part
from ..config.schema import Run
from ..host.atomic import write_file
from ..logging.timeline import Timeline
from .__main__ import Rank
from .capabilities import decodes_on_gpu
from .checkpoint.file import Checkpoint, read_checkpoint
from .communication.connection import Connection
from .process_info import ProcessInfo

if TYPE_CHECKING:
    from .communication.communicator import Communicator


def main(result: Path, *pairs: Path) -> None:
    """Score on this rank. If that fails, the reason is left beside `result` and the process ends
    at once."""
    rank = Rank(result.parent, phase="evaluation")
    process = rank.process
    try:
        runs = [load(str(config)).run for config in pairs[::2]]
        checkpoints = list(map(read_checkpoint, pairs[1::2]))
        counts = score(runs, checkpoints, process, result)
        if process.rank == 0:
            write_file(result, json.dumps({"counts": counts}))
    except BaseException as error:  # whatever it was, the others must not wait
        rank.fail(error)


def score(
    runs: Sequence[Run],
    checkpoints: Sequence[Checkpoint],
    process: ProcessInfo,
    result: Path,
) -> list[dict[str, int]]:
    """The counts of `evaluate.Accuracy` over all ranks: a pass over the first run's images for each
    checkpoint, and for several one more by the mean of their softmax.

    Args:
        runs: the config of each checkpoint's run.
        checkpoints: in the same order.
        process: which rank this is.
        result: the file for the counts, beside which the guesses go.
    """
    run = runs[0]
    connection = Connection(run, Timeline(process.rank), over_mpi=process.over_mpi)
    connection.begin()
    from ..data.pipeline import build_eval_source
    from .communication.communicator import communicator, device_context
    from .devices import operators_for
    from .evaluate import evaluate
    from .trainer import batches_of

    ctx = device_context(run.system.device, process.local_rank)
    ranks = process.world_size
    comm = communicator(operators_for(run.model, ctx), connection, ranks)
    comm.start()
    nets = [
        _network(run, checkpoint, comm, process)
        for run, checkpoint in zip(runs, checkpoints, strict=True)
    ]
    images = build_eval_source(
        run.data,
        batch_per_rank=run.eval.batch_per_rank,
        rank=process.rank,
        ranks=ranks,
        device_id=ctx.device_id if decodes_on_gpu(run) else None,
    )
    scorers = list(nets)
    guesses = Guesses(nets[0])
    if len(nets) > 1:
        scorers.append(partial(_ensemble, nets))
    else:
        scorers = [guesses]
    next_batch = batches_of(images, ctx)
    accuracies = [evaluate(scorer, next_batch, comm, run) for scorer in scorers]
    comm.stop()
    if len(nets) == 1:
        shard = Part(process.rank, ranks).images(run.data.eval_samples)
        guesses.save(result.with_suffix(f".{process.rank}.npy"), len(range(*shard)))
    return [accuracy._asdict() for accuracy in accuracies]


class Guesses:
    """A network, and the likeliest classes of every image that it has scored."""

    def __init__(self, net: Any) -> None:
        self.net = net
        self.batches: list[Any] = []

    def __call__(self, images: Any) -> Any:
        """The scores of images. On the CPU their shares are sorted, as for an ensemble."""
        from mxnet import cpu, nd

        from .operators import TOP

        scores = self.net(images)
        shares = nd.softmax(scores.as_in_context(cpu()).astype("float32"))
        top_count = min(TOP, shares.shape[1])
        self.batches.append(nd.stack(*shares.topk(k=top_count, ret_typ="both"), axis=1))
        return scores

    def save(self, path: Path, images: int) -> None:
        """Write an array (image, 2, class): shares and classes, the likeliest first, without what
        only fills the last batch."""
        rows = np.concatenate([batch.asnumpy() for batch in self.batches])
        np.save(path, rows[:images])


def _network(
    run: Run, checkpoint: Checkpoint, comm: Communicator, process: ProcessInfo
) -> Any:
    """The evaluation network of a checkpoint. Batch-norm statistics are those that it holds; where
    they are each rank's own still, `eval.bn_stats` is done to them."""
    from .checkpoint.restore import active_ranks, restore
    from .evaluate import sync_bn_statistics
    from .network.build import build_networks, copy_parameters

    net, eval_net, _ = build_networks(
        run.model,
        run.data.classes,
        crop_px=run.data.crop_px,
        seed=0,
        operators=comm.operators,
    )
    # It waits for all before: the last network's statistics were reduced under the same name.
    restore(
        checkpoint,
        net,
        rank=process.rank,
        ranks=process.world_size,
        bn_stats=run.eval.bn_stats,
    )
    meta = checkpoint.meta
    if meta.statistics_rows > 1 and process.world_size == meta.ranks:
        sync_bn_statistics(
            net, comm, mode=run.eval.bn_stats, active_ranks=active_ranks(checkpoint)
        )
    copy_parameters(net, eval_net, comm.operators)
    return eval_net


def _ensemble(nets: Sequence[Any], images: Any) -> Any:
    """The sum of the networks' softmax, which ranks classes as their mean. On the CPU, as MXNet has
    no code for some GPUs."""
    from mxnet import cpu, nd

    from ..data.pipeline import on_device

    shares = []
    for net in nets:
        logits = net(images).as_in_context(cpu())
        shares.append(nd.softmax(logits.astype("float32")))
    return on_device(nd.add_n(*shares), images.context)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
