"""What a rank is and what it writes: place, plan, log, metrics, timeline. Loads no framework."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..config.load import Loaded
from ..config.plan import build_plan
from ..data.cache import drop_caches
from ..data.probe import DataProbe
from ..logging.clock import Clock
from ..logging.metrics import Metrics
from ..logging.mlperf import MLPerfLog
from ..logging.timeline import Timeline
from .checkpoint import Checkpoint
from .connection import Connection
from .gpu import check_machine
from .limits import REQUESTED, StopRequest
from .placement import Placement
from .progress import Progress, warn
from .repeated import steps_repeated
from .resume import last_stamp_unix_s
from .support import decodes_on_gpu


class Session:
    """One rank's side of a run that exists before MXNet does. Ranks above 0 write nothing.

    Raises:
        UserError: the run is for GPUs, and this machine's are none that a rank can use.
    """

    def __init__(
        self, loaded: Loaded, out: Path, place: Placement, resumed: Checkpoint | None = None
    ) -> None:
        if loaded.run.system.device == "gpu":  # first: nothing has been written or read yet
            check_machine(place.local_rank, decodes=decodes_on_gpu(loaded.run))
        self.run = loaded.run
        self.loaded = loaded
        self.config_sha256 = loaded.sha256
        self.resumed = resumed
        """Where the run goes on, if it does not begin."""
        self.plan = build_plan(self.run)
        self.out = out
        self.place = place
        first = place.rank == 0
        self.clock = Clock(last_stamp_unix_s(out) if first and resumed else 0.0)
        """Gives all stamps and times of the run's files."""
        self.log = MLPerfLog(
            out / "result_0.txt" if first else None,
            self.clock,
            resumed=resumed.meta.log_state if resumed else None,
        )
        self.metrics = Metrics(
            out / "metrics.jsonl" if first else None, self.clock, resumed=resumed is not None
        )
        self.progress = Progress(self.plan, self.run.eval.target, shown=first)
        self.timeline = Timeline(place.rank, self.clock)
        self.connection = Connection(self.run, self.timeline, over_mpi=place.over_mpi)
        self.stop = StopRequest()
        self.step = resumed.meta.step if resumed else 0
        """The step known to be enqueued: where a rank was when it failed."""

    def prepare(self) -> None:
        """Drop the caches of the data set, watch it from then on, start the init clock."""
        self._init_start_s = self.clock.unix_s
        self._probe: DataProbe | None = None
        if self.resumed is not None:  # its clock runs already
            return
        self.log.submission(self.run)
        with self.timeline.span("cache clear"):
            if self.place.local_rank == 0:
                folder = Path(self.run.data.path)
                drop_caches(folder)
                self._probe = DataProbe(folder)
        self.log.cache_clear()
        self.log.init_start()
        self._init_start_s = self.clock.unix_s

    def begin_connecting(self) -> None:
        """Join the other ranks in the background while MXNet loads, unless all is serial."""
        if not self.run.startup.serial:
            self.connection.begin()

    def request_stop(self) -> bool:
        """Ask for a checkpoint and an orderly end. False in start-up, which has nothing to save.

        A request may come twice, the second when the first has been obeyed: a rank that writes its
        checkpoint or takes leave of the others must not be ended by that.
        """
        if self.log.clock_started:
            self.stop(REQUESTED)
        return self.log.clock_started

    def change_batch(self, epoch: int, global_batch_size: int) -> None:
        """Tell logs and people of a new batch size, in force from `epoch` on."""
        self.log.batch_change(epoch, global_batch_size)
        self.progress.say(f"  epoch {epoch}: global batch {global_batch_size} from here on")

    def start_clock(self, tensors: Sequence[str]) -> None:
        """End of init: hyper-parameters, proof that the data is untouched, `run_start`.

        The clock of a run that goes on has not stopped since it began.
        """
        if self.resumed is not None:
            self.init_s = self.clock.unix_s - self._init_start_s
            self.run_started_unix_s = self.resumed.meta.run_started_unix_s
            repeated = steps_repeated(self.out, self.step)
            self.log.resume(self.step, ranks=self.plan.ranks, repeated=repeated)
            self.metrics.start_clock(self.run_started_unix_s)
            if self.place.rank == 0 and self.clock.behind_s:
                warn(
                    f"the wall clock is {self.clock.behind_s:.1f} s behind the last stamp of the "
                    "interrupted run; stamps go on from that one, so that the time between the two "
                    "is not known"
                )
            return
        self.log.hyperparameters(self.run, self.plan, tensors)
        if self._probe is not None and (others := self._probe.check_untouched()):
            self.progress.say(f"note: another process reads {', '.join(others)} at the same time")
        self.log.init_stop()
        self.init_s = self.clock.unix_s - self._init_start_s
        self.run_started_unix_s = self.clock.unix_s
        self.log.run_start(self.run)
        self.metrics.start_clock(self.run_started_unix_s)

    def compare_clocks(self) -> None:
        """Note a jump of the host's wall clock: a warning, a record, a key of the log. Rank 0's."""
        by_s = self.clock.look()
        if by_s is None:
            return
        warn(
            f"the wall clock jumped by {by_s:+.1f} s by step {self.step}; the run's stamps follow "
            "the monotonic clock and did not"
        )
        self.metrics.write("wall_clock_jump", step=self.step, by_s=by_s)
        self.log.clock_jump(by_s)
