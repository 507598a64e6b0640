"""What must be the same on all ranks of a run, and where a run is resumed. Loads no framework.

Every rank sends its identity to the launcher's watchdog as it connects, which is before anything in
which ranks wait for each other, and the watchdog compares them. At the end of start-up the ranks
compare digests of the parts in the collective that compares their weights: that covers ranks
without a watchdog (started by hand, in a container).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from ...config.leaves import flatten
from ...config.load import Loaded
from ...config.manifest import has_manifest, load_manifest
from ...host.errors import show

_MOST_SHOWN = 4
"""Ranks, or groups of them, by name."""
Identity = Mapping[str, Mapping[str, Any]]
"""Part (code, package, image set, variable, config) -> name -> value."""
_OWN = ("system.", "data.path", "data.synthetic")
"""Keys of the config that may differ between ranks."""
_ROOMS = ("config", "data", "host", "logging", "predict", "train")
"""Those from which a rank imports."""
_PACKAGES = ("mxnet", "mxnet-cu112", "horovod", "nvidia-dali-cuda120", "numpy")
_VARIABLES = re.compile(
    # Each rank fuses and caches for itself: with other values it waits for ever. Threads alter the
    # order in which oneDNN sums a rank's gradients, and so the bits of the run.
    r"HOROVOD_(AUTOTUNE|CACHE_CAPACITY|CYCLE_TIME|DISABLE_GROUP_FUSION|FUSION_THRESHOLD"
    # With other numbers of NCCL streams ranks would join other communicators in turn.
    r"|NUM_NCCL_STREAMS|ENABLE_ASYNC_COMPLETION"
    r"|(HIERARCHICAL|TORUS)_\w+)|MXNET_ENFORCE_DETERMINISM|OMP_NUM_THREADS"
    # By the libraries' manuals the same on all ranks: which algorithm sums.
    r"|NCCL_(ALGO|PROTO|MAX_NCHANNELS|MIN_NCHANNELS|COLLNET_ENABLE|NVLS_ENABLE|BUFFSIZE)"
    r"|OMPI_MCA_coll_\w+|I_MPI_ADJUST_\w+|MPIR_CVAR_(\w+_ALGORITHM|DEVICE_COLLECTIVES)"
)


def identity_of(loaded: Loaded) -> Identity:
    """The identity of this process with the config `loaded`."""
    folder = Path(loaded.run.data.path)
    leaves = flatten(loaded.to_dict())
    return {
        "code": {"rn50": code_digest()},
        "package": {
            name: distribution.version  # the first is the one that is imported
            for name in _PACKAGES
            for distribution in islice(metadata.distributions(name=name), 1)
        },
        "image set": {"manifest": image_set_in(folder) or f"none in {folder}"},
        "variable": {
            n: os.environ[n] for n in sorted(os.environ) if _VARIABLES.fullmatch(n)
        },
        "config": {key: value for key, value in leaves if not key.startswith(_OWN)},
    }


def differences(
    first: Identity, second: Identity, form: str = "{} expected, found {}"
) -> Iterator[str]:
    """Each name whose value differs, as a line for a message. `form`: for the two values."""
    for part, usual in first.items():
        deviating = second[part]
        for name in sorted(usual.keys() | deviating.keys()):
            if usual.get(name) != deviating.get(name):
                values = form.format(shown(usual, name), shown(deviating, name))
                yield f"{part}: {name} {values}"


def shown(values: Mapping[str, Any], name: str) -> str:
    """The value of a name, if there is one, in a message."""
    return show(values[name]) if name in values else "nothing"


def part_digests(identity: Identity) -> dict[str, bytes]:
    """16 bytes for each part."""
    return {
        part: hashlib.blake2b(
            json.dumps(values, sort_keys=True).encode(), digest_size=16
        ).digest()
        for part, values in identity.items()
    }


class Division(NamedTuple):
    """Ranks by their value of what all should have in common, the largest group first."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def differ(self) -> bool:
        """Whether not all ranks have the same value."""
        return len(self.groups) > 1

    @property
    def odd(self) -> list[int]:
        """Ranks without the value that more than half of all have. Empty where no value is that of
        so many: nobody can tell which ranks are right."""
        usual, *rest = self.groups
        if len(usual) <= sum(map(len, rest)):
            return []
        return sorted(chain(*rest))

    def named(self, names: Sequence[str], what: str) -> str:
        """Which ranks differ in `what`, or may be those that do. `names`: of all ranks."""
        if deviating := self.odd:
            listed = ", ".join(names[rank] for rank in deviating[:_MOST_SHOWN])
            return f"{len(deviating)} of {len(names)} ranks, {listed} in {what}"
        sides = []
        for first, *more in self.groups[:_MOST_SHOWN]:
            extra = f" and {len(more)} more" if more else ""
            sides.append(f"{names[first]}{extra}")
        ranks = "two" if len(names) == 2 else len(names)
        doubt = f"which one cannot be told from {ranks}"
        return f"{' or '.join(sides)} in {what}: {doubt}"


def divide(values: Sequence[Hashable]) -> Division:
    """How ranks with these values agree; of groups of one size the one of the lowest rank first."""
    groups = defaultdict[Hashable, list[int]](list)
    for rank, value in enumerate(values):
        groups[value].append(rank)
    by_size = sorted(groups.values(), key=len, reverse=True)
    return Division(tuple(map(tuple, by_size)))


def image_set_in(folder: Path) -> str | None:
    """The digest of the image set in `folder`, by its manifest; None: there is none. Raises
    UserError: the manifest cannot be read."""
    return load_manifest(folder).digest if has_manifest(folder) else None


@cache
def code_digest() -> str:
    """The digest of the sources of rn50 that a rank imports: 0.7 MB, 5 ms of CPU time."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((package / room).rglob("*")):
            if path.suffix in (".py", ".cc", ".c", ".cu"):
                digest.update(
                    f"\0{path.relative_to(package)}\0".encode() + path.read_bytes()
                )
    return digest.hexdigest()[:16]
