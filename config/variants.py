"""Published optimizer variants: what each scales, decays and adds (docs/recipes.md).

LARS in all of them: v <- mu v + lr trust (g / B + wd w);  w <- w - v, and
trust = eta |w| / (|g| / B + wd' |w| + epsilon) on scaled tensors, 1 where a norm is 0.
The abstract by You et al. prints beta times the norm of grad w where 1708.03888 has beta |w|, which
`you` computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .benchmark import LARS_EPSILON, LARS_ETA

WEIGHTS = ("weight",)
ALL = ("weight", "bias", "gamma", "beta")


@dataclass(frozen=True)
class Rule:
    """One variant. `scaled` and `decayed` hold the endings of the names of tensors concerned."""

    scaled: tuple[str, ...]
    decayed: tuple[str, ...]
    optimizer: str = "lars"
    """The optimizer's name in MLPerf logs."""
    eta: float = LARS_ETA
    epsilon: float = LARS_EPSILON
    momentum_correction: bool = False
    """Multiply mu by lr_t / lr_(t-1), once a step: the learning rate sits inside v."""
    decay_times_base_lr: bool = False
    """Fujitsu: wd' is wd x base LR, and does not follow the schedule."""
    epsilon_only_below: bool = False
    """NNabla: epsilon is added only to a denominator below it. The trust is 1 only where |w| is 0
    or below epsilon, so that a zero gradient leaves eta / wd', and weight decay its effect."""


VARIANTS = {
    # Plain momentum SGD, no decay on batch norm and bias (NVIDIA's MXNet SGD entries).
    "sgd": Rule((), WEIGHTS, "sgd", momentum_correction=True),
    # You et al. (SysML'18 abstract, 1708.03888): nothing is excluded.
    "you": Rule(ALL, ALL),
    # TensorFlow reference: epsilon 0 falls back to Keras's 1e-7.
    "reference": Rule(WEIGHTS, WEIGHTS, epsilon=1e-7),
    # NVIDIA v0.6 to v4.0 (SGDwFASTLARS): decays the classifier's bias as well.
    "nvidia": Rule(WEIGHTS, ("weight", "bias"), momentum_correction=True),
    # Fujitsu v0.6, JobScripts/parameters.
    "fujitsu": Rule(
        WEIGHTS, WEIGHTS, eta=0.0025, epsilon=1e-9, decay_times_base_lr=True
    ),
    # Sony (1811.05233): the defaults of NNabla's solver (nnabla, src/nbla/solver/generic/lars.cpp;
    # nnabla-ext-cuda, lars.cu). It scales every parameter and decays all of them at one rate.
    "sony": Rule(ALL, ALL, eta=0.01, epsilon=1e-6, epsilon_only_below=True),
    # Akiba et al. (1711.04325): RMSprop warm-up, no LARS.
    "akiba": Rule((), WEIGHTS, "akiba"),
}
