"""Facts of the MLPerf ResNet-50/ImageNet benchmark. Nothing here is a choice; choices are YAML.

Source: mlcommons/training_policies training_rules.adoc (v0.6 to v4.0) and mlcommons/logging 4.1.68.
"""

from __future__ import annotations

RULESETS = ("0.6.0", "0.7.0", "1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0")
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
RESNET50_PARAMETERS = 25_557_032
END_LR = 1e-4
DECAY_POWER = 2.0
LARS_ETA = 1e-3
LARS_EPSILON = 0.0
