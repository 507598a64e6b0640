"""`rn50 bench pack`: packing against copying the same files into one file on the same disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..data.listing import list_images
from ..data.pack import pack_images
from .harness import Job, Outcome, alternate, bench, option, spread, wall_s

_BLOCK_FILES = 1000


RATIO = {f"speed of packing / {name}": (name, "pack") for name in ("copy in Python", "cat")}


@bench("pack", RATIO)
def pack(
    job: Job,
    *,
    images: Annotated[Path, typer.Argument(help="An image folder.")],
    scratch: Annotated[Path | None, option("Where to write; default: beside the images.")] = None,
    processes: Annotated[
        int | None, option("Processes that check images; default: a core each.", min=1)
    ] = None,
    passes: Annotated[int, option("Passes of each, in turn.", min=1)] = 5,
) -> Outcome:
    """Packing against copying the same files into one file on the same disk.

    The time of packing includes listing, checks, digests and starting processes. The copies are a
    Python loop and `cat`, with the list of names given.

    Example: `rn50 bench pack images --passes 7`
    """
    listing = list_images(images).splits
    paths = [source.path for split in listing.values() for source in split]
    total_bytes = sum(Path(path).stat().st_size for path in paths)
    workers = processes or len(os.sched_getaffinity(0))
    progress = job.track("packing and copying in turn")
    with tempfile.TemporaryDirectory(prefix=".bench-pack-", dir=scratch or images.parent) as folder:
        names, out = Path(folder) / "names", Path(folder) / "out"
        names.write_bytes(b"\0".join(os.fsencode(path) for path in paths))
        seconds = wall_s(
            alternate(
                {
                    "pack": lambda: pack_images(images, out, processes=workers),
                    "copy in Python": lambda: _copy(paths, out),
                    "cat": lambda: _cat(names, out),
                },
                _counted(passes, progress),
                barrier=lambda: _remove(out),
            )
        )
    return Outcome(
        seconds=seconds,
        figures={
            **{f"{name}: s": spread(found) for name, found in seconds.items()},
            "files": len(paths),
            "MB": total_bytes / 1e6,
            "processes": workers,
        },
        measurements={"s": seconds},
    )


def _counted(passes: int, progress: Callable[[int, int], None]) -> Iterator[int]:
    for number in range(1, passes + 1):
        yield number
        progress(number, passes)


def _copy(paths: list[str], out: Path) -> None:
    with out.open("wb") as file:
        for path in paths:
            with Path(path).open("rb") as source:
                file.write(source.read())


def _cat(names: Path, out: Path) -> None:
    with names.open("rb") as given, out.open("wb") as file:
        subprocess.run(["xargs", "-0", "-n", str(_BLOCK_FILES), "cat"], stdin=given, stdout=file)


def _remove(out: Path) -> None:
    """What the one before has written, so that every contender finds the same disk."""
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink(missing_ok=True)
