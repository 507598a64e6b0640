"""One root seed in, named streams out, the same on every machine and Python: hashlib only."""

from __future__ import annotations

import hashlib
import os

STREAMS = ("weights", "shuffle", "augment", "flip", "operations", "dropout")


def draw_seed() -> int:
    """A root seed from urandom: the rules ask for that or the clock, never a constant."""
    return int.from_bytes(os.urandom(4), "little")


def stream_seed(root: int, stream: str, *key: int | str) -> int:
    """The 63-bit seed of a named stream: BLAKE2b of "rn50:root:stream:key...".

    Not `root + rank` or `hash()`: neighbouring roots would share streams (Fujitsu's published
    seeds give two of its five runs the same 473 per-rank seeds).
    """
    parts = ("rn50", root, stream, *key)
    name = ":".join(map(str, parts))
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream_seeds(root: int) -> dict[str, int]:
    """Seeds of all streams of a run."""
    return {stream: stream_seed(root, stream) for stream in STREAMS}
