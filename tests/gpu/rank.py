"""One rank of the program on the fake CUDA: `rn50.train`, but for the numbers that kernels make.

The same arguments, and `--script FILE` before them: a JSON object, what the device "computes":
    accuracy   of each evaluation in turn, the last one of all that follow (default 0.5)
    overflows  the numbers of asked-for answers that say "not finite" (dynamic loss scale)
    computed   true: the device's own answers, as it computes
    fails      [what, number]: the launch that follows fails: of the update of a step, or of the
               batch of an evaluation
The fake's report goes to OUT/fake_<rank>.json, with its counts at each log point.
"""

import ctypes
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from rn50.config.load import load
from rn50.train import host_reads
from rn50.train.__main__ import parse, run_rank
from rn50.train.process_info import read_process_info

FAKE = ctypes.CDLL("libcuda.so.1")
FAKE.fakecuda_report.restype = ctypes.c_char_p


def report() -> dict[str, Any]:
    return json.loads(FAKE.fakecuda_report())


class Answers:
    """Reads as the program does (types, shapes, waits), then answers from the script."""

    losses_read = staticmethod(host_reads.losses)
    counts_read = staticmethod(host_reads.counts)
    finite_read = staticmethod(host_reads.finite)

    def __init__(self, samples: int, script: dict[str, Any], out: Path) -> None:
        self._samples = samples
        self._out = out
        self._accuracies = list(script.get("accuracy", [0.5]))
        self._overflows = set(script.get("overflows", []))
        self._computed = script.get("computed", False)
        self._asked = 0
        self.points: list[dict[str, Any]] = []

    def losses(self, sums: Any) -> list[float]:
        losses = self.losses_read(sums)
        assert str(sums.dtype) == "<class 'numpy.float32'>", sums.dtype
        self.points.append(report()["counts"])
        self.save()
        if self._computed:
            return losses
        return [1.0] + [0.0] * (len(losses) - 1)

    def counts(self, counts: Any) -> list[int]:
        hits = self.counts_read(counts)
        if self._computed:
            return hits
        accuracy = self._accuracies[0]
        if len(self._accuracies) > 1:
            del self._accuracies[0]
        self.save()
        correct = round(accuracy * self._samples)
        return [correct, correct, self._samples]

    def finite(self, flag: Any) -> bool:
        is_finite = self.finite_read(flag)
        if self._computed:
            return is_finite
        self._asked += 1
        return self._asked not in self._overflows

    def save(self) -> None:
        process = read_process_info()
        content = json.dumps({"points": self.points, **report()})
        (self._out / f"fake_{process.rank}.json").write_text(content)


def arm(what: str, number: int) -> None:
    """Have the device fail at the last launch of a step, or of a batch of an evaluation. Loads
    MXNet, which start-up would do beside other things."""
    from mxnet import nd

    from rn50.train.gpu.plan_operators import Scorer
    from rn50.train.gpu.update import PlanUpdater

    owner, name = {"step": (PlanUpdater, "_apply"), "batch": (Scorer, "__call__")}[what]
    method = getattr(owner, name)
    calls = itertools.count(1)

    def failing(self: Any, *arguments: Any) -> Any:
        step = arguments[0] if what == "step" else next(calls)
        if step == number:
            nd.waitall()
            FAKE.fakecuda_fail_next(b"cudaGraphLaunch")
        return method(self, *arguments)

    setattr(owner, name, failing)


def main() -> None:
    arguments = sys.argv[1:]
    script = {}
    if arguments[0] == "--script":
        script = json.loads(Path(arguments[1]).read_text())
        arguments = arguments[2:]
    options = parse(arguments)
    run = load(options.config, options.overrides).run
    answers = Answers(run.data.eval_samples, script, options.out)
    if fails := script.get("fails"):
        arm(*fails)
    for name in ("losses", "counts", "finite"):
        setattr(host_reads, name, getattr(answers, name))
    run_rank(options.config, options.overrides, options.out, options.resume)
    answers.save()


if __name__ == "__main__":
    main()
