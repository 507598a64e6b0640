"""Page caches of the data set dropped before a timed run, as the rules ask; needs no root."""

from __future__ import annotations

import os
from pathlib import Path


def drop_caches(folder: Path) -> None:
    """Evict every file of `folder` from the page cache (posix_fadvise DONTNEED).

    Dirty pages cannot be evicted, so they are written first. `rn50 bench throughput` has no folder.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
