"""What a run leaves as records: what it ran on, how it ended, why a rank failed, its scheduler.

`write` writes such a file; `read` says which key of one does not fit. A key that its record does
not have is left out, and one that is absent has its default.
"""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from ..host.atomic import write_file
from ..host.errors import UserError
from ..host.finding import shown
from ..host.reading import read_object

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMAT: Literal[1] = 1
"""The format of the files; an older one has none."""

SUCCESS = "success"
ABORTED = "aborted"
FAILED = "failed"

PASS = "PASS"
POLICY_VERDICT = "POLICY"
NOT_RUN = "NOT_RUN"
"""Verdicts of a checker: ours alone says POLICY, the official one alone NOT_RUN."""

_FAILURE = "rn50: failure: "

TIME_LIMIT = "limits.time_s"
EPOCH_LIMIT = "limits.epochs"

LAUNCH = "launch"
RESUME = "launch --resume"
RESUME_JOB = "submit --resume"

T = TypeVar("T")


@dataclass(frozen=True)
class Stopped:
    """A stop in order before the end. `by`: a signal's name, or whoever asked; empty: a limit."""

    by: str = ""
    step: int = 0
    limit: str | None = None

    def __str__(self) -> str:
        why = f"{self.limit} is spent" if self.limit else f"asked to stop by {self.by}"
        return f"{why} at step {self.step}"


@dataclass(frozen=True)
class Next:
    """The command of ours that goes on from here: `rn50 VERB FOLDER OPTIONS`."""

    verb: str
    folder: str
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        target = f"{self.folder}/config.yaml" if self.verb == LAUNCH else self.folder
        return shlex.join(["rn50", *self.verb.split(), target, *self.options])


@dataclass(frozen=True)
class Verdict:
    """What a checker says about the run's log. Ours gives the `cause`, the official one the
    `ruleset`."""

    verdict: str
    cause: str = ""
    version: str = ""
    ruleset: str = ""
    messages: tuple[str, ...] = ()


def is_valid(verdict: str | None) -> bool:
    """Whether a log, or a submission, of this verdict is a valid result: `log check` and `launch`
    end with exit code 0."""
    return verdict in (PASS, POLICY_VERDICT)


@dataclass(frozen=True)
class Jump:
    """A jump of the host's wall clock."""

    unix_s: float
    by_s: float


@dataclass(frozen=True)
class Clocks:
    """The host's wall clock beside the run's own."""

    wall_minus_monotonic_s: float
    jumps: tuple[Jump, ...] = ()


@dataclass(frozen=True)
class Repeat:
    """How a run compares with a recorded one. `compared`: losses and accuracies that both have.
    `same`: in every bit of these; None where there is nothing to compare."""

    recorded: str
    compared: int
    text: str
    same: bool | None = None


@dataclass(frozen=True)
class ReferenceRate:
    """The machine's own rate for a config, and whether the run's is as good."""

    images_per_s: float
    tolerance: float
    passes: bool


@dataclass(frozen=True)
class Result:
    """result.json. Rank 0 writes it where the ranks ended in order, and the launcher adds `reason`,
    `next` and the verdicts; of another run the launcher writes what it knows. `graphs`: which parts
    of rank 0's steps ran as CUDA graphs, as "2 of 4 segments"; None: on CPUs.
    `norms`: how its batch norms ran; None: as MXNet's operators."""

    status: str
    reason: str = ""
    stopped: Stopped | None = None
    next: Next | None = None
    time_to_train_s: float | None = None
    init_s: float | None = None
    epochs: int = 0
    eval_accuracy: float | None = None
    target: float | None = None
    images_per_s: float | None = None
    flops: int | None = None
    """Operations of forward and backward of all images trained."""
    mfu: float | None = None
    """Share of the devices' peak while training."""
    allreduce_bytes: int | None = None
    """Bytes of gradients of each rank in a step."""
    storage_read_bytes: int | None = None
    """Bytes that all ranks read since `run_start` or the resumption; what the page cache had is not
    read."""
    ranks: int | None = None
    global_batch_size: int | None = None
    config_sha256: str = ""
    seed: int | None = None
    graphs: str | None = None
    norms: str | None = None
    weights_digest: str = ""
    clock: Clocks | None = None
    resumed_after_step: int | None = None
    official_checker: Verdict | None = None
    check: Verdict | None = None
    repeats: Repeat | None = None
    reference: ReferenceRate | None = None
    format: Literal[1] = FORMAT

    @property
    def has_ended(self) -> bool:
        """Whether the ranks came to the run's end by themselves."""
        return self.status in (SUCCESS, ABORTED) and self.stopped is None

    @property
    def why(self) -> str:
        """How it ended, in words, whether or not the launcher could say it."""
        return self.reason or str(self.stopped or "")

    @property
    def objection(self) -> str:
        """What the checkers have against the run's log; empty: nothing. A run that was killed
        before it had their verdicts has an objection too."""
        ours = self.check or Verdict(NOT_RUN)
        official = self.official_checker or Verdict(NOT_RUN)
        if not is_valid(ours.verdict):
            return f"log check says {ours.verdict}: {ours.cause}"
        if official.verdict == PASS:
            return ""
        return f"the official checker says {official.verdict}"

    @property
    def is_good(self) -> bool:
        """Whether the run reached its config's target with a log that the checkers pass, as fast as
        the machine's reference: the exit code of `rn50 launch` and of a job."""
        as_fast = self.reference is None or self.reference.passes
        return self.status == SUCCESS and not self.objection and as_fast


@dataclass(frozen=True)
class Failure:
    """failure_<rank>.json: why a rank ended. `by_all`: all ranks ended alike, and this one is not
    accused. `agreed_step`: the replicas differed or a loss was not finite, and up to that step all
    was well: later checkpoints are not used. `not_finite_step`: the first of such a loss."""

    rank: int
    host: str
    phase: str
    step: int
    reason: str
    retryable: bool = True
    by_all: bool = False
    agreed_step: int | None = None
    not_finite_step: int | None = None
    format: Literal[1] = FORMAT

    @property
    def file_name(self) -> str:
        """The name of its file in the run's folder."""
        return f"failure_{self.rank}.json"

    @property
    def line(self) -> str:
        """This record as a line of stderr, which `failures_in` finds there."""
        return _FAILURE + json.dumps(to_dict(self))

    def __str__(self) -> str:
        who = "all ranks" if self.by_all else f"rank {self.rank} on {self.host}"
        return f"{who} failed in {self.phase} at step {self.step}: {self.reason}"


@dataclass(frozen=True)
class Brief:
    """What `rn50 runs` shows of a config, for files that it reads without the config."""

    name: str = ""
    target: float | None = None
    ranks: int | None = None
    steps: int = 0
    epochs: int = 0


@dataclass(frozen=True)
class Driver:
    """The driver of the GPUs, and what they are."""

    driver: str | None = None
    driver_cuda: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Commit:
    """The commit of the program, and whether its files differ from it."""

    commit: str = "unknown"
    modified: bool = False


@dataclass(frozen=True)
class Environment:
    """environment.json: what a run ran on, and what was set for it. `machine`: fields of a system
    description. `variables`: of the engines, by whose they are and whether the ranks get them."""

    host: str = ""
    processor: str = ""
    machine: dict[str, str] = field(default_factory=dict)
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    gpus: Driver | None = None
    mpi: str | None = None
    git: Commit | None = None
    launcher: str = ""
    allreduce: str = ""
    command: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    variables_kept_from_user: dict[str, str] = field(default_factory=dict)
    variables_not_passed_on: dict[str, str] = field(default_factory=dict)
    variables_present: dict[str, str] = field(default_factory=dict)
    run: Brief | None = None
    format: Literal[1] = FORMAT


@dataclass(frozen=True)
class Confusions:
    """confusions.json: how many images of the evaluation set of each class the weights of a step
    take for each class."""

    step: int
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """A row a class, a column a guess."""
    format: Literal[1] = FORMAT


@dataclass(frozen=True)
class Submission:
    """submission.json of a job: its scheduler, its id there, how many runs it has."""

    scheduler: str = ""
    job: str = ""
    runs: int = 1
    run: Brief | None = None
    format: Literal[1] = FORMAT


def write(path: Path, record: object) -> None:
    """Write a record's file. Raises OSError."""
    write_file(path, json.dumps(to_dict(record), indent=1) + "\n")


def to_dict(record: Any) -> dict[str, Any]:
    """A record as JSON has it, without the keys that say nothing."""
    return {key: v for key, v in asdict(record).items() if v not in (None, "")}


def read(path: Path, record: type[T]) -> T | None:
    """The record in a file; None where there is no file. Raises UserError: it cannot be read, or a
    key does not fit."""
    tree = read_object(path)
    return fit(record, tree, str(path)) if tree else None


def failures_in(printed: str) -> list[Failure]:
    """The failures among the lines that ranks have printed. One that was cut is left out."""
    failures = []
    for match in re.finditer(rf"{_FAILURE}(.*)", printed):
        with suppress(ValueError, UserError):
            failures.append(fit(Failure, json.loads(match[1]), "stderr"))
    return failures


def fit(record: type[T], tree: Any, file_name: str) -> T:
    """A record of the JSON object in a file. Raises UserError for the first key that does not
    fit."""
    try:
        # as JSON: strict takes its lists for tuples, and Python's lists for none
        content = json.dumps(tree, allow_nan=False)
        return cast(T, _adapter(record).validate_json(content, strict=True))  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"{file_name}: {_misfit(error)}") from None


@cache
def _adapter(record: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # 0.1 s that writing a record need not pay

    return TypeAdapter(record)


def _misfit(error: Any) -> str:
    """The first key that pydantic complains about, what was expected and what was found."""
    if not hasattr(error, "errors"):
        return f"JSON: {error}, found null"
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"])) or "JSON"
    return f"{key}: {first['msg']}, found {shown(first.get('input'))}"
