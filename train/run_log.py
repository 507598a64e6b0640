"""What rank 0 writes of training: lines for people, metrics.jsonl, result.json, ranks.json (each
rank's share, gathered once at the end)."""

from __future__ import annotations

import json
import resource
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from ..host.atomic import write_file
from ..host.finding import clock_time
from ..logging.clock import Moment
from ..logging.parse import read_events
from ..logging.records import ABORTED, SUCCESS, Result, Stopped, write
from ..logging.run_time import run_time
from ..predict.work import training_flops
from .activity import storage_read_bytes
from .communication.communicator import Communicator
from .context import RunContext
from .evaluate import Accuracy
from .network.build import weights_digest
from .schedule import Settings
from .step_times import COLUMNS, percentiles
from .warning import warn

RATE_WINDOW_S = 60.0
"""The rate for people and the time that is left look back so far: one slow interval must not
decide them."""
_ROW_BYTES = 2048
"""A rank's figures as JSON: 20 numbers and three names of at most 100 characters."""
_NO_TIME = np.zeros((1, len(COLUMNS)), np.float32)


class RecentRate:
    """Images a second in the intervals of the last minute, evaluations left out."""

    def __init__(self) -> None:
        self._intervals: deque[tuple[float, int]] = deque()
        self._total_s = 0.0
        self._total_images = 0

    def add(self, interval_s: float, images: int) -> float:
        """The rate with this interval as the last one."""
        self._intervals.append((interval_s, images))
        self._total_s += interval_s
        self._total_images += images
        while self._total_s - self._intervals[0][0] >= RATE_WINDOW_S:
            first_s, first_images = self._intervals.popleft()
            self._total_s -= first_s
            self._total_images -= first_images
        return self._total_images / self._total_s


class RunLog:
    """Observes a run: it records events, and nothing is decided by what it holds."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        # The window of the throughput figure: since the last log point or evaluation.
        self._begin_window(context.elapsed_s)
        self._recent = RecentRate()
        self._cpu_begun_s = time.process_time()
        self._read_begun_bytes = storage_read_bytes() or 0

    def _begin_window(self, now_s: float) -> None:
        context = self._context
        self._window_s = now_s
        self._window_samples = context.plan.images_after(context.state.step)

    def _say(self, line: str) -> None:
        """A plain line for people: it passes through mpirun, a batch log and a terminal alike."""
        if self._context.shows_progress:
            print(line, flush=True)

    def batch_change(
        self, epoch: int, global_batch_size: int, previous_end: Moment
    ) -> None:
        """A new batch size is in force from `epoch` on."""
        # a key of our own, as a second global_batch_size breaks the rules
        key = "global_batch_size_change"
        self._context.log.event(key, global_batch_size, previous_end, epoch_num=epoch)
        self._say(f"  epoch {epoch}: global batch {global_batch_size} from here on")

    def train(
        self,
        step: int,
        steps: int,
        loss: float,
        settings: Settings,
        loss_scale: float | None,
    ) -> None:
        """A log point: the mean loss over all ranks since the last one.

        Args:
            step: the last of the interval.
            steps: how many the interval has: fewer after a resume within it.
            loss: the mean.
            settings: of the step.
            loss_scale: where it is dynamic.
        """
        context = self._context
        if context.process.rank != 0:
            return
        self._compare_clocks()
        context.log.flush()
        now_s = context.elapsed_s
        plan = context.plan
        epoch = plan.epoch_at(step)
        images_trained = plan.images_after(step)
        interval_s = now_s - self._window_s
        images = images_trained - self._window_samples
        recent_images_per_s = self._recent.add(interval_s, images)
        self._begin_window(now_s)
        scale = {} if loss_scale is None else {"loss_scale": loss_scale}
        context.metrics.write(
            "train",
            step=step,
            steps=steps,
            epoch=epoch,
            loss=loss,
            images_per_s=images / interval_s,
            recent_images_per_s=recent_images_per_s,
            **settings._asdict(),
            **scale,
        )
        last_step = plan.last_step
        left_s = (plan.images_after(last_step) - images_trained) / recent_images_per_s
        width = len(str(last_step))
        self._say(
            f"  epoch {epoch:5.2f}  step {step:{width}}/{last_step}  loss {loss:.4f}  "
            f"lr {settings.lr:.4g}  {recent_images_per_s:.0f} images/s  "
            f"{clock_time(now_s)} elapsed  at most {clock_time(left_s)} left"
        )

    def norms(self, step: int, norms: Mapping[str, Mapping[str, float]]) -> None:
        """Norms by quantity and tensor: a record for each quantity."""
        for quantity, values in norms.items():
            self._context.metrics.write(quantity, step=step, **values)

    def step_times(self, step: int, phases_ms: NDArray[np.float32]) -> None:
        """Rank 0's steps since the last log point, as far as they are done: (steps, columns)."""
        if self._context.process.rank == 0 and len(phases_ms):
            self._context.metrics.write("steps", step=step, **percentiles(phases_ms))

    def evaluation(self, epoch: int, accuracy: Accuracy, start_s: float) -> None:
        """An evaluation that began at `start_s` of the run's clock."""
        context = self._context
        now_s = context.elapsed_s
        context.metrics.write(
            "eval",
            epoch=epoch,
            step=context.state.step,
            accuracy=accuracy.fraction,
            eval_s=now_s - start_s,
            **accuracy._asdict(),
        )
        target = context.run.eval.target
        sign = ">=" if accuracy.fraction >= target else "<"
        self._say(
            f"* epoch {epoch}: accuracy {accuracy.fraction:.4f} "
            f"({accuracy.correct}/{accuracy.total}) {sign} target {target}  "
            f"{clock_time(now_s)} elapsed"
        )
        self._begin_window(now_s)

    def result(
        self,
        net: Any,
        comm: Communicator,
        phases_ms: NDArray[np.float32],
        *,
        time_s: float,
        reached: bool,
        stopped: Stopped | None,
    ) -> None:
        """result.json and ranks.json, `time_s` after `run_start`; the launcher adds the official
        verdict. Collective.

        Args:
            net: whose weights are digested.
            comm: the ranks.
            phases_ms: of this rank's steps, as `gather_ranks` takes them.
            time_s: since `run_start`.
            reached: whether the target was.
            stopped: what ended the run before its time.
        """
        ranks = self.gather_ranks(comm, phases_ms)
        if not ranks:
            return
        context = self._context
        state = context.state
        plan = context.plan
        self._compare_clocks()
        logged = run_time(read_events(context.folder.log))
        run = context.run
        image_flops = training_flops(run.model, run.data)
        images = plan.images_after(state.step)
        reads = ranks["storage_read_bytes"]
        result = Result(
            status=SUCCESS if reached else ABORTED,
            stopped=stopped and replace(stopped, step=state.step),
            time_to_train_s=time_s if reached else None,
            init_s=context.init_s,
            epochs=int(plan.epoch_at(state.step) + 1e-9),
            eval_accuracy=state.accuracy,
            target=run.eval.target,
            images_per_s=logged.images_per_s(run.data.train_samples),
            flops=image_flops and image_flops * images,
            allreduce_bytes=comm.step_bytes,
            storage_read_bytes=None if None in reads else sum(reads),
            ranks=plan.ranks,
            global_batch_size=plan.global_batch_size,
            config_sha256=context.loaded.sha256,
            seed=run.seed,
            graphs=ranks["graphs"][0],
            norms=ranks["norms"][0],
            weights_digest=weights_digest(net).hex(),
            clock=context.clock.comparison(),
            resumed_after_step=context.resumed.meta.step if context.resumed else None,
        )
        write(context.folder.result, result)
        table = json.dumps({"elapsed_s": time_s, "ranks": ranks})
        write_file(context.folder.ranks, f"{table}\n")

    def gather_ranks(
        self, comm: Communicator, phases_ms: NDArray[np.float32]
    ) -> dict[str, list[Any]]:
        """A column for each figure, a row for each rank, by rank. Collective: one small allgather.

        Args:
            comm: the ranks.
            phases_ms: (steps, columns) of this rank's steps; a rank without a share of the batch
                has 0.

        Returns:
            host, steps, the percentiles of `step_times.percentiles`, the most memory that the
            process held, CPU time since the clock of the run started, bytes read from storage since
            then, the most memory that the GPU (all of its processes) held, how much of a step ran
            as CUDA graphs, and how its norms ran; None stands for what does not apply. Ranks above
            0, which write no file: no columns.
        """
        steps = len(phases_ms)
        times: Mapping[str, float | None] = (
            percentiles(phases_ms) if steps else dict.fromkeys(percentiles(_NO_TIME))
        )
        read_bytes = storage_read_bytes()
        if read_bytes is not None:
            read_bytes -= self._read_begun_bytes
        memory_peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures = {
            "host": self._context.process.host[:64],
            "steps": steps,
            **times,
            "memory_peak_bytes": 1024 * memory_peak_kib,
            "cpu_s": time.process_time() - self._cpu_begun_s,
            "storage_read_bytes": read_bytes,
            "gpu_memory_peak_bytes": _gpu_memory_bytes(comm.ctx),
            "graphs": str(graphs) if (graphs := comm.operators.graphs) else None,
            "norms": str(norms) if (norms := comm.operators.norm_layers) else None,
        }
        row = json.dumps(figures).encode().ljust(_ROW_BYTES)
        everyone = comm.gather_bytes(row, "ranks")
        if comm.rank != 0:
            return {}
        rows = list(map(json.loads, everyone))
        return {name: [row[name] for row in rows] for name in figures}

    def _compare_clocks(self) -> None:
        """Note a jump of the host's wall clock: a warning, a record, a key of the log."""
        context = self._context
        by_s = context.clock.look()
        if by_s is None:
            return
        step = context.state.step
        warn(
            f"the wall clock jumped by {by_s:+.1f} s by step {step}; the run's stamps follow "
            "the monotonic clock and did not"
        )
        context.metrics.write("wall_clock_jump", step=step, by_s=by_s)
        context.log.clock_jump(by_s)


def _gpu_memory_bytes(ctx: mx.Context) -> int | None:
    """Memory taken on a rank's GPU: the most that there was, as MXNet's pool gives nothing back."""
    if ctx.device_type != "gpu":
        return None
    free_bytes, total_bytes = mx.context.gpu_memory_info(ctx.device_id)
    return int(total_bytes - free_bytes)
