"""`python -m rn50.train.score RESULT CONFIG CHECKPOINT`: one rank that scores a checkpoint.

Rank 0 leaves the counts in the file RESULT. The evaluation is that of a run: its network, its
images by DALI, its shards, its counting (`evaluate.py`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ..config.atomic import write_file
from ..config.load import load
from ..config.schema import Run
from ..data.sampling import eval_batches
from ..logging.timeline import Timeline
from . import checkpoint
from .__main__ import end_failed
from .capabilities import decodes_on_gpu
from .checkpoint import Checkpoint
from .connection import Connection
from .process_info import ProcessInfo, read_process_info


def main(result: Path, config: Path, path: Path) -> None:
    """Score on this rank. If that fails, the reason is left beside `result` and the process ends
    at once."""
    place = read_process_info()
    try:
        counts = score(load(str(config)).run, checkpoint.read(path), place)
        if place.rank == 0:
            write_file(result, json.dumps(counts))
    except BaseException as error:  # whatever it was, the others must not wait
        end_failed(error, place, "evaluation", result.parent)


def score(run: Run, found: Checkpoint, place: ProcessInfo) -> dict[str, int]:
    """The counts of `evaluate.Accuracy` over all ranks. Batch-norm statistics are those that the
    checkpoint holds; where they are each rank's own still, `eval.bn_stats` is done to them."""
    connection = Connection(run, Timeline(place.rank), over_mpi=place.over_mpi)
    connection.begin()
    from ..data.pipeline import build_eval_source
    from .checkpoint_state import active_ranks, restore_network
    from .comm import communicator, context
    from .evaluate import evaluate, sync_bn_statistics
    from .networks import bn_statistics, build_networks, copy_parameters
    from .own import operators_for
    from .trainer import batches_of

    ctx, ranks = context(run.system.device, place.local_rank), place.world_size
    comm = communicator(operators_for(run.model, ctx), connection, ranks)
    comm.start()
    net, eval_net, _ = build_networks(
        run.model, run.data.classes, crop_px=run.data.crop_px, seed=0, operators=comm.operators
    )
    restore_network(found, net, rank=place.rank, ranks=ranks)
    if found.meta.statistics_rows > 1 and ranks == found.meta.ranks:
        mode, active = run.eval.bn_stats, active_ranks(found)
        sync_bn_statistics(bn_statistics(net), comm, mode=mode, active_ranks=active)
    copy_parameters(net, eval_net, comm.operators)
    images = build_eval_source(
        run.data,
        batch_per_rank=run.eval.batch_per_rank,
        rank=place.rank,
        ranks=ranks,
        device_id=ctx.device_id if decodes_on_gpu(run) else None,
    )
    accuracy = evaluate(
        eval_net,
        batches_of(images, ctx),
        comm,
        batches=eval_batches(run.data.eval_samples, ranks, run.eval.batch_per_rank),
        samples=run.data.eval_samples,
    )
    comm.stop()
    return accuracy._asdict()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
