"""The config tree: every choice of a run, typed, frozen, unknown keys refused.

A YAML lists only what differs from its `base:`; `config/load.py` merges and reports errors. The
docstrings are the reference's: `rn50 config explain`, docs/config.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictFloat, StrictInt, model_validator

from . import benchmark
from .choices import (
    NETWORKS,
    SHAPES,
    Algorithm,
    Groups,
    Network,
    OneOf,
    Shape,
    meanings,
)
from .machine import System
from .resnet_stages import UNITS
from .values import (
    MOST,
    MOST_EPOCHS,
    BelowOne,
    Bool,
    Count,
    Duration,
    Epoch,
    Factor,
    Float,
    Fraction,
    Length,
    LossScale,
    Name,
    NonNegative,
    Pixels,
    Place,
    Positive,
    Profiled,
    Range,
    Ruleset,
    Seconds,
    Section,
    Seed,
    Share,
    Text,
    Workers,
)
from .variants import VARIANTS, Rule

PLACES = ("data.path", "system.results")
"""The keys that say where files lie, relative to the working folder: they change no result."""


class Synthetic(Section):
    """The generated image set: texture classes, drawn if `data.path` is missing. A config with
    another `data.path` has none of its base's, unless it says `synthetic: {}` as well."""

    classes: Annotated[StrictInt, Field(ge=2, le=1000)] = 10
    """Classes to draw."""
    train_samples: Count = 4000
    """Training images to draw."""
    eval_samples: Count = 1000
    """Evaluation images to draw."""
    min_px: Pixels = 40
    """Smallest height and width of an image."""
    max_px: Pixels = 56
    """Largest height and width of an image."""
    seed: Seed = 0
    """Seed of all that is random in the images."""

    @model_validator(mode="after")
    def _check(self) -> Synthetic:
        for low, high in (("min_px", "max_px"), ("classes", "train_samples")):
            lowest = getattr(self, low)
            highest = getattr(self, high)
            if lowest > highest:
                raise ValueError(
                    f"{low}: at most {high} ({highest}) expected, found {lowest}"
                )
        return self


class Augmentation(Section):
    """Further operations on the random window, nnabla's (docs/recipes.md): for each a range, from
    which every image draws, or null: off."""

    padding: Range[Fraction] | None = None
    """Border around the window, in its sides."""
    scale: Range[Factor] | None = None
    """Enlargement about a random place."""
    aspect: Range[Factor] | None = None
    """Stretch of the width over that of the height."""
    rotation_deg: Range[Float] | None = None
    """Rotation of the image."""
    brightness: Range[Float] | None = None
    """Added to each channel; 1 is white less black."""
    contrast: Range[Factor] | None = None
    """Factor about mid-grey, one for each channel."""
    noise: Range[Fraction] | None = None
    """Standard deviation; 1 is white less black."""

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The operations that are on."""
        return self.model_dump(exclude_none=True)


DECODING_THREADS = 8
"""So many decode as fast as an H200's JPEG decoder while it trains: 5,900 images/s
(docs/notebook/gpu.md)."""


class Data(Section):
    """Images on disk and what is done to them on the way to the network."""

    mean: ClassVar[tuple[float, ...]] = benchmark.RGB_MEAN
    std: ClassVar[tuple[float, ...]] = benchmark.RGB_STD
    path: Place = "datasets/imagenet"
    """Folder that rn50 data pack has made."""
    synthetic: Synthetic | None = None
    """Drawn where data.path is missing; null: nothing."""
    classes: Annotated[StrictInt, Field(ge=2, le=MOST)] = benchmark.IMAGENET_CLASSES
    """Not given: of data.synthetic, manifest.json, or ImageNet's."""
    train_samples: Count = benchmark.IMAGENET_TRAIN_SAMPLES
    """Training images. Not given: as data.classes."""
    eval_samples: Count = benchmark.IMAGENET_EVAL_SAMPLES
    """Evaluation images. Not given: as data.classes."""
    crop_px: Pixels = benchmark.CROP_PX
    """Height and width of what the network sees."""
    eval_resize_px: Pixels = benchmark.EVAL_RESIZE_PX
    """Shorter side of an evaluation image before its centre is cut."""
    augment: Bool = True
    """Train on random windows; false: on the centre."""
    area: Range[Share] = benchmark.CROP_AREA
    """Smallest and largest share of the image in a window."""
    aspect: Range[Positive] = benchmark.CROP_ASPECT
    """Smallest and largest width over height of a window."""
    flip: Bool = True
    """Mirror half of the training images."""
    augmentation: Augmentation = Augmentation()
    """Operations on the random window."""
    no_augment_from_epoch: Epoch | None = None
    """From this epoch on images as in evaluation, in stored order; null: never."""
    last_batch: Literal["mix", "pad"] = "mix"
    """If not full: mix: runs over into the next epoch; pad: is filled from its own."""
    shards: Literal["node"] | None = None
    """node: every node reads and shuffles one part alone, with last_batch pad; null: all."""
    decoder: Literal["auto", "cpu", "gpu"] = "auto"
    """What decodes, resizes and normalises; auto: the device that trains."""
    decode_threads: Workers = 1
    """Threads of a rank's image pipeline."""
    hw_decoder_load: Fraction | None = Field(
        default=None,
        description="Share of the images that the JPEG decoder of an A100 or H100 takes, where a "
        "GPU decodes. It saves cores, but starts a kernel for each image, which waits behind those "
        f"of the step. null: 0 where `decode_threads` is {DECODING_THREADS} or more, else 0.99.",
    )
    prefetch: Workers = 2
    """Batches that the image pipeline works ahead."""

    @property
    def is_imagenet(self) -> bool:
        """The set that the rules are made for, by its classes: images of it may be missing."""
        return self.classes == benchmark.IMAGENET_CLASSES

    @model_validator(mode="after")
    def _check(self) -> Data:
        if self.eval_resize_px < self.crop_px:
            raise ValueError(
                f"eval_resize_px: at least crop_px ({self.crop_px}) expected, "
                f"found {self.eval_resize_px}"
            )
        return self


class Model(Section):
    """The network, its precision and its loss."""

    network: Network = Field(default="resnet", description=meanings(NETWORKS))
    depth: Annotated[int | str, OneOf(UNITS)] = 50
    """Layers of a ResNet; tiny: one unit a stage, for tests."""
    width: Annotated[StrictInt, Field(ge=4, le=256)] = 64
    """Channels after the first convolution; the published ResNet has 64."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """First layers: imagenet: 7x7 and pooling, as published; small: one 3x3."""
    norm: Literal["batch", "none"] = "batch"
    """Batch norm, or none."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of layers and gradients; weights stay float32. float16: GPUs; bfloat16: CPUs."""
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    """Order in memory in training; NHWC on GPUs alone, and all that a plan has. The function is
    the same."""
    step: Literal["auto", "plan", "operators"] = "auto"
    """How a GPU computes the network. plan: by cuDNN's fused calls in NHWC and kernels of this
    program (ResNet with batch norm, compute capability 7.0 to 9.0); operators: MXNet's, up to
    8.9; auto: plan where the network has one."""
    loss_scale: LossScale = 1.0
    """Factor of the loss, for float16 gradients that vanish; dynamic: found in the run."""
    bn_momentum: Fraction = benchmark.BN_MOMENTUM
    """Share of its old value in batch norm's running average."""
    bn_epsilon: Positive = benchmark.BN_EPSILON
    """Added to the variance in batch norm."""
    zero_gamma: Bool = False
    """Start the last batch norm of each unit at 0, not at 1."""
    label_smoothing: BelowOne = 0.1
    """Probability that the target distribution takes from the true class for the others."""

    @property
    def has_plan(self) -> bool:
        """Can a plan compute this network?"""
        return self.network == "resnet" and self.norm == "batch"

    @property
    def is_planned(self) -> bool:
        """Does a plan compute it on a GPU?"""
        return self.step == "plan" or (self.step == "auto" and self.has_plan)


class BatchChange(Section):
    """From the epoch after `after_epoch` on: images per rank, and how many ranks take part."""

    after_epoch: Epoch
    """The last epoch with the batch before."""
    per_rank: Count
    """Images per step on one rank from then on."""
    active_ranks: Count | None = None
    """Ranks with a share of the batch; null: all."""


class Batch(Section):
    """Images per optimizer step; the global batch is that of a rank times the active ranks."""

    per_rank: Count = 32
    """Images per step on one rank."""
    active_ranks: Count | None = None
    """Ranks with a share of the batch; null: all."""
    changes: tuple[BatchChange, ...] = ()
    """Other batches, from rising epochs on."""
    follow: Literal["none", "lr", "momentum", "momentum_as_printed"] = "none"
    """What keeps the noise scale lr N / (B (1 - momentum)) when the batch changes.
    momentum_as_printed: Sony's formula, by which momentum falls as the batch grows."""
    reference: Count | None = None
    """Global batch of that scale; null: the first."""

    @model_validator(mode="after")
    def _check(self) -> Batch:
        _check_rising("changes", self.changes)
        return self


class Optimizer(Section):
    """The update rule (docs/recipes.md)."""

    variant: Annotated[str, OneOf(VARIANTS)] = "nvidia"
    """A published rule: momentum SGD, akiba's RMSprop and then SGD, or LARS."""
    base_lr: Positive = 10.5
    """Learning rate after warm-up. It belongs to an optimizer and a global batch."""
    momentum: BelowOne = 0.9
    """Share of the last update in the next."""
    weight_decay: NonNegative = 5e-5
    """Factor of the weights in their gradient."""
    momentum_correction: Bool | None = None
    """Multiply momentum by this step's learning rate over the last's; null: the variant's."""
    eta: Positive | None = None
    """LARS's trust coefficient; null: the variant's."""
    epsilon: NonNegative | None = None
    """Added to the denominator of LARS's trust ratio; null: the variant's."""

    @property
    def name(self) -> str:
        """The optimizer as MLPerf logs name it."""
        return VARIANTS[self.variant].optimizer

    @property
    def rule(self) -> Rule:
        """The variant's rule, with the keys given here in place of the published ones."""
        keys = {"eta", "epsilon", "momentum_correction"}
        replaced = self.model_dump(include=keys, exclude_none=True)
        return replace(VARIANTS[self.variant], **replaced)


class Milestone(Section):
    """From the epoch after `after_epoch` on the learning rate is `factor` times the base."""

    after_epoch: Epoch
    """The last epoch with the factor before."""
    factor: NonNegative
    """The number by which base_lr is multiplied from then on."""


class Schedule(Section):
    """The learning rate over the run: linear warm-up, then a shape."""

    shape: Shape = Field(default="poly", description=meanings(SHAPES))
    length: Length = Duration(37, "epochs")
    """Length of a run that does not reach its target."""
    warmup: Length = Duration(2, "epochs")
    """Linear rise from warmup_start_lr to base_lr."""
    warmup_start_lr: NonNegative = 0.0
    """Learning rate one step before the first."""
    decay: Length | None = None
    """Length of the fall; null: to the end of the run."""
    decay_from: Literal["warmup_end", "run_start", "first_step_after_warmup"] = (
        "warmup_end"
    )
    """The step from which poly and cosine count; both begin after the warm-up. warmup_end: at its
    last step; first_step_after_warmup: at the next one, which still has base_lr; run_start: at
    the start of the run, so the warm-up ends with a drop below base_lr (Caffe's poly)."""
    power: Positive = benchmark.DECAY_POWER
    """Exponent of shape poly."""
    end_lr: NonNegative = benchmark.END_LR
    """Learning rate at the end of the shapes that fall to it."""
    milestones: tuple[Milestone, ...] = ()
    """Factors of shape step, and of it alone; none: base_lr stays, as where the batch grows
    instead."""

    @model_validator(mode="after")
    def _check(self) -> Schedule:
        if self.length.unit == "%" or self.length.value <= 0:
            raise ValueError(
                f"length: epochs or steps above 0 expected, found {self.length}"
            )
        if self.milestones and self.shape != "step":
            raise ValueError(
                f"milestones: shape step expected, found shape {self.shape} "
                f"with {len(self.milestones)}"
            )
        _check_rising("milestones", self.milestones)
        return self


def _check_rising(key: str, entries: Sequence[BatchChange | Milestone]) -> None:
    epochs = [entry.after_epoch for entry in entries]
    if epochs != sorted(set(epochs)):
        raise ValueError(f"{key}: rising after_epoch expected, found {epochs}")


class Comm(Section):
    """How gradients travel between ranks (docs/communication.md)."""

    groups: Groups = "equal_bytes(8)"
    """Gradients that are reduced together. Not given: single where GPUs train."""
    algorithm: Algorithm = "auto"
    """How they are summed; auto: the engine's own choice."""
    cycle_ms: Positive = 1.0
    """How often Horovod looks for ready gradients. Not given: 0.1 where GPUs train."""
    gradient_dtype: Literal["model", "float16"] = "model"
    """Type in which gradients are sent: that of the model, or float16."""


class Startup(Section):
    """The way from process start to the first step (docs/startup.md)."""

    serial: Bool = False
    """One stage after the other, for comparison."""
    weights: Literal["seed", "broadcast"] = "seed"
    """Source of a rank's first weights: the seed, equal on all ranks, or rank 0."""


class Eval(Section):
    """When and how accuracy is measured, and the accuracy that ends the run."""

    target: Annotated[StrictFloat, Field(gt=0, lt=1)] = benchmark.TARGET_ACCURACY
    """Top-1 accuracy that ends the run; a lower one: division open."""
    period: Epoch = benchmark.EVAL_PERIOD_EPOCHS
    """Epochs from one evaluation to the next."""
    offset: Annotated[StrictInt, Field(ge=0, lt=MOST_EPOCHS)] = 0
    """Epoch offset + 1 is the first that is evaluated; 0 to period - 1."""
    batch_per_rank: Count = 125
    """Images per evaluation step on one rank."""
    bn_stats: Literal["local", "average", "batch"] = "average"
    """local: each rank's running ones; average: over ranks; batch: the last batch's."""


class Checkpoint(Section):
    """What is kept so that an interrupted run can be resumed (docs/reliability.md)."""

    enabled: Bool = True
    """Write checkpoints."""
    every: Length = Duration(10, "%")
    """Least training between two; below an epoch: at log points too."""
    keep: Count = 2
    """Newest checkpoints that stay on disk."""


class Watchdog(Section):
    """When a rank counts as lost (docs/reliability.md)."""

    enabled: Bool = True
    """End the run when a rank is lost."""
    start_s: Seconds = 300.0
    """Longest time in start-up to a rank's connection, then to each new phase."""
    silence_s: Seconds = 10.0
    """Longest time from one message of a rank to the next, if its process does nothing."""
    stall_s: Seconds = 300.0
    """Longest time on the same step in which no rank's process works."""


class Limits(Section):
    """What ends a run early. The run can be resumed after its time or its epochs."""

    time_s: Seconds | None = None
    """Budget of time from run_start on; null: none."""
    epochs: Epoch | None = None
    """Budget of epochs; null: none."""
    min_accuracy_by: Annotated[
        Length | None, BeforeValidator(lambda value: None if value == "off" else value)
    ] = Duration(50, "%")
    """From here on accuracy at chance level ends the run; null, off: never."""
    grace_s: Seconds = 10.0
    """From a request to stop to the last checkpoint, at most."""


class Log(Section):
    """Who submits, and how often metrics are written."""

    org: Text = "rn50"
    """Organisation, as the MLPerf log names it."""
    status: Literal["onprem", "cloud", "research", "preview"] = "research"
    """Submission status, as the MLPerf log names it."""
    every: Length = Duration(20, "steps")
    """From one line of metrics to the next."""
    profile: Profiled | None = None
    """Steps of which every operation is recorded, such as 20 or 101-120; norms: at log points the
    norms of each tensor's weights and gradients; null: none."""


class Run(Section):
    """One run: the root of the tree."""

    name: Name = "run"
    """Name of the config; its runs lie in RESULTS/NAME/TIME."""
    division: Literal["open", "closed"] = "closed"
    """MLPerf's: closed holds to the rules, open leaves all choices."""
    ruleset: Ruleset = benchmark.RULESETS[-1]
    """MLPerf round whose rules hold."""
    seed: Seed | None = None
    """Seed of all that is random; null: drawn for each run."""
    deterministic: Bool = False
    """Use kernels that give the same bits in every run on a GPU too; they are slower."""
    system: System = System()
    """The machine."""
    data: Data = Data()
    """The image set and its preparation."""
    model: Model = Model()
    """The network."""
    batch: Batch = Batch()
    """Images per step."""
    optimizer: Optimizer = Optimizer()
    """The update rule."""
    schedule: Schedule = Schedule()
    """The learning rate over the run."""
    comm: Comm = Comm()
    """How gradients travel."""
    startup: Startup = Startup()
    """From process start to the first step."""
    eval: Eval = Eval()
    """When accuracy is measured, and the target."""
    checkpoint: Checkpoint = Checkpoint()
    """What a run resumes from."""
    watchdog: Watchdog = Watchdog()
    """When a rank counts as lost."""
    limits: Limits = Limits()
    """What ends a run early."""
    log: Log = Log()
    """The MLPerf log and metrics."""
