"""Which records the check looks at; the others are read, counted and let go."""

from __future__ import annotations

from ..config import benchmark

SMOOTHING = "label_smoothing"
SECOND = "duplicate_"


class _Checked(frozenset[str]):
    """The keys below, and families of keys that have no fixed names."""

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (
            isinstance(key, str) and (key.startswith(SECOND) or key.endswith(SMOOTHING))
        )


RUN_KEYS = frozenset(
    {
        *(f"{kind}_{end}" for kind in ("block", "epoch", "eval") for end in ("start", "stop")),
        *("init_start", "init_stop", "run_start", "run_stop", "eval_accuracy"),
    }
)
"""Events of a run: a file that has them has a run."""

CHECKED = _Checked(
    {
        *RUN_KEYS,
        *benchmark.SUBMISSION_KEYS_060,
        *benchmark.LARS_KEYS,
        *benchmark.SGD_KEYS,
        "cache_clear",
        "run_resumed",
        "wall_clock_jump",
        "seed",
        "train_samples",
        "eval_samples",
        "global_batch_size",
        "gradient_accumulation_steps",
        "opt_name",
        "opt_base_learning_rate",
        "opt_learning_rate_decay_boundary_epochs",
        "weights_initialization",
    }
)
FIXED: frozenset[str] = frozenset(iter(CHECKED))
"""Those of them that have a name of their own."""

READ_METADATA = frozenset(
    {
        *("epoch_num", "first_epoch_num", "epoch_count", "samples_count", "step_num", "status"),
        *("tensor", "steps_repeated"),
    }
)
"""What rules read of metadata."""
READ_NAMES = READ_METADATA | {"key", "value", "metadata", "time_ms", "success"}
"""What rules read of a record."""
