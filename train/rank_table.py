"""ranks.json: each rank's share of a run, gathered once at its end."""

from __future__ import annotations

import math
import resource
from typing import Any

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from .comm import Communicator
from .step_times import COLUMNS, percentiles

_NO_STEPS = percentiles(np.full((1, len(COLUMNS)), np.nan, np.float32))
_FIGURES = (*_NO_STEPS, "memory_peak_bytes", "cpu_s", "gpu_memory_peak_bytes")
_ROW = np.dtype([("host", "S64"), ("steps", "<i4"), ("figures", "<f8", len(_FIGURES)), ("", "V4")])


def gather_ranks(
    comm: Communicator, *, host: str, phases_ms: NDArray[np.float32], cpu_s: float
) -> dict[str, list[Any]]:
    """A column for each figure, a row for each rank, by rank. Collective: one small allgather.

    Args:
        host: the name of this rank's host.
        phases_ms: (steps, columns) of this rank's steps; a rank without a share of the batch has 0.
        cpu_s: CPU seconds that this process has used since the clock of the run started.

    Returns:
        host, steps, the percentiles of `step_times.percentiles`, CPU time, and the most memory that
        the process and the GPU (all of its processes) held; None stands for what does not apply.
        Ranks above 0, which write no file: no columns.
    """
    row = np.zeros(1, _ROW)
    times = percentiles(phases_ms) if len(phases_ms) else _NO_STEPS
    row["host"], row["steps"] = host.encode()[:64], len(phases_ms)
    memory_peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row["figures"] = [*times.values(), memory_peak_bytes, cpu_s, _gpu_memory_bytes(comm.ctx)]
    everyone = comm.gather_bytes(row.tobytes(), "ranks")
    if comm.rank != 0:
        return {}
    rows = np.frombuffer(b"".join(everyone), _ROW)
    figures = {name: rows["figures"][:, i].tolist() for i, name in enumerate(_FIGURES)}
    return {
        "host": [name.decode(errors="replace") for name in rows["host"].tolist()],
        "steps": rows["steps"].tolist(),
        **{
            name: [value if math.isfinite(value) else None for value in column]
            for name, column in figures.items()
        },
    }


def _gpu_memory_bytes(ctx: mx.Context) -> float:
    """Memory taken on a rank's GPU: the most that there was, as MXNet's pool gives nothing back."""
    if ctx.device_type != "gpu":
        return math.nan
    free_bytes, total_bytes = mx.context.gpu_memory_info(ctx.device_id)
    return float(total_bytes - free_bytes)
