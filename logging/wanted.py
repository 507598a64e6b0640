"""Which records the check looks at; the others are read, counted and let go."""

from __future__ import annotations

from ..config import benchmark


class _Checked(frozenset[str]):
    """The keys below, and families of keys that have no fixed names."""

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (
            isinstance(key, str)
            and (key.startswith("duplicate_") or key.endswith("label_smoothing"))
        )


CHECKED = _Checked(
    {
        *benchmark.SUBMISSION_KEYS_060,
        *benchmark.LARS_KEYS,
        *benchmark.SGD_KEYS,
        *(f"{kind}_{end}" for kind in ("block", "epoch", "eval") for end in ("start", "stop")),
        "cache_clear",
        "init_start",
        "init_stop",
        "run_start",
        "run_stop",
        "run_resumed",
        "wall_clock_jump",
        "eval_accuracy",
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
