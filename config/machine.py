"""The machine in the config tree: what it is, how jobs are asked for, what `rn50 predict` knows.

Each description is the reference's (`rn50 config explain`, docs/config.md).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .values import (
    LARGEST,
    MOST,
    MOST_RANKS,
    Bool,
    Count,
    Exponent,
    Fraction,
    Groups,
    Mount,
    NonNegative,
    Positive,
    Ranks,
    Section,
    Setting,
    Text,
    Walltime,
    Word,
    Workers,
)


class Point(Section):
    """A measured step: what a model of a machine is calibrated on."""

    gpus: Count = Field(description="Ranks that took part.")
    batch: Count = Field(description="Images per rank.")
    step_s: Positive = Field(description="Time of one training step.")
    source: Text = Field(description="Where it was measured or published.")


class Compute(Section):
    """Time of a step without exposed communication: fixed_s + per image x batch ^ exponent.

    Two points fix both constants; with `fixed_s` given one point fixes `per image`, and two fix it
    and the exponent (TPU).
    """

    points: tuple[Point, ...] = Field(
        description="Measured steps: one, or two of different batches where fixed_s is not given."
    )
    fixed_s: NonNegative | None = Field(
        default=None,
        description="The part of a step that does not grow with the batch; null: from points.",
    )
    batch_exponent: Exponent = Field(
        default=1.0, description="With which the rest grows with the batch."
    )

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
    """What `rn50 predict` knows of a machine (docs/scaling.md). Rates are per direction."""

    sources: Text = Field(default="-", description="Where the constants come from.")
    other_points: tuple[Point, ...] = Field(
        default=(), description="Measured steps that a constant below was set on."
    )
    fp16: Compute | None = Field(
        default=None, description="Computing in float16, calibrated on points."
    )
    fp32: Compute | None = Field(
        default=None, description="Computing in float32, calibrated on points."
    )
    tf32: Compute | None = Field(
        default=None, description="Computing in TF32, calibrated on points."
    )
    memory_bytes_per_s: Positive = Field(default=8e11, description="Rate of a device's own memory.")
    intra_bytes_per_s: Positive = Field(
        default=5e10, description="Rate of a rank's link inside a node."
    )
    intra_latency_s: NonNegative = Field(
        default=3e-6, description="Latency of a hop inside a node."
    )
    nics: Workers = Field(default=1, description="Network cards of a node, which its ranks share.")
    nic_bytes_per_s: Positive = Field(default=1.25e10, description="Rate of a network card.")
    inter_latency_s: NonNegative = Field(
        default=3e-6, description="Latency of a ring's network hop."
    )
    tree_latency_s: NonNegative = Field(
        default=7.5e-6, description="Latency of a tree's network hop."
    )
    network_efficiency: Annotated[float, Field(strict=True, gt=0, le=1)] = Field(
        default=0.8, description="Share of a network card's rate that messages get."
    )
    rack_nodes: Annotated[int, Field(strict=True, ge=0, le=MOST)] = Field(
        default=0, description="Nodes of a rack; 0: no racks."
    )
    oversubscription: Annotated[float, Field(strict=True, ge=1, le=LARGEST)] = Field(
        default=1.0, description="Of a rack's way out: its nodes' rates over the rate upwards."
    )
    groups: Groups = Field(
        default="equal_count(16)",
        description="Gradient groups where neither config nor option names any.",
    )
    algorithm: Literal[
        "auto", "ring", "torus_2d", "recursive_halving_doubling", "double_tree", "hierarchical"
    ] = Field(default="auto", description="Allreduce where neither config nor option names one.")
    square_torus: Bool = Field(
        default=False,
        description="A torus as square as the ranks allow, instead of nodes x local ranks.",
    )
    launch_s: NonNegative = Field(
        default=2e-5,
        description="What a gradient group costs before its first message, in simulations.",
    )
    jitter: Fraction = Field(
        default=0.01, description="Standard deviation of a rank's computing time, as a share of it."
    )
    interrupted: Fraction = Field(
        default=1e-5, description="Share of a rank's time that rare interruptions take."
    )
    bn_group_samples: Annotated[int, Field(strict=True, ge=0, le=MOST)] = Field(
        default=0,
        description="Ranks share batch-norm statistics until they hold so many images; 0: never.",
    )
    bn_exchange_s: NonNegative = Field(
        default=1.2e-5, description="One exchange of batch-norm statistics between two ranks."
    )
    node_images_per_s: Positive | None = Field(
        default=None, description="Images that a node decodes; null: enough."
    )
    startup_s: NonNegative = Field(default=1.0, description="run_start to the first epoch.")
    first_epoch_s: NonNegative = Field(
        default=0.3, description="What the first epoch takes longer."
    )
    read_bytes_per_s: Positive = Field(
        default=1e9, description="Rate at which a node reads the image set in the first epoch."
    )
    eval_fixed_s: NonNegative = Field(
        default=0.02, description="The part of an evaluation that does not shrink with more ranks."
    )
    eval_images_per_s: Positive = Field(default=1500.0, description="Images that a rank evaluates.")
    init_s: NonNegative = Field(
        default=60.0, description="Process start to run_start; not counted."
    )


class Job(Section):
    """How `rn50 submit` asks a scheduler for this machine (docs/clusters.md)."""

    account: Word | None = Field(default=None, description="Account or group that pays.")
    queue: Word | None = Field(default=None, description="Partition or queue.")
    resource: Word | None = Field(
        default=None,
        description="SGE: the resource type (ABCI: rt_F); Slurm: --gres; PBS: what a chunk has "
        "besides. null: one GPU a rank where system.device is gpu.",
    )
    walltime: Walltime = Field(
        default="01:00:00", description="Longest time of the job, all runs in it."
    )
    options: tuple[Text, ...] = Field(
        default=(),
        description="Further words of the submission command, such as [-g, GROUP] at ABCI.",
    )
    modules: tuple[Word, ...] = Field(default=(), description="Environment modules, loaded first.")
    container: Text | None = Field(
        default=None, description="Image in which the ranks run; null: none."
    )
    engine: Literal["pyxis", "singularity"] = Field(
        default="pyxis", description="What starts the container; pyxis: with Slurm alone."
    )
    mounts: tuple[Mount, ...] = Field(
        default=(),
        description="Folders of the node that the container sees, besides the working folder.",
    )
    home: Text | None = Field(
        default=None,
        description="The checkout on the nodes (in a container: inside it); null: this one.",
    )
    python: Text | None = Field(
        default=None, description="The interpreter on the nodes; null: that of home, or this one."
    )
    stage: Text | None = Field(
        default=None,
        description="Folder on the nodes' own disks to which the image set is copied; $NAME "
        "between slashes is that environment variable. null: no copy.",
    )
    drop_caches: Bool = Field(
        default=False,
        description="Drop all caches of all nodes before each run; needs root or sudo -n.",
    )
    bind: Text = Field(
        default="auto",
        description="Which cores, GPU and network card a rank gets: auto, none, the NAME of a "
        "table config/system/NAME.bind, or its /PATH.",
    )
    environment: tuple[Setting, ...] = Field(
        default=(), description="Environment variables of this machine's jobs."
    )


class System(Section):
    """The machine. Says nothing about learning."""

    name: Text = Field(
        default="local", description="The machine's name, for reports and submissions."
    )
    device: Literal["cpu", "gpu"] = Field(default="cpu", description="What a rank computes on.")
    accelerator: Text = Field(default="CPU core", description="The device's name, for reports.")
    compute_capability: Positive | None = Field(
        default=None,
        description="Of an NVIDIA GPU: decides whether MXNet's machine code runs there; null: "
        "not known before the run.",
    )
    nodes: Ranks = Field(default=1, description="Nodes (hosts) of a run.")
    ranks_per_node: Ranks = Field(
        default=2, description="Ranks (processes, each with its device) of a node."
    )
    cores_per_rank: Workers = Field(default=1, description="Processor cores that a rank may use.")
    interconnect: Text = Field(default="shared memory", description="The network, for reports.")
    scheduler: Literal["local", "slurm", "sge", "pbs", "lsf"] = Field(
        default="local", description="Where rn50 submit hands jobs in."
    )
    results: Text = Field(
        default="results",
        description="Folder below which each run gets its own, NAME/TIME. Relative to the YAML "
        "that holds it; by default and on the command line to the working folder.",
    )
    link_latency_s: Positive | None = Field(
        default=None,
        description="Of the network between the nodes, for comm.algorithm auto; rn50 bench "
        "allreduce measures it. null: Open MPI chooses.",
    )
    link_bytes_per_s: Positive | None = Field(
        default=None,
        description="Of the network between the nodes, for comm.algorithm auto and MPI's send "
        "buffers; rn50 bench allreduce measures it. null: Open MPI and the kernel choose.",
    )
    # No part of a run's digest: a new calibration of the machine makes no other config of the run,
    # and neither do accounts and queues.
    performance: Performance | None = Field(
        default=None,
        exclude=True,
        description="What rn50 predict knows of the machine; null: nothing.",
    )
    job: Job = Field(
        default=Job(), exclude=True, description="How rn50 submit asks for the machine."
    )

    @model_validator(mode="after")
    def _check(self) -> System:
        if self.nodes * self.ranks_per_node > MOST_RANKS:
            raise ValueError(
                f"nodes: at most {MOST_RANKS:,} ranks on all nodes expected, found {self.nodes} x "
                f"{self.ranks_per_node}"
            )
        return self
