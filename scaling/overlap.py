"""Communication behind backward: when the last group is done, and how long the step waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Overlap(NamedTuple):
    """`exposed_s`: communication after backward has ended. `launched_s`: start of each group."""

    finish_s: float
    exposed_s: float
    launched_s: tuple[float, ...]


def exposed(ready_s: Sequence[float], cost_s: Sequence[float], backward_s: float = 0.0) -> Overlap:
    """Wait-free backpropagation, groups in launch order, one at a time on the network.

    tau_c(l) = max(tau_c(l+1) + t_c(l+1), tau_b(l) + t_b(l)), a group being ready with its last
    tensor; exposed = tau_c(1) + t_c(1) - end of backward, which is `backward_s` or the last
    ready time, whichever is later (Shi et al. 2019, MG-WFBP).
    """
    free_s = 0.0
    launched_s = []
    for ready, cost in zip(ready_s, cost_s, strict=True):
        launched_s.append(max(free_s, ready))
        free_s = launched_s[-1] + cost
    end_s = max(backward_s, *ready_s, 0.0)
    finish_s = max(free_s, end_s)
    return Overlap(finish_s, finish_s - end_s, tuple(launched_s))
