"""The machine in the config tree: what it is, how jobs are asked for, what `rn50 predict` uses.

Each docstring is the reference's (`rn50 config explain`, docs/config.md).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictFloat, model_validator

from .choices import Algorithm, Groups, SchedulerName
from .values import (
    LARGEST,
    MOST_RANKS,
    Bool,
    Count,
    Fraction,
    Measure,
    Mount,
    Name,
    Natural,
    NonNegative,
    Place,
    Positive,
    Ranks,
    Section,
    Setting,
    Share,
    Text,
    Walltime,
    Word,
    Workers,
)

# Unit, lowest, highest and usual value, and other units in which people would write it.
FlopRate = Annotated[
    float,
    Measure(
        "FLOP/s", 1e12, 1e17, 2.5e14, {"PFLOP/s": 1e15, "TFLOP/s": 1e12, "GFLOP/s": 1e9}
    ),
]
MemoryRate = Annotated[
    float, Measure("bytes/s", 1e10, 1e14, 1.5e12, {"TB/s": 1e12, "GB/s": 1e9})
]
Clock = Annotated[float, Measure("Hz", 1e8, 1e10, 1.7e9, {"GHz": 1e9, "MHz": 1e6})]
Memory = Annotated[float, Measure("bytes", 1e8, 1e13, 5e10, {"GB": 1e9, "MB": 1e6})]
LinkRate = Annotated[
    float, Measure("bytes/s", 1e8, 1e13, 6e10, {"TB/s": 1e12, "GB/s": 1e9})
]
CardRate = Annotated[float, Measure("bytes/s", 1e6, 2e11, 1.25e10, {"Gbit/s": 1.25e8})]
DiskRate = Annotated[float, Measure("bytes/s", 1e6, 1e13, 4e9, {"GB/s": 1e9})]
ImageBytes = Annotated[
    float, Measure("bytes", 1e7, 1e11, 2.8e8, {"GB": 1e9, "MB": 1e6})
]
Latency = Annotated[float, Measure("s", 0, 1e-2, 4e-6, {"us": 1e-6})]


class Point(Section):
    """A measured step: what a model of a machine is calibrated on."""

    gpus: Count
    """Ranks that took part."""
    batch: Count
    """Images per rank."""
    step_s: Positive
    """Time of one training step."""
    source: Text
    """The paper, log or file that it was measured or published in."""


class Waiting(Section):
    """What a step waits for beside its computation: network, stragglers, batch norm, input."""

    intra_bytes_per_s: LinkRate = 5e10
    """Rate of a rank's link inside a node."""
    intra_latency_s: Latency = 3e-6
    """Latency of a hop inside a node."""
    nics: Workers = 1
    """Network cards of a node, which its ranks share."""
    nic_bytes_per_s: CardRate = 1.25e10
    """Rate of a network card."""
    inter_latency_s: Latency = 3e-6
    """Latency of a ring's network hop."""
    tree_latency_s: Latency = 7.5e-6
    """Latency of a tree's network hop."""
    rack_nodes: Natural = 0
    """Nodes of a rack; 0: no racks."""
    oversubscription: Annotated[StrictFloat, Field(ge=1, le=LARGEST)] = 1.0
    """How much a rack's way out is shared: its nodes' rates over the rate upwards."""
    groups: Groups = "equal_count(16)"
    """Gradient groups of the machine's own published runs."""
    algorithm: Algorithm = "auto"
    """Allreduce of the machine's own published runs; that of a config is `comm.algorithm`."""
    switches_reduce: Bool = False
    """Switches add gradients (SHARP), where that is faster and the engine chooses."""
    square_torus: Bool = False
    """The torus of the machine's own software is the squarest, not nodes x ranks."""
    launch_s: Latency = 2e-5
    """Time before a group's first message."""
    jitter: Fraction = 0.005
    """Standard deviation of a rank's computing time, a share."""
    os_noise_fraction: Fraction = 1e-5
    """Share of time that rare interruptions take."""
    bn_group_samples: Natural = 0
    """Images over which ranks share batch-norm statistics; 0: never."""
    bn_group_ranks: Count = 4
    """Ranks that share batch-norm statistics at most."""
    bn_exchange_s: Latency = 6e-6
    """One exchange of them between two ranks: two hops inside a node."""
    node_images_per_s: Positive | None = None
    """Images that a node decodes; null: enough."""


class Compute(Section):
    """Time of a step without exposed communication: fixed_s + per image x batch ^ exponent. Points
    refine a data sheet (fp16 with `tensor_flops_per_s`). Without one two points fix both constants;
    beside `fixed_s` one point fixes `per image`, and two the exponent (TPU) as well."""

    points: Annotated[tuple[Point, ...], Field(min_length=1)]
    """Measured steps."""
    fixed_s: NonNegative | None = None
    """The part of a step that does not grow with the batch; null: from points."""

    @model_validator(mode="after")
    def _check(self) -> Compute:
        shortest_s = min(point.step_s for point in self.points)
        if self.fixed_s is not None and self.fixed_s >= shortest_s:
            raise ValueError(
                f"fixed_s: less than every step_s of points expected, {shortest_s:g}, found "
                f"{self.fixed_s:g}"
            )
        return self


class Performance(Waiting):
    """What `rn50 predict` calculates with (docs/scaling.md). Rates are per direction."""

    sources: Text = "-"
    """The sources of the constants."""
    other_points: tuple[Point, ...] = ()
    """Measured steps that a constant was set on."""
    fp16: Compute | None = None
    """Computing in float16, calibrated on points."""
    fp32: Compute | None = None
    """Computing in float32, calibrated on points."""
    tf32: Compute | None = None
    """Computing in TF32, calibrated on points."""
    tensor_flops_per_s: FlopRate | None = None
    """Dense 16-bit rate in the data sheet; null: no data sheet is used."""
    memory_bytes_per_s: MemoryRate = 9e11
    """Rate of a device's memory in the data sheet."""
    clock_hz: Clock = 1.41e9
    """Boost clock in the data sheet, with which the launches of a CUDA graph shorten."""
    memory_bytes: Memory | None = None
    """Memory of a device; null: every batch fits."""
    graphs: Bool = True
    """Steps are CUDA graphs, as MLPerf entries from v1.0 on are."""
    bytes_per_image: ImageBytes | None = None
    """Tensor reads and writes of a step as tests/gpu counts them, for software that was not
    measured; null: as MLPerf entries."""
    startup_s: NonNegative = 1.0
    """run_start to the first epoch."""
    first_epoch_s: NonNegative = 0.3
    """Time that the first epoch takes longer."""
    read_bytes_per_s: DiskRate = 1e9
    """Rate at which a node reads the image set in the first epoch."""
    eval_fixed_s: NonNegative = 0.02
    """An evaluation's part that more ranks do not shrink."""
    eval_images_per_s: Positive = 1500.0
    """Images that a rank evaluates."""
    init_s: NonNegative = 60.0
    """Process start to run_start; not counted."""

    @model_validator(mode="after")
    def _check(self) -> Performance:
        sheet = self.tensor_flops_per_s is not None
        for name in ("fp16", "fp32", "tf32"):
            compute: Compute | None = getattr(self, name)
            if compute is None or compute.fixed_s is not None:
                continue
            batches = {point.batch for point in compute.points}
            if len(batches) < 2 and not (sheet and name == "fp16"):
                raise ValueError(
                    f"{name}: points of two batches expected where neither fixed_s nor, for fp16, "
                    f"tensor_flops_per_s is given, found {batches}"
                )
        return self


class JobSettings(Section):
    """How `rn50 submit` asks a scheduler for this machine (docs/clusters.md)."""

    account: Word | None = None
    """Account or group that is charged."""
    queue: Word | None = None
    """Partition or queue."""
    resource: Word | None = None
    """SGE: resource type; Slurm: --gres; PBS: of a chunk. null: one GPU a rank."""
    parallel_environment: Word = "mpi"
    """SGE without resource: its name for `-pe`."""
    walltime: Walltime = "01:00:00"
    """Longest time of the job, all runs in it."""
    requeue: Bool = False
    """Back into the queue, from the checkpoint, before walltime ends or after a fault."""
    max_restarts: Natural = 0
    """Restarts of a run from its last checkpoint after a fault."""
    min_nodes: Ranks | None = None
    """A restart uses the nodes that are left, if at least so many; null: all nodes alone."""
    options: tuple[Text, ...] = ()
    """Further words of the command, such as [-g, GROUP]."""
    modules: tuple[Word, ...] = ()
    """Environment modules, loaded first."""
    container: Text | None = None
    """Image in which the ranks run; null: none."""
    engine: Literal["pyxis", "singularity"] = "pyxis"
    """What starts the container; pyxis: with Slurm alone."""
    mounts: tuple[Mount, ...] = ()
    """Folders besides the working folder in the container."""
    home: Text | None = None
    """The checkout on the nodes; null: this one."""
    python: Text | None = None
    """The interpreter on the nodes; null: that of home."""
    stage: Text | None = None
    """Folder on the nodes' own disks for a copy of the image set; may have $NAME."""
    drop_caches: Bool = False
    """Drop the nodes' caches before each run; needs sudo -n."""
    bind: Literal["auto", "none"] = "auto"
    """Which cores, GPU and network card a rank gets: scripts/bind.sh's choice, or any."""
    environment: tuple[Setting, ...] = ()
    """Environment variables of this machine's jobs."""


class Description(Section):
    """What a submission's page of the machine says that neither the rest of a config nor Linux has.
    Names: mlperf-logging, system_desc_checker."""

    host_processor_frequency: Text | None = None
    """Clock of the host's processors."""
    host_processor_caches: Text | None = None
    """Caches of the host's processors."""
    host_processor_interconnect: Text | None = None
    """Link between sockets."""
    host_storage_type: Text | None = None
    """Kind of storage of a node, or shared."""
    host_storage_capacity: Text | None = None
    """Size of that storage."""
    host_networking_topology: Text | None = None
    """Topology of the nodes' network."""
    host_memory_configuration: Text | None = None
    """Modules of a node."""
    accelerator_host_interconnect: Text | None = None
    """Link between a device and its host, such as PCIe 4.0 x16."""
    accelerator_frequency: Text | None = None
    """Clock of the device."""
    accelerator_on_chip_memories: Text | None = None
    """Memories on the chip of the device."""
    accelerator_memory_configuration: Text | None = None
    """Kind of the device's memory, such as HBM2e."""
    accelerator_interconnect_topology: Text | None = None
    """Topology of the links between a node's devices."""
    cooling: Text | None = None
    """How the machine is cooled, such as air or liquid."""
    hw_notes: Text | None = None
    """More on the hardware."""


class Reference(Section):
    """A rate that a config reached on this machine while it was known to be healthy."""

    images_per_s: Positive
    """Images per second of all ranks together."""
    tolerance: Share = 0.05
    """Part by which a rate may lie below it."""

    def passes(self, images_per_s: float) -> bool:
        """Is a rate within the tolerance, or better?"""
        return images_per_s >= self.images_per_s * (1 - self.tolerance)

    def line(self, config: str, images_per_s: float) -> str:
        """The verdict on a rate as one line."""
        change = images_per_s / self.images_per_s - 1
        return (
            f"reference of {config}: {'PASS' if self.passes(images_per_s) else 'FAIL'}: "
            f"{images_per_s:.1f} images/s, {change:+.1%} against {self.images_per_s:g} "
            f"(at most -{self.tolerance:.0%})"
        )


class _References(dict[str, Reference]):
    """References by a config's name; hashable, as a machine is."""

    # `predict/fit.py` remembers a machine's model by the System; the items are never changed
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


UNDIGESTED = {"performance", "job", "references", "description"}
"""Parts of a machine that are no part of a run's digest: a new calibration of the machine makes no
other config of the run, and neither do accounts and queues."""


class System(Section):
    """The machine; it has no hyper-parameters."""

    name: Text = "local"
    """The machine's name, for reports and submissions."""
    device: Literal["cpu", "gpu"] = "cpu"
    """What a rank computes on."""
    accelerator: Text = "CPU core"
    """The device's name, for reports."""
    compute_capability: Positive | None = None
    """An NVIDIA GPU's, which says whether MXNet's machine code runs there; null: not known yet."""
    nodes: Ranks = 1
    """Nodes (hosts) of a run."""
    ranks_per_node: Ranks = 2
    """Ranks (processes, each with its device) of a node."""
    cores_per_rank: Workers = 1
    """Processor cores that a rank may use."""
    interconnect: Text = "shared memory"
    """The network, for reports."""
    interfaces: tuple[Word, ...] = ()
    """Network interfaces that MPI, Gloo and NCCL use, such as [ib0]; empty: their choice."""
    scheduler: SchedulerName = "local"
    """Scheduler to which rn50 submit submits jobs."""
    results: Place = "results"
    """Folder below which each run gets its own, NAME/TIME."""
    performance: Performance | None = None
    """What rn50 predict calculates with; null: nothing."""
    job: JobSettings = JobSettings()
    """How rn50 submit asks for the machine."""
    references: Annotated[dict[Name, Reference], AfterValidator(_References)] = (
        _References()
    )
    """Rates by a config's name: for `bench scaling --check` and a run's end."""
    description: Description = Description()
    """What rn50 submission writes of the machine (docs/submission.md)."""

    @property
    def world_size(self) -> int:
        """Ranks of a run."""
        return self.nodes * self.ranks_per_node

    @model_validator(mode="after")
    def _check(self) -> System:
        if self.world_size > MOST_RANKS:
            raise ValueError(
                f"nodes: at most {MOST_RANKS:,} ranks on all nodes expected, found {self.nodes} x "
                f"{self.ranks_per_node}"
            )
        return self
