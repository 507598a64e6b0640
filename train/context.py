"""One process of a run before MXNet is loaded: its config, plan, files, clock and progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..config.load import Loaded
from ..config.plan import build_plan
from ..data.probe import DataProbe, drop_caches
from ..host.atomic import write_file
from ..logging.clock import Clock
from ..logging.metrics import Metrics
from ..logging.mlperf import MLPerfLog
from ..logging.run_folder import RunFolder
from ..logging.timeline import Timeline
from .checkpoint.file import Checkpoint
from .checkpoint.state import TrainState
from .communication.connection import Connection
from .communication.identity import identity_of
from .cuda.code import require_gpu
from .process_info import ProcessInfo
from .reserve import give_back
from .seeding import stream_seeds
from .stopping import StopRequest


class RunContext:
    """What a rank needs besides the framework's objects. Ranks above 0 write no log. Raises
    UserError: the run is for GPUs, and this machine's are none that a rank can use.

    Args:
        loaded: the config.
        out: the folder for the run's files.
        process: who this process is.
        resumed: the checkpoint from which the run goes on.
    """

    def __init__(
        self,
        loaded: Loaded,
        out: Path,
        process: ProcessInfo,
        resumed: Checkpoint | None = None,
    ) -> None:
        # first: nothing has been written or read yet
        if loaded.run.system.device == "gpu":
            require_gpu(loaded.run.model, process.local_rank)
        self.run = loaded.run
        self.loaded = loaded
        self.resumed = resumed
        """The checkpoint from which the run goes on; None: it begins."""
        self.plan = build_plan(self.run)
        self.seeds = stream_seeds(self.run.seed or 0)
        """The seeds of all random streams."""
        self.state = resumed.meta.state.model_copy() if resumed else TrainState()
        """How far training has come: written by `run.py` alone."""
        self.folder = folder = RunFolder(out)
        self.process = process
        first = process.rank == 0
        is_resumed = resumed is not None
        self.clock = Clock(folder.last_stamp_unix_s if first and resumed else 0.0)
        """Gives all stamps and times of the run's files."""
        self.log = MLPerfLog(
            folder.log if first else None, self.clock, resumed=is_resumed
        )
        self.metrics = Metrics(
            folder.metrics if first else None, self.clock, resumed=is_resumed
        )
        self.shows_progress = first
        """Whether this rank prints how training is coming on."""
        self.timeline = Timeline(process.rank, self.clock)
        begun_s = self.clock.unix_s
        self.identity = identity_of(loaded)
        """What this rank must have in common with all others."""
        self.timeline.add("read identity", begun_s, self.clock.unix_s)
        self.connection = Connection(self.run, self.timeline, over_mpi=process.over_mpi)
        self.stop = StopRequest()
        self.eval_batches = 0
        """Batches that evaluations have asked for."""
        self.done_step: Callable[[], int] = lambda: 0
        """Gives the last step that the device has done; 0: it is not known."""
        self.run_started_unix_s = resumed.meta.run_started_unix_s if resumed else None
        """When the run's clock started; None: not yet."""
        self.init_s = 0.0
        """The time from the start of initialization to the end of `start_clock`."""
        self._init_start_s = self.clock.unix_s
        self._probe: DataProbe | None = None

    @property
    def elapsed_s(self) -> float:
        """Since the run's clock started."""
        assert self.run_started_unix_s is not None
        return self.clock.unix_s - self.run_started_unix_s

    @property
    def step(self) -> int:
        """The step that the loop is at."""
        return max(self.state.step, self.stop.begun_step)

    @property
    def grace_s(self) -> float:
        """From a request to stop to the last checkpoint, at most: some steps, or an evaluation that
        is under way."""
        return max(self.run.limits.grace_s, 3 * self.stop.longest_step_s)

    def give_back(self) -> None:
        """Make room for what the end of the run writes, if this is the rank that writes it."""
        if self.process.rank == 0:
            give_back(self.folder.path)

    def write_timeline(self) -> None:
        """timeline.json, if this is the rank that writes it."""
        if self.process.rank == 0:
            write_file(self.folder.timeline, self.timeline.to_json())

    def prepare(self) -> None:
        """Drop the caches of the data set, watch it from then on, start the init clock."""
        if self.resumed is None:  # else its clock runs already
            self.log.submission(self.run)
            with self.timeline.span("cache clear"):
                if self.process.local_rank == 0:
                    folder = Path(self.run.data.path)
                    drop_caches(folder)
                    self._probe = DataProbe(folder)
            self.log.event("cache_clear", True)
            self.log.event("init_start")
        self._init_start_s = self.clock.unix_s

    def begin_connecting(self) -> None:
        """Join the other ranks in the background while MXNet loads, unless all is serial."""
        if not self.run.startup.serial:
            self.connection.begin()

    @property
    def is_started(self) -> bool:
        """Whether there is anything to save: the run's clock has started."""
        return self.run_started_unix_s is not None

    def start_clock(self, tensors: Sequence[str]) -> None:
        """End of init: hyper-parameters, proof that the data is untouched, `run_start`.

        The clock of a run that goes on has not stopped since it began.
        """
        if self.resumed is not None:
            begun_s = self.resumed.meta.run_started_unix_s
            self.log.resume(
                self.state.step,
                ranks=self.plan.ranks,
                ranks_before=self.resumed.meta.ranks,
            )
        else:
            self.log.hyperparameters(self.run, self.plan, tensors)
            if self._probe is not None:
                self._probe.check_untouched()
            self.log.event("init_stop")
            begun_s = self.clock.unix_s
            self.log.run_start(self.run)
        self.init_s = self.clock.unix_s - self._init_start_s
        self.metrics.start_clock(begun_s)
        self.run_started_unix_s = begun_s
