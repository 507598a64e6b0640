"""The config tree: every choice of a run, typed, frozen, unknown keys refused.

A YAML lists only what differs from its `base:`; `config/load.py` merges and reports errors.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    model_validator,
)

from . import benchmark
from .duration import Duration

LOSS_SCALES = (2.0**-14, 2.0**24)
"""Between which a dynamic one moves."""
PLACES = ("data.path", "system.results")
"""Where files lie: relative to the YAML that holds them. Differs in a container and on another
machine, and changes no result."""
ALGORITHMS = (
    *("auto", "ring", "segmented_ring", "recursive_doubling", "recursive_halving_doubling"),
    *("double_tree", "torus_2d", "hierarchical"),
)


def _parse_duration(value: Any) -> Duration:
    if isinstance(value, Duration):
        return value
    if not isinstance(value, str):
        raise ValueError('a duration with its unit, such as "36 epochs" or "540 steps"')
    return Duration.parse(value)


def _parse_groups(value: Any) -> str:
    if isinstance(value, list | tuple) and all(type(size) is int for size in value):
        value = f"explicit({','.join(map(str, value))})"
    if not isinstance(value, str) or not re.fullmatch(
        r"single|(cubic|equal_bytes|equal_count)\([1-9]\d{0,3}\)"
        r"|explicit\([1-9]\d{0,3}(,[1-9]\d{0,3}){0,999}\)",
        value,
    ):
        raise ValueError(
            "cubic(F), equal_bytes(N), equal_count(N), single, F and N from 1, "
            "or a list of group sizes such as [3, 21, 57, 80]"
        )
    return value


def _parse_algorithm(value: Any) -> str:
    if not isinstance(value, str) or (
        value not in ALGORITHMS
        and not re.fullmatch(r"torus_2d\([1-9]\d{0,3}x[1-9]\d{0,3}\)", value)
    ):
        raise ValueError(f"{', '.join(ALGORITHMS)} or torus_2d(ROWSxCOLUMNS)")
    return value


def _parse_loss_scale(value: Any) -> float | str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and 0 < value < float("inf"):
        return float(value)
    start = dynamic_start(value, 1)
    if start is None or not LOSS_SCALES[0] <= start <= LOSS_SCALES[1]:
        raise ValueError(
            "a number above 0, dynamic, or dynamic(FIRST), FIRST from {:g} to {:.0f}, "
            "such as dynamic(0.5)".format(*LOSS_SCALES)
        )
    return str(value)


def dynamic_start(loss_scale: object, batch: int) -> float | None:
    """Where a dynamic loss scale starts; None for a constant one.

    By default at a power of two up to 65536 / batch: 65536 is where MXNet's and NVIDIA's AMP start,
    for the mean of the losses, and here gradients are sums over the global batch.
    """
    match = re.fullmatch(r"dynamic(?:\((\d{1,9}(?:\.\d{1,9})?)\))?", str(loss_scale))
    if match is None:
        return None
    return float(match[1]) if match[1] else 2.0 ** math.floor(math.log2(65536 / batch))


def _check_printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("printable text on one line")
    return value


def _check_word(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.,:=+@/-]*", value):
        raise ValueError("one word of letters, digits and _ . , : = + @ / -")
    return value


def _check_walltime(value: str) -> str:
    if not re.fullmatch(r"[0-9]{2,3}:[0-5][0-9]:[0-5][0-9]", value):
        raise ValueError('HH:MM:SS, in quotes, such as "01:00:00"')
    return value


def _check_setting(value: str) -> str:
    if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", value):
        raise ValueError("NAME=VALUE, NAME of letters, digits and underscores")
    return value


def _check_mount(value: str) -> str:
    if not re.fullmatch(r"/[^:,]*(:/[^:,]*(:(ro|rw))?)?", value):
        raise ValueError("/FOLDER or /FOLDER:/FOLDER-INSIDE or with :ro behind, without commas")
    return value


Int = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]
Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
Bool = Annotated[bool, Field(strict=True)]
Name = Annotated[
    str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
]
Text = Annotated[
    str,
    StringConstraints(strict=True, min_length=1, max_length=400),
    AfterValidator(_check_printable),
]
Word = Annotated[str, StringConstraints(strict=True, max_length=200), AfterValidator(_check_word)]
"""A word of a scheduler's directive line, where no quoting is safe."""
Setting = Annotated[Text, AfterValidator(_check_setting)]
Mount = Annotated[Text, AfterValidator(_check_mount)]
Length = Annotated[Duration, BeforeValidator(_parse_duration), PlainSerializer(str)]
Groups = Annotated[str, BeforeValidator(_parse_groups)]
Algorithm = Annotated[str, BeforeValidator(_parse_algorithm)]
LossScale = Annotated[float | str, BeforeValidator(_parse_loss_scale)]
Triple = tuple[Float, Float, Float]


class Section(BaseModel):
    """Base of all sections: frozen, and a key that is not declared is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Point(Section):
    """A measured step: what a model of a machine is calibrated on."""

    gpus: Count
    batch: Count
    step_s: Positive
    source: Text


class Compute(Section):
    """Time of a step without exposed communication: fixed_s + per image x batch ^ exponent.

    Two points or more fix both constants. With `fixed_s` given one point fixes `per image`, and
    two fix it and the exponent (TPU).
    """

    points: tuple[Point, ...]
    fixed_s: NonNegative | None = None
    batch_exponent: Positive = 1.0

    @model_validator(mode="after")
    def _check(self) -> Compute:
        batches = [point.batch for point in self.points]
        if not batches or (self.fixed_s is None and len(set(batches)) < 2):
            raise ValueError(
                "points: one expected, or two of different batches where fixed_s is not given, "
                f"found batches {batches}"
            )
        return self


class Performance(Section):
    """What `rn50 predict` knows of a machine. Rates are per direction; `docs/scaling.md`."""

    sources: Text = "-"
    other_points: tuple[Point, ...] = ()  # those that a constant below was set on
    fp16: Compute | None = None
    fp32: Compute | None = None
    tf32: Compute | None = None
    memory_bytes_per_s: Positive = 8e11
    intra_bytes_per_s: Positive = 5e10
    intra_latency_s: NonNegative = 3e-6
    nics: Count = 1
    nic_bytes_per_s: Positive = 1.25e10
    inter_latency_s: NonNegative = 3e-6
    tree_latency_s: NonNegative = 7.5e-6
    network_efficiency: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.8
    rack_nodes: Annotated[int, Field(strict=True, ge=0)] = 0
    oversubscription: Annotated[float, Field(strict=True, ge=1)] = 1.0
    groups: Groups = "equal_count(16)"
    algorithm: Literal[
        "auto", "ring", "torus_2d", "recursive_halving_doubling", "double_tree", "hierarchical"
    ] = "auto"
    square_torus: Bool = False
    launch_s: NonNegative = 2e-5
    jitter: Fraction = 0.01
    interrupted: Fraction = 1e-5
    bn_group_samples: Annotated[int, Field(strict=True, ge=0)] = 0
    bn_exchange_s: NonNegative = 1.2e-5
    node_images_per_s: Positive | None = None
    startup_s: NonNegative = 1.0
    first_epoch_s: NonNegative = 0.3
    read_bytes_per_s: Positive = 1e9
    eval_fixed_s: NonNegative = 0.02
    eval_images_per_s: Positive = 1500.0
    gap_s: NonNegative = 0.0
    init_s: NonNegative = 60.0


class Job(Section):
    """How `rn50 submit` asks a scheduler for this machine; `docs/clusters.md`.

    `resource`: SGE's resource type (ABCI: rt_F), Slurm's --gres, what PBS's chunk has besides.
    `options`: further words of the submission command, such as [-g, GROUP] at ABCI.
    `stage`: node-local folder that the data is copied to; $NAME takes it from the environment.
    `bind`: auto, none, or a table of `config/system/NAME.bind` or /PATH.
    """

    account: Word | None = None
    queue: Word | None = None
    resource: Word | None = None
    walltime: Annotated[str, StringConstraints(strict=True), AfterValidator(_check_walltime)] = (
        "01:00:00"
    )
    options: tuple[Text, ...] = ()
    modules: tuple[Word, ...] = ()
    container: Text | None = None
    engine: Literal["pyxis", "singularity"] = "pyxis"
    mounts: tuple[Mount, ...] = ()
    home: Text | None = None
    python: Text | None = None
    stage: Text | None = None
    drop_caches: Bool = False
    bind: Text = "auto"
    environment: tuple[Setting, ...] = ()


class System(Section):
    """The machine. Says nothing about learning."""

    name: Text = "local"
    device: Literal["cpu", "gpu"] = "cpu"
    accelerator: Text = "CPU core"
    # Of an NVIDIA GPU: whether MXNet's machine code runs there.
    compute_capability: Positive | None = None
    nodes: Count = 1
    ranks_per_node: Count = 2
    cores_per_rank: Count = 1
    interconnect: Text = "shared memory"
    scheduler: Literal["local", "slurm", "sge", "pbs", "lsf"] = "local"
    results: Text = "results"
    # Of the network between the nodes, for `comm.algorithm: auto` and send buffers over MPI;
    # `rn50 bench allreduce` prints both. Unknown: Open MPI's and the kernel's own choice.
    link_latency_s: Positive | None = None
    link_bytes_per_s: Positive | None = None
    # Only `rn50 predict` reads it: no part of a run's digest, so that a new calibration of the
    # machine does not make another config of the same run.
    performance: Performance | None = Field(default=None, exclude=True)
    # Only `rn50 submit` reads it: accounts and queues make no other run either.
    job: Job = Field(default=Job(), exclude=True)


class Synthetic(Section):
    """The embedded image set: drawn when `data.path` does not exist."""

    classes: Annotated[int, Field(strict=True, ge=2, le=10)] = 10
    train_samples: Count = 4000
    eval_samples: Count = 1000
    min_px: Annotated[int, Field(strict=True, ge=16)] = 40
    max_px: Annotated[int, Field(strict=True, le=1024)] = 56
    seed: Annotated[int, Field(strict=True, ge=0)] = 0


class Data(Section):
    """Images on disk and what is done to them on the way to the network.

    `skip_bad`: how many training records of a rank may fail to decode; in the place of each comes
    another image of its batch. Evaluation leaves out nothing. `decoder`: what decodes, resizes and
    normalises; auto: what trains.
    """

    path: Text = "datasets/imagenet"
    synthetic: Synthetic | None = None
    classes: Count = benchmark.IMAGENET_CLASSES
    train_samples: Count = benchmark.IMAGENET_TRAIN_SAMPLES
    eval_samples: Count = benchmark.IMAGENET_EVAL_SAMPLES
    crop_px: Annotated[int, Field(strict=True, ge=8, le=1024)] = benchmark.CROP_PX
    eval_resize_px: Annotated[int, Field(strict=True, ge=8, le=1024)] = benchmark.EVAL_RESIZE_PX
    augment: Bool = True
    area: tuple[Fraction, Fraction] = benchmark.CROP_AREA
    aspect: tuple[Positive, Positive] = benchmark.CROP_ASPECT
    flip: Bool = True
    plain_from_epoch: Count | None = None
    interpolation: Literal["linear", "linear_antialias", "cubic"] = "linear"
    mean: Triple = benchmark.RGB_MEAN
    std: Triple = benchmark.RGB_STD
    last_batch: Literal["mix", "pad"] = "mix"
    decoder: Literal["auto", "cpu", "gpu"] = "auto"
    decode_threads: Count = 1
    prefetch: Count = 2
    skip_bad: Annotated[int, Field(strict=True, ge=0)] = 0

    @property
    def is_imagenet(self) -> bool:
        """The set that the rules are made for, by its classes: images of it may be missing."""
        return self.classes == benchmark.IMAGENET_CLASSES

    @model_validator(mode="after")
    def _check(self) -> Data:
        if not 0 < self.area[0] <= self.area[1]:
            raise ValueError(f"area: 0 < lowest <= highest expected, found {list(self.area)}")
        if self.aspect[0] > self.aspect[1]:
            raise ValueError(f"aspect: lowest <= highest expected, found {list(self.aspect)}")
        if min(self.std) <= 0:
            raise ValueError(f"std: three numbers above 0 expected, found {list(self.std)}")
        if self.eval_resize_px < self.crop_px:
            raise ValueError(
                f"eval_resize_px: at least crop_px ({self.crop_px}) expected, "
                f"found {self.eval_resize_px}"
            )
        return self


class Model(Section):
    """The network; `depth`, `width`, `stem`, `norm` and `zero_gamma` are those of a ResNet v1.5.

    `width` 64 and `stem` imagenet are the real one. `layout`: the order in memory of images, maps
    and convolutions in training; weights and function are the same.
    """

    network: Literal["resnet", "alexnet", "googlenet"] = "resnet"
    depth: Literal["tiny", 18, 34, 50, 101, 152] = 50
    width: Annotated[int, Field(strict=True, ge=4, le=256)] = 64
    stem: Literal["imagenet", "small"] = "imagenet"
    norm: Literal["batch", "none"] = "batch"
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    loss_scale: LossScale = 1.0
    bn_momentum: Fraction = benchmark.BN_MOMENTUM
    bn_epsilon: Positive = benchmark.BN_EPSILON
    zero_gamma: Bool = False
    label_smoothing: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.1
    smoothing_form: Literal["others", "uniform"] = "others"


class BatchChange(Section):
    """From the epoch after `after_epoch` on: images per rank, and how many ranks take part."""

    after_epoch: Count
    per_rank: Count
    active_ranks: Count | None = None


class Batch(Section):
    """Images per optimizer step on one rank; the global batch follows from the system.

    `changes` is batch-size control: the batch of a rank (and how many ranks have a share) from
    given epochs on. `follow` says what keeps the noise scale lr N / (B (1 - momentum)) of the
    `reference` batch (default: the first): nothing, the learning rate (in proportion to the batch),
    or the momentum.
    """

    per_rank: Count = 32
    active_ranks: Count | None = None
    changes: tuple[BatchChange, ...] = ()
    follow: Literal["none", "lr", "momentum"] = "none"
    reference: Count | None = None

    @model_validator(mode="after")
    def _check(self) -> Batch:
        epochs = [change.after_epoch for change in self.changes]
        if epochs != sorted(set(epochs)):
            raise ValueError(f"changes: rising after_epoch expected, found {epochs}")
        return self


class Optimizer(Section):
    """The update rule; `variant` names a published set of the keys that are not given here."""

    variant: Literal["sgd", "you", "reference", "nvidia", "fujitsu", "sony", "akiba"] = "nvidia"
    base_lr: Positive = 10.5
    momentum: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.9
    weight_decay: NonNegative = 5e-5
    momentum_correction: Bool | None = None
    eta: Positive | None = None
    epsilon: NonNegative | None = None

    @property
    def name(self) -> str:
        """The optimizer as MLPerf logs name it."""
        return self.variant if self.variant in ("sgd", "akiba") else "lars"


class Milestone(Section):
    """From the epoch after `after_epoch` on the learning rate is `factor` times the base."""

    after_epoch: Count
    factor: NonNegative


class Schedule(Section):
    """Linear warm-up from `warmup_start_lr`, then a shape.

    poly: to `end_lr` over `decay` (default: the rest of the run) with `power`; cosine: likewise;
    step: the factors of `milestones`; sony_b: Sony's configuration B, which ignores the other keys.
    """

    shape: Literal["poly", "cosine", "step", "sony_b"] = "poly"
    length: Length = Duration(37, "epochs")
    warmup: Length = Duration(2, "epochs")
    warmup_start_lr: NonNegative = 0.0
    decay: Length | None = None
    power: Positive = benchmark.DECAY_POWER
    end_lr: NonNegative = benchmark.END_LR
    milestones: tuple[Milestone, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Schedule:
        if self.length.unit == "%":
            raise ValueError(f"length: epochs or steps expected, found {self.length}")
        if self.length.value <= 0:
            raise ValueError(f"length: a duration above 0 expected, found {self.length}")
        if (self.shape == "step") != bool(self.milestones):
            raise ValueError(
                f"milestones: a list for shape step alone expected, found shape {self.shape} "
                f"with {len(self.milestones)}"
            )
        return self


class Comm(Section):
    """How gradients travel: in static groups, last layers first, as type `wire`."""

    groups: Groups = "equal_bytes(8)"
    algorithm: Algorithm = "auto"
    cycle_ms: Positive = 1.0
    wire: Literal["model", "float16"] = "model"


class Startup(Section):
    """The way from process start to the first step."""

    serial: Bool = False
    weights: Literal["seed", "broadcast"] = "seed"


class Eval(Section):
    """When and how accuracy is measured, and the accuracy that ends the run."""

    target: Annotated[float, Field(strict=True, gt=0, lt=1)] = benchmark.TARGET_ACCURACY
    period: Count = benchmark.EVAL_PERIOD_EPOCHS
    offset: Annotated[int, Field(strict=True, ge=0)] = 0
    batch_per_rank: Count = 125
    bn_stats: Literal["local", "average", "batch"] = "average"

    @model_validator(mode="after")
    def _check(self) -> Eval:
        if self.offset >= self.period:
            raise ValueError(
                f"offset: 0 to period - 1 ({self.period - 1}) expected, found {self.offset}"
            )
        return self


class Checkpoint(Section):
    """What is kept so that an interrupted run goes on (docs/reliability.md).

    Written at the end of an epoch once `every` has passed since the last; an interval shorter than
    an epoch is kept at log points too.
    """

    enabled: Bool = True
    every: Length = Duration(10, "%")
    keep: Count = 2


class Watchdog(Section):
    """When a rank counts as lost: not heard of for `start_s`, then silent for `silence_s`, or on
    the same spot for `stall_s`."""

    enabled: Bool = True
    start_s: Positive = 300.0
    silence_s: Positive = 10.0
    stall_s: Positive = 300.0


class Limits(Section):
    """What ends a run early: a budget of time or epochs, accuracy at chance level from
    `learning_by` on, replicas that differ. `grace_s`: from a request to stop to the last
    checkpoint."""

    time_s: Positive | None = None
    epochs: Count | None = None
    learning_by: Length = Duration(50, "%")
    check_replicas: Bool = True
    grace_s: Positive = 10.0


class Log(Section):
    """Who submits, and how often metrics are written."""

    org: Text = "rn50"
    status: Literal["onprem", "cloud", "research", "preview"] = "research"
    every: Length = Duration(20, "steps")


def _ruleset(value: Any) -> Any:
    """As people write it, too: 4.0, v4.0."""
    return benchmark.ruleset_name(value) or value


Ruleset = Annotated[Literal[benchmark.RULESETS], BeforeValidator(_ruleset)]  # type: ignore[valid-type]


class Run(Section):
    """One run: the root of the tree.

    `deterministic`: on a GPU too, kernels that give the same bits in every run; they are slower.
    On a CPU all do.
    """

    name: Name = "run"
    division: Literal["open", "closed"] = "closed"
    ruleset: Ruleset = benchmark.RULESETS[-1]
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] | None = None
    deterministic: Bool = False
    system: System = System()
    data: Data = Data()
    model: Model = Model()
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    comm: Comm = Comm()
    startup: Startup = Startup()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    watchdog: Watchdog = Watchdog()
    limits: Limits = Limits()
    log: Log = Log()
