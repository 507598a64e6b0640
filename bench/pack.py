"""`rn50 bench pack`: packing against copying the same files into one file on the same disk."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data.listing import list_images
from ..data.pack import pack_images
from .harness import machine, spread

_BLOCK_FILES = 1000


def bench_pack(
    images: Path,
    scratch: Path | None,
    *,
    processes: int,
    passes: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Packing and two plain copies in turn, each from its list of files to closed output.

    Packing has its own listing, checks, digests and processes in its time. The copies are a loop
    of Python and `cat` on a list of names that they are given.

    Args:
        images: an image folder, in a layout of files (not tars).
        scratch: where all of them write; default: beside `images`.
        processes: of packing.
        passes: how often each.
        progress: called with (done, total) passes.
    """
    listing = list_images(images).splits
    paths = [source.path for split in listing.values() for source in split]
    total_bytes = sum(Path(path).stat().st_size for path in paths)
    seconds: dict[str, list[float]] = {"pack": [], "copy in Python": [], "cat": []}
    with tempfile.TemporaryDirectory(prefix=".bench-pack-", dir=scratch or images.parent) as folder:
        names = Path(folder) / "names"
        names.write_bytes(b"\0".join(os.fsencode(path) for path in paths))
        run: dict[str, Callable[[Path], object]] = {
            "pack": lambda out: pack_images(images, out, processes=processes),
            "copy in Python": lambda out: _copy(paths, out),
            "cat": lambda out: _cat(names, out),
        }
        for number in range(passes):
            order = list(seconds) if number % 2 else list(reversed(seconds))
            for name in order:
                out = Path(folder) / f"{name}-{number}"
                begun = time.perf_counter()
                run[name](out)
                seconds[name].append(time.perf_counter() - begun)
                _remove(out)
            progress(number + 1, passes)
    packing = seconds["pack"]
    return {
        "ratios": {
            f"speed of packing / {name}": spread(
                [other / ours for other, ours in zip(seconds[name], packing, strict=True)]
            )
            for name in ("copy in Python", "cat")
        },
        "figures": {
            **{f"{name}: s": spread(taken) for name, taken in seconds.items()},
            "files": len(paths),
            "MB": total_bytes / 1e6,
            "processes": processes,
        },
        "measurements": {"s": seconds},
        "machine": machine(),
    }


def _copy(paths: list[str], out: Path) -> None:
    with out.open("wb") as file:
        for path in paths:
            with Path(path).open("rb") as source:
                file.write(source.read())


def _cat(names: Path, out: Path) -> None:
    with names.open("rb") as given, out.open("wb") as file:
        subprocess.run(["xargs", "-0", "-n", str(_BLOCK_FILES), "cat"], stdin=given, stdout=file)


def _remove(out: Path) -> None:
    for path in sorted(out.iterdir()) if out.is_dir() else []:
        path.unlink()
    if out.is_dir():
        out.rmdir()
    else:
        out.unlink()
