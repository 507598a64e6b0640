"""Checkpoints scored on ranks (`body.py`), by the evaluation of a run: its network, its images by
DALI, its shards, its counting (`evaluate.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.load import load
from ..config.manifest import Part
from ..config.schema import Run
from ..logging.timeline import Timeline
from .capabilities import decodes_on_gpu
from .checkpoint.file import Checkpoint, read_checkpoint
from .communication.connection import Connection
from .process_info import read_process_info

if TYPE_CHECKING:
    from .communication.communicator import Communicator


def score(out: Path, pairs: Sequence[tuple[str, str]]) -> list[dict[str, int]]:
    """The counts of `evaluate.Accuracy` over all ranks: a pass over the first run's images for each
    checkpoint, and for several one more by the mean of their softmax. Of a single one every rank
    leaves the guesses on its images in `out`.

    `pairs`: the config of a run, and its checkpoint.
    """
    process = read_process_info()
    runs = [load(config).run for config, _ in pairs]
    checkpoints = [read_checkpoint(Path(path)) for _, path in pairs]
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
        _network(run, checkpoint, comm)
        for run, checkpoint in zip(runs, checkpoints, strict=True)
    ]
    images = build_eval_source(
        run.data,
        batch_per_rank=run.eval.batch_per_rank,
        rank=process.rank,
        ranks=ranks,
        device_id=ctx.device_id if decodes_on_gpu(run) else None,
    )
    guesses = Guesses(nets[0])
    scorers = [guesses] if len(nets) == 1 else [*nets, partial(_ensemble, nets)]
    next_batch = batches_of(images, ctx)
    accuracies = [evaluate(scorer, next_batch, comm, run) for scorer in scorers]
    comm.stop()
    if len(nets) == 1:
        shard = Part(process.rank, ranks).images(run.data.eval_samples)
        guesses.save(guesses_file(out, process.rank), len(range(*shard)))
    return [accuracy._asdict() for accuracy in accuracies]


def guesses_file(out: Path, rank: int) -> Path:
    """The file of a rank's guesses."""
    return out / f"guesses.{rank}.npy"


class Guesses:
    """A network, and the likeliest classes of every image that it has scored."""

    def __init__(self, net: Any) -> None:
        self.net = net
        self.batches: list[Any] = []

    def __call__(self, images: Any) -> Any:
        """The scores of images, whose shares are sorted."""
        from mxnet import nd

        from .operators import TOP

        scores = self.net(images)
        shares = _softmax(scores)
        top_count = min(TOP, shares.shape[1])
        self.batches.append(nd.stack(*shares.topk(k=top_count, ret_typ="both"), axis=1))
        return scores

    def save(self, path: Path, images: int) -> None:
        """Write an array (image, 2, class): shares and classes, the likeliest first, without what
        only fills the last batch."""
        rows = np.concatenate([batch.asnumpy() for batch in self.batches])
        np.save(path, rows[:images])


def _network(run: Run, checkpoint: Checkpoint, comm: Communicator) -> Any:
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
        rank=comm.rank,
        ranks=comm.world_size,
        bn_stats=run.eval.bn_stats,
    )
    meta = checkpoint.meta
    if meta.statistics_rows > 1 and comm.world_size == meta.ranks:
        sync_bn_statistics(
            net, comm, mode=run.eval.bn_stats, active_ranks=active_ranks(checkpoint)
        )
    copy_parameters(net, eval_net, comm.operators)
    return eval_net


def _ensemble(nets: Sequence[Any], images: Any) -> Any:
    """The sum of the networks' softmax, which ranks classes as their mean."""
    from mxnet import nd

    from ..data.pipeline import on_device

    shares = [_softmax(net(images)) for net in nets]
    return on_device(nd.add_n(*shares), images.context)


def _softmax(scores: Any) -> Any:
    """The shares of classes. On the CPU, as MXNet has no code for some GPUs."""
    from mxnet import cpu, nd

    return nd.softmax(scores.as_in_context(cpu()).astype("float32"))
