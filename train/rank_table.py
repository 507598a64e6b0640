"""ranks.json: each rank's share of a run, gathered once at its end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .comm import Communicator
from .step_times import COLUMNS, percentiles
from .usage import Used

_NO_STEPS = percentiles(np.full((1, len(COLUMNS)), np.nan, np.float32))
_FIGURES = (*_NO_STEPS, *Used._fields)
_ROW = np.dtype([("host", "S64"), ("steps", "<i4"), ("figures", "<f8", len(_FIGURES)), ("", "V4")])


def gather_ranks(
    comm: Communicator, host: str, phases_ms: NDArray[np.float32], used: Used
) -> dict[str, list[Any]]:
    """A column for each figure, a row for each rank, by rank. Collective: one small allgather.

    Args:
        phases_ms: (steps, columns) of this rank's steps; a rank without a share of the batch has 0.

    Returns:
        host, steps, the percentiles of `step_times.percentiles`, the figures of `Used`; None stands
        for what could not be read. Ranks above 0, which write none: no columns.
    """
    row = np.zeros(1, _ROW)
    times = percentiles(phases_ms) if len(phases_ms) else _NO_STEPS
    row["host"], row["steps"] = host.encode()[:64], len(phases_ms)
    row["figures"] = [*times.values(), *used]
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


def energy_j(table: dict[str, list[Any]]) -> float | None:
    """Of all hosts' packages and all GPUs that could be read; None: none could."""
    known = [
        value
        for name in ("host_energy_j", "gpu_energy_j")
        for value in table[name]
        if value is not None
    ]
    return sum(known) if known else None
