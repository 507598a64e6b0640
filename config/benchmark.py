"""Facts of the MLPerf ResNet-50/ImageNet benchmark. Nothing here is a choice; choices are YAML.

Source: mlcommons/training_policies training_rules.adoc (v0.6 to v4.0) and mlcommons/logging 4.1.68.
"""

from __future__ import annotations

RULESETS = (
    "0.6.0",
    "0.7.0",
    "1.0.0",
    "1.1.0",
    "2.0.0",
    "2.1.0",
    "3.0.0",
    "3.1.0",
    "4.0.0",
)
"""Rulesets that have ResNet files; 4.0.0 is the last round with ResNet."""

BENCHMARK = "resnet"
IMAGENET_TRAIN_SAMPLES = 1_281_167
IMAGENET_EVAL_SAMPLES = 50_000
IMAGENET_CLASSES = 1000
TARGET_ACCURACY = 0.759
EVAL_PERIOD_EPOCHS = 4

# Preprocessing of the reference (retired_benchmarks/resnet-tf2/tensorflow2), fractions and pixels.
CROP_PX = 224
EVAL_RESIZE_PX = 256
CROP_AREA = (0.05, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
RGB_MEAN = (123.675, 116.28, 103.53)
RGB_STD = (58.395, 57.12, 57.375)

# Model and closed-division hyper-parameters.
BN_MOMENTUM = 0.9
BN_EPSILON = 1e-5
RESNET50_TENSORS = 161
NETWORK = {
    "model.network": "resnet",
    "model.depth": 50,
    "model.width": 64,
    "model.stem": "imagenet",
    "model.norm": "batch",
}
"""ResNet-50 v1.5, by the keys of a config."""
END_LR = 1e-4
DECAY_POWER = 2.0
LARS_ETA = 1e-3
LARS_EPSILON = 0.0

# Submissions and the clock.
DIVISIONS = ("closed", "open")
STATUSES = ("cloud", "onprem", "research", "preview")
"""What `submission_status` may be; `preview` from 0.7.0."""
SUBMISSION_KEYS: tuple[str, ...] = (
    "submission_org",
    "submission_platform",
    "submission_division",
    "submission_status",
    "submission_benchmark",
)
SYSTEM_FIELDS = (
    "submitter",
    "division",
    "status",
    "system_name",
    "number_of_nodes",
    "host_processors_per_node",
    "host_processor_model_name",
    "host_processor_core_count",
    "host_processor_vcpu_count",
    "host_processor_frequency",
    "host_processor_caches",
    "host_processor_interconnect",
    "host_memory_capacity",
    "host_storage_type",
    "host_storage_capacity",
    "host_networking",
    "host_networking_topology",
    "host_memory_configuration",
    "accelerators_per_node",
    "accelerator_model_name",
    "accelerator_host_interconnect",
    "accelerator_frequency",
    "accelerator_on-chip_memories",
    "accelerator_memory_configuration",
    "accelerator_memory_capacity",
    "accelerator_interconnect",
    "accelerator_interconnect_topology",
    "cooling",
    "hw_notes",
    "framework",
    "other_software_stack",
    "operating_system",
    "sw_notes",
)
"""What a system description has: system_desc_checker asks for each."""
SYSTEM_TEXTS = (
    "submitter",
    "system_name",
    "host_processor_model_name",
    "host_processor_core_count",
    "accelerator_model_name",
    "accelerators_per_node",
    "framework",
)
"""Those that system_desc_checker joins as texts: a number ends it with a traceback."""
AVAILABILITY = {
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "research": "Research, Development, or Internal (RDI)",
    "preview": "Preview",
}
"""`submission_status` as the status of a system description words it from 4.0.0 on."""
RUNS = 5
RUNS_THAT_MAY_FAIL = 1
MOST_LOGGED_EPOCHS = 1000
"""More is no epoch of this benchmark: published runs have up to 100, the reference plans 90."""
TRAINING_FLOPS_PER_IMAGE = 24.6e9
"""Three passes of 4.1 G multiply-adds."""
IMPOSSIBLE_IMAGES_PER_S = 7e7
"""Ten times the fastest published run (4,096 TPU v4 chips, v2.0), above its machine's peak."""
IMPOSSIBLE_IMAGES_PER_S_OF = {"accelerator": 80_000, "processor": 2_700}
"""Ten times what one of the fastest published has trained: H200 (v4.0), Xeon 8480+ (v3.1)."""
HIGHEST_ACCURACY = 1.0
"""The checker wants an accuracy in [target, 1)."""

# Closed-division hyper-parameters (training_rules.adoc, table of lines 834-857).
OPTIMIZERS = ("lars", "sgd")
MOMENTUM = 0.9
MOMENTUM_FREE_FROM_BATCH = 32_000
MOMENTUM_FREE_BEYOND_DOUBT = 32_768
"""The rules say "32k", which leaves 32,000 to 32,767 open."""
WEIGHT_DECAY_UNIT = 1e-4
SGD_LR_UNIT = 1e-3
LABEL_SMOOTHING = (0.0, 0.1)
LARS_KEYS = (
    "lars_opt_base_learning_rate",
    "lars_opt_end_learning_rate",
    "lars_opt_learning_rate_decay_poly_power",
    "lars_opt_learning_rate_decay_steps",
    "lars_epsilon",
    "lars_opt_learning_rate_warmup_epochs",
    "lars_opt_momentum",
    "lars_opt_weight_decay",
)
SGD_KEYS = (
    "sgd_opt_base_learning_rate",
    "sgd_opt_end_learning_rate",
    "sgd_opt_learning_rate_decay_poly_power",
    "sgd_opt_learning_rate_decay_steps",
    "sgd_opt_weight_decay",
    "sgd_opt_momentum",
    "model_bn_span",
    "opt_learning_rate_warmup_epochs",
)
OPTIMIZER_KEYS = {"lars": LARS_KEYS, "sgd": SGD_KEYS}
WEIGHT_NAMES_RULESETS = ("1.1.0", "2.0.0", "2.1.0")
"""Closed logs of these rulesets name every tensor in `weights_initialization`."""


def ruleset_name(written: object) -> str | None:
    """The ruleset that is written as 4.0.0, 4.0, v4.0 or, in YAML, the number 4.0. None: none."""
    name = str(written).strip().lower().removeprefix("v")
    for candidate in (name, f"{name}.0"):
        if candidate in RULESETS:
            return candidate
    return None


def at_least(ruleset: str, first: str) -> bool:
    """Is `ruleset` the round `first` or a later one?"""
    return RULESETS.index(ruleset) >= RULESETS.index(first)


def init_limit_s(ruleset: str, division: str) -> float:
    """Seconds that may pass before the clock must run (checker files common.yaml)."""
    if not at_least(ruleset, "1.0.0"):
        return 20 * 60
    if division == "open" and at_least(ruleset, "2.0.0"):
        return 240 * 60
    return 30 * 60


def submission_keys(ruleset: str) -> tuple[str, ...]:
    """The keys that name a submission in a round's logs."""
    if ruleset == "0.6.0":
        return (*SUBMISSION_KEYS, "submission_poc_name", "submission_entry")
    return SUBMISSION_KEYS


def statuses(ruleset: str) -> tuple[str, ...]:
    """Allowed values of `submission_status`."""
    if ruleset == "0.6.0":
        return STATUSES[:-1]
    return STATUSES


def weight_names() -> frozenset[str]:
    """The 161 tensors as closed_resnet.yaml of 1.1.0 to 2.1.0 names them."""
    from .resnet_stages import UNITS  # a check of another round's log starts without it

    names = {"bn0_beta", "bn0_gamma", "conv0_weight", "fc1_bias", "fc1_weight"}
    for stage, units in enumerate(UNITS[50], start=1):
        for unit in range(1, units + 1):
            prefix = f"stage{stage}_unit{unit}_"
            layers = [("bn1", "conv1"), ("bn2", "conv2"), ("bn3", "conv3")]
            if unit == 1:
                layers.append(("bnsc", "conv1sc"))
            for norm, convolution in layers:
                names.add(f"{prefix}{norm}_beta")
                names.add(f"{prefix}{norm}_gamma")
                names.add(f"{prefix}{convolution}_weight")
    return frozenset(names)


def known_optimizer(name: object) -> str | None:
    """lars or sgd; None for any other."""
    if isinstance(name, str) and name in OPTIMIZERS:
        return name
    return None
