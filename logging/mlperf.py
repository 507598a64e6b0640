"""The MLPerf log of a run: mlperf-logging's writer, rank 0 only.

Its one caller, the trainer, keeps the order of events, and `rn50 log check` checks it in the log.
Order and keys: training_rules.adoc (v0.7 to v4.0) and the official checker's closed ResNet files.
"""

import json
import logging
import math
import re
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants as key
from mlperf_logging.mllog.mllog import MLLogger

from ..config import benchmark
from ..config.plan import Plan
from ..config.schema import Run
from ..host.reading import read_file
from .clock import Clock, Moment, present
from .line_file import LineFile, last_stamp_unix_s
from .run_time import RESUMED, SAVE_START, SAVE_STOP

CLOCK_JUMP = "wall_clock_jump"
"""Our key for the place where the host's wall clock was seen to have jumped, by so many seconds."""
DECAY_SHAPE = "opt_learning_rate_decay_shape"
DECAY_FROM = "opt_learning_rate_decay_from"
"""Our keys for the shape of the schedule and where a polynomial counts from: those of the rules
describe one polynomial."""
_NO_TIME = '"time_ms": 0,'
"""The stamp of a line whose time is not known yet."""
_MOST_BYTES = 64 << 20
"""The largest log of ours that is read: 90 epochs take 100 kB."""


def _official_name(tensor: str) -> str:
    """A tensor as the official checker's list names it: shortcut and classifier differ."""
    # closed_resnet.yaml of 1.1.0: stage1_unit1_conv1sc_weight, fc1_bias
    return tensor.replace("_convsc_", "_conv1sc_").replace("fc_", "fc1_")


class _Line(logging.Handler):
    """Keeps the last line that mlperf-logging has made, as its time may not be known yet."""

    line = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the line of a record."""
        self.line = self.format(record)


class MLPerfLog:
    """Writes one run's log: each record as soon as its time is known, in the order of the calls. A
    record is never earlier than the one before it.

    Args:
        path: log file, created anew, one flushed line an event; None (ranks above 0): nothing is
            written. Raises UserError where the disk does not take it.
        clock: gives the stamps.
        resumed: continue the log of an interrupted run, whose clock runs.
    """

    def __init__(
        self, path: Path | None, clock: Clock, *, resumed: bool = False
    ) -> None:
        self.clock_runs = resumed
        """Has the run started and not stopped?"""
        self._clock = clock
        self._file: LineFile | None = None
        self._made = _Line()
        self._waiting: deque[tuple[Moment, str]] = deque()
        """The lines that are not written yet."""
        self._last_ms = 0
        self._lock = threading.RLock()
        """A rank that is asked to end writes its last record from another thread."""
        self._logger: MLLogger | None = None
        if path:
            self._file = LineFile(path, resumed=resumed)
            # its own: no parents, no registry
            sink = logging.Logger("rn50.mlperf", logging.INFO)
            sink.addHandler(self._made)
            # Two frames up from mllog: the caller of this class, not the class.
            self._logger = MLLogger(
                sink,
                default_stack_offset=3,
                # goes to re.sub
                root_dir=re.escape(str(Path(__file__).resolve().parent.parent)),
            )

    def event(
        self,
        name: str,
        value: Any = None,
        moment: Moment | None = None,
        **metadata: Any,
    ) -> None:
        """Log an event of the run.

        Args:
            name: the key of the record.
            value: its value.
            moment: when the device was or will be done with what lies before; None: now.
            metadata: what the record says besides.
        """
        # not _write itself: a record names its caller's line, so many calls above the logger
        self._write(name, value, moment, **metadata)

    def submission(self, run: Run) -> None:
        """Who ran what, in which division."""
        self._write(key.SUBMISSION_BENCHMARK, benchmark.BENCHMARK)
        self._write(key.SUBMISSION_ORG, run.log.org)
        self._write(key.SUBMISSION_DIVISION, run.division)
        self._write(key.SUBMISSION_STATUS, run.log.status)
        self._write(key.SUBMISSION_PLATFORM, run.system.name)

    def hyperparameters(
        self, run: Run, plan: Plan, tensors: Sequence[str] = ()
    ) -> None:
        """Seed, batch, optimizer and schedule: the keys of the optimizer in use alone. `tensors`
        are those whose weights have been initialised; the rulesets that want them get one record
        each."""
        optimizer = run.optimizer
        schedule = run.schedule
        warmup_epochs = plan.warmup_images / plan.samples_per_epoch(plan.segments[0])
        prefix = f"{optimizer.name}_opt"
        values = {
            key.SEED: run.seed,
            key.MODEL_BN_SPAN: run.batch.per_rank,
            key.GLOBAL_BATCH_SIZE: plan.global_batch_size,
            key.GRADIENT_ACCUMULATION_STEPS: 1,
            key.OPT_NAME: optimizer.name,
            f"{prefix}_base_learning_rate": optimizer.base_lr,
            f"{prefix}_end_learning_rate": schedule.end_lr,
            DECAY_SHAPE: schedule.shape,
            f"{prefix}_momentum": optimizer.momentum,
            f"{prefix}_weight_decay": optimizer.weight_decay,
        }
        if schedule.shape == "poly":
            values[f"{prefix}_learning_rate_decay_poly_power"] = schedule.power
            values[f"{prefix}_learning_rate_decay_steps"] = plan.decay_steps
            values[DECAY_FROM] = schedule.decay_from
        warmup_key = key.OPT_LR_WARMUP_EPOCHS
        if optimizer.name == "lars":
            values[key.LARS_EPSILON] = optimizer.rule.epsilon
            warmup_key = key.LARS_OPT_LEARNING_RATE_WARMUP_EPOCHS
        # a warm-up of whole steps may be no round number of epochs
        values[warmup_key] = round(warmup_epochs, 6)
        for name, value in values.items():
            self._write(name, value)
        if run.ruleset in benchmark.WEIGHT_NAMES_RULESETS:
            for tensor in map(_official_name, tensors):
                self._write(key.WEIGHTS_INITIALIZATION, None, tensor=tensor)

    def run_start(self, run: Run) -> None:
        """The clock starts. Nothing may have read the data set before."""
        self.clock_runs = True
        self._write(key.RUN_START)
        self._write(key.TRAIN_SAMPLES, run.data.train_samples)
        self._write(key.EVAL_SAMPLES, run.data.eval_samples)

    @property
    def size_bytes(self) -> int:
        """The size of the file so far."""
        self.flush()
        return 0 if self._file is None else self._file.size_bytes

    def resume(self, step: int, *, ranks: int, ranks_before: int) -> None:
        """The run is resumed after `step`: a key of our own; its clock has never stopped."""
        counts: dict[str, Any] = {"ranks": ranks}
        if ranks != ranks_before:
            counts["ranks_before"] = ranks_before
        self._write(RESUMED, step, **counts)

    def clock_jump(self, by_s: float) -> None:
        """The host's wall clock has jumped, a key of our own: these stamps have not."""
        if self.clock_runs:
            self._write(CLOCK_JUMP, by_s)

    def save_start(self, step: int, done: Moment) -> None:
        """A checkpoint, keys of our own: `done` is when the device had done `step`."""
        if self.clock_runs:
            self._write(SAVE_START, moment=done, step=step)

    def save_stop(self, step: int) -> None:
        """Training may go on."""
        if self.clock_runs:
            self._write(SAVE_STOP, step=step)

    def run_stop(self, *, success: bool) -> None:
        """The clock stops: success only after an evaluation at or above the target."""
        self.clock_runs = False
        self._write(key.RUN_STOP, status=key.SUCCESS if success else key.ABORTED)

    def abort(self) -> None:
        """run_stop "aborted" from wherever the run is; nothing if its clock is not running."""
        with self._lock:
            if not self.clock_runs:
                return
            self.clock_runs = False
            self.flush()
            self._waiting.clear()  # what the device has not done
            self._write(key.RUN_STOP, status=key.ABORTED)

    def flush(self) -> None:
        """Write the records whose time is known by now, up to the first one whose is not."""
        with self._lock:
            while self._waiting and self._file:
                # in the order of the calls: one that is not known yet holds up the others
                moment, line = self._waiting[0]
                unix_s = self._clock.unix_s_at(moment)
                if math.isnan(unix_s):
                    return
                self._waiting.popleft()
                # stamps of the device can lie before a stamp of the host that is written
                self._last_ms = max(self._last_ms, int(unix_s * 1000))
                time = f'"time_ms": {self._last_ms},'
                self._file.write(line.replace(_NO_TIME, time, 1))

    def _write(
        self,
        name: str,
        value: Any = None,
        moment: Moment | None = None,
        **metadata: Any,
    ) -> None:
        """An event, an interval's start or its end, as its name says. `moment`: None: now."""
        if not self._logger:
            return
        write = self._logger.event
        if name.endswith("_start"):
            write = self._logger.start
        elif name.endswith("_stop"):
            write = self._logger.end
        with self._lock:
            # mlperf-logging formats the line; time_ms=0 is what `flush` replaces
            write(name, value, metadata or None, time_ms=0)
            self._waiting.append((moment or present(), self._made.line))
            self.flush()


def close_interrupted(path: Path) -> None:
    """run_stop "aborted" at the end of a log whose writer was killed with its clock running. A line
    cut in its middle is ended, not repaired. Nothing for a log that is closed, or whose clock never
    started. Raises OSError: it cannot be read or written, or is no regular file of its folder."""
    content = read_file(path, _MOST_BYTES, within=path.parent)
    keys = set(map(key_of, content.splitlines()))
    if key.RUN_START not in keys or key.RUN_STOP in keys:
        return
    # else the new record would stand on the line of the torn one
    if not content.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
    MLPerfLog(path, Clock(last_stamp_unix_s(path)), resumed=True).abort()


def key_of(line: bytes) -> str | None:
    """The key of a line of a log; None: the line has no whole record."""
    _, token, record = line.partition(b":::MLLOG ")
    if not token:
        return None
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(record)["key"])
    return None
