"""One root seed in, named streams out. Pure: hashlib only, the same on every machine and Python."""

from __future__ import annotations

import hashlib

STREAMS = ("weights", "shuffle", "augment", "flip", "dropout")


def stream_seed(root: int, stream: str, *key: int | str) -> int:
    """The 63-bit seed of a named stream: BLAKE2b of "rn50:root:stream:key...".

    Not `root + rank` or `hash()`: neighbouring roots would share streams (Fujitsu's published
    seeds give two of its five runs the same 473 per-rank seeds).
    """
    text = ":".join(["rn50", str(root), stream, *map(str, key)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream_seeds(root: int) -> dict[str, int]:
    """Seeds of all streams of a run."""
    return {stream: stream_seed(root, stream) for stream in STREAMS}
