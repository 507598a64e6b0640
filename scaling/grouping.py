"""What `comm.groups: auto` means: the rule that leaves least communication exposed. Pure.

All ranks compute it from the same config, so they agree without a message.
"""

from __future__ import annotations

from typing import NamedTuple

from ..config.resnet_stages import BASIC_DEPTHS
from ..config.schema import Run
from .cost import allreduce, fastest
from .layers import Shape, backward_fraction, wire_groups
from .netlab import EAGER_BYTES
from .step import Overlap, exposed
from .topology import Link, flat

FALLBACK = "equal_bytes(8)"
"""`comm.groups` where nothing is known of the network or of computing."""
CANDIDATES = (
    FALLBACK,
    *("single", "equal_bytes(4)", "equal_bytes(16)", "cubic(3)"),
    *(f"halving({count})" for count in range(2, 9)),
)
CLOSE = 0.01
"""Of backward: what rules may differ by and count as equals. The fewest groups then win, as each
has to be agreed on, which the model leaves out."""
_FLAT = ("ring", "recursive_doubling", "recursive_halving_doubling")


class Grouping(NamedTuple):
    """A rule of `scaling/groups.py`; the reason where `auto` left it to the model."""

    rule: str
    reason: str = ""

    @property
    def note(self) -> str:
        """For whoever starts the run; empty where the config names the rule."""
        return f"comm.groups auto: {self.reason}" if self.reason else ""


def choose_groups(run: Run) -> Grouping:
    """`comm.groups`; for `auto` the candidate that leaves least exposed."""
    if run.comm.groups != "auto":
        return Grouping(run.comm.groups)
    system, model = run.system, run.model
    known = system.link_latency_s and system.link_bytes_per_s and system.rank_images_per_s
    if not known or model.network != "resnet" or model.depth in BASIC_DEPTHS:
        return Grouping(
            FALLBACK,
            f"{FALLBACK}, as system.link_latency_s, system.link_bytes_per_s and "
            "system.rank_images_per_s are not all given, or the network has no bottlenecks",
        )
    overlaps = {rule: predict_overlap(run, rule) for rule in CANDIDATES}
    exposed_s = {rule: overlap.exposed_s for rule, overlap in overlaps.items()}
    most_s = min(exposed_s.values()) + CLOSE * _backward_s(run)
    rule = min(
        (rule for rule in CANDIDATES if exposed_s[rule] <= most_s),
        key=lambda rule: len(overlaps[rule].launched_s),
    )
    return Grouping(
        rule,
        f"{rule} leaves {exposed_s[rule] * 1e3:.1f} ms of communication exposed, "
        f"{FALLBACK} {exposed_s[FALLBACK] * 1e3:.1f} ms (model)",
    )


def predict_overlap(run: Run, rule: str) -> Overlap:
    """Communication behind the backward of a step, by `system.rank_images_per_s` and the link.

    Without what communication takes from the cores that compute.
    """
    system, model = run.system, run.model
    assert system.link_latency_s and system.link_bytes_per_s
    network = flat(
        system.world_size,
        Link(system.link_latency_s, 1 / system.link_bytes_per_s, 0.0, EAGER_BYTES),
    )
    halves = run.comm.gradient_dtype == "float16" and model.dtype == "float32"
    groups = wire_groups(rule, "fp32" if model.dtype == "float32" else "fp16", _shape(run))
    backward_s = _backward_s(run)

    def cost_s(n_bytes: float) -> float:
        algorithm = run.comm.algorithm
        if algorithm == "auto":
            algorithm = fastest(n_bytes, system.world_size, network.node.nic, _FLAT)
        return allreduce(algorithm, network, n_bytes).time_s

    costs_s = [cost_s(group.n_bytes / 2 if halves else group.n_bytes) for group in groups]
    return exposed([group.ready * backward_s for group in groups], costs_s, backward_s)


def _shape(run: Run) -> Shape:
    model, data = run.model, run.data
    return Shape(model.depth, model.width, data.crop_px, data.classes, model.stem)


def _backward_s(run: Run) -> float:
    assert run.system.rank_images_per_s
    return backward_fraction(_shape(run)) * run.batch.per_rank / run.system.rank_images_per_s
