"""How much memory a new job on this machine can have: the kernel's word, and the job's cgroup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..config.reading import read_text


def free_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory free for new processes: without that of the page cache; None: not known. `root`: where
    `proc` and `sys` lie."""
    found = [_available(root), *_left_in_groups(root)]
    return min((size for size in found if size is not None), default=None)


def _available(root: Path) -> int | None:
    match = re.search(r"^MemAvailable:\s*(\d+) kB", read_text(root / "proc/meminfo"), re.M)
    return int(match[1]) * 1024 if match else None


def _left_in_groups(root: Path) -> Iterator[int]:
    """What the limits of this process's memory cgroup and of those above it leave. In a container
    the path may be the host's: a folder that is not there is passed over."""
    mounts = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            files, top = ("memory.max", "memory.current", "inactive_file"), mounts
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            top = mounts / "memory"
        else:
            continue
        folder = top / path.strip("/")
        for group in (folder, *folder.parents):
            left = _left(group, *files)
            if left is not None:
                yield left
            if group == top:
                break


def _left(group: Path, limit: str, usage: str, cache: str) -> int | None:
    bound, used = read_text(group / limit), read_text(group / usage)
    if not (bound.isdigit() and used.isdigit()):  # "max", or no such group
        return None
    cached = re.search(rf"^{cache} (\d+)$", read_text(group / "memory.stat"), re.M)
    return max(0, int(bound) - int(used) + (int(cached[1]) if cached else 0))
