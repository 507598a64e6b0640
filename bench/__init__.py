"""Benchmarks: one file for each, named as its command is; `python -m rn50.bench` is one rank."""

NAMES = (
    "loop",
    "overlap",
    "horovod-baseline",
    "allreduce",
    "startup",
    "scaling",
    "optimizer",
)
"""The commands of `rn50 bench`, as its help lists them."""


def module_name(name: str) -> str:
    """The module of a benchmark."""
    return f"{__name__}.{name.replace('-', '_')}"
