"""Which records a reader of logs looks at; the others are read, counted and let go."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from .look_alike import skeleton

RUN_KEYS = frozenset(
    {
        *(f"{kind}_{end}" for kind in ("block", "epoch", "eval") for end in ("start", "stop")),
        *("init_start", "init_stop", "run_start", "run_stop", "eval_accuracy"),
    }
)
"""Events of a run: a file that has them has a run."""


class CheckedKeys:
    """Keys by name, and families of keys: `*` at the start or the end of a pattern is any text."""

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = {*RUN_KEYS, *patterns}
        self.named = frozenset(pattern for pattern in patterns if "*" not in pattern)
        """Those that have a name of their own."""
        self.prefixes = tuple(sorted(p[:-1] for p in patterns if p.endswith("*")))
        self.suffixes = tuple(sorted(p[1:] for p in patterns if p.startswith("*")))

    def __contains__(self, key: object) -> bool:
        return key in self.named or (
            isinstance(key, str) and (key.startswith(self.prefixes) or key.endswith(self.suffixes))
        )

    @cached_property
    def _by_skeleton(self) -> dict[str, str]:
        return {skeleton(key): key for key in self.named}

    def meant_by(self, key: str) -> str | None:
        """The key with a name of its own that another one looks like."""
        return self._by_skeleton.get(skeleton(key[:100]))

    def is_sampled(self, key: str) -> bool:
        """Is it known by its beginning alone? Of such a family the first records of a key tell."""
        return (
            key.startswith(self.prefixes)
            and key not in self.named
            and not key.endswith(self.suffixes)
        )


RUN_KEYS_ALONE = CheckedKeys(())
"""For readers that hold a log to no rule."""

READ_METADATA = frozenset(
    {
        *("epoch_num", "first_epoch_num", "epoch_count", "samples_count", "step_num", "status"),
        *("tensor", "steps_repeated"),
    }
)
"""What rules read of metadata."""
READ_NAMES = READ_METADATA | {"key", "value", "metadata", "time_ms", "success"}
"""What rules read of a record."""
