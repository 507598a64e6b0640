"""Verdicts that cannot be talked round: what breaks a rule never passes, what is harmless changes
nothing, whatever else is in the log."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path

from rn50.compliance.check_log import Check, check_log
from tests.compliance.log_text import START_MS, Record, Run, find, good_run, last, put
from tests.fuzz.case import Case, Wrong, rng_of

Violation = Callable[[random.Random, Run], None]


def case(seed: int, folder: Path) -> Case:
    """A run that passes, in most cases with a violation; then the same behind harmless changes."""
    rng = rng_of("verdicts", seed)
    ruleset = rng.choice([name for name in START_MS if name != "0.6.0"])
    run = good_run(ruleset, "closed", rng.choice(("lars", "sgd")))
    name = "no violation"
    if rng.random() < 0.8:
        violation = rng.choice(VIOLATIONS)
        violation(rng, run)
        name = violation.__name__.strip("_")
    plain = "".join(f"{record.text(ruleset)}\n" for record in run)
    hidden, noises = _behind_noise(rng, run, ruleset)

    def judge() -> None:
        before = _check(folder, plain.encode(), ruleset)
        if name == "no violation" and before.verdict != "PASS":
            raise Wrong(f"a good run is {before.verdict}: {before.cause}")
        if name != "no violation" and before.verdict == "PASS":
            raise Wrong(f"{name} passes")
        after = _check(folder, hidden, ruleset)
        unseen = name != "no violation" and after.verdict == "PASS"
        if unseen or (after.verdict != before.verdict and after.verdict != "CANNOT_READ"):
            raise Wrong(
                f"{before.verdict} ({before.cause}) is {after.verdict} ({after.cause}) behind "
                f"{noises}"
            )

    return Case(f"{ruleset} {name}, {', '.join(noises)}", (judge,))


def _check(folder: Path, content: bytes, ruleset: str) -> Check:
    path = folder / "result_0.txt"
    path.write_bytes(content)
    return check_log(path, ruleset, official=False)


# --- what breaks a rule -------------------------------------------------------------------------


def _again(run: Run, key: str, after_ms: float = 0, *, at: int | None = None) -> Record:
    """A further record of a key, behind its last one or at a place."""
    old = last(run, key)
    new = Record(key, old.value, old.time_ms + after_ms)
    new.metadata = copy.deepcopy(old.metadata)
    run.insert(run.index(old) + 1 if at is None else at, new)
    return new


def _anywhere(rng: random.Random, run: Run, key: str) -> Record:
    """A further record of a key somewhere, with the stamp of that place."""
    at = rng.randrange(1, len(run) + 1)
    new = _again(run, key, at=at)
    new.time_ms = run[at - 1].time_ms
    return new


def two_run_stops(rng: random.Random, run: Run) -> None:
    _again(run, "run_stop", rng.choice((60_000, 600_000)))


def two_run_starts(rng: random.Random, run: Run) -> None:
    _again(run, "run_start", rng.choice((60_000, 1_200_000)))


def aborted(rng: random.Random, run: Run) -> None:
    last(run, "run_stop").metadata["status"] = rng.choice(("aborted", "fail", "abort", ""))


def aborted_too(rng: random.Random, run: Run) -> None:
    _again(run, "run_stop", rng.choice((0, 1, 400))).metadata["status"] = "aborted"


def no_key(rng: random.Random, run: Run) -> None:
    keys = ("run_start", "run_stop", "eval_accuracy", "init_start", "init_stop", "cache_clear")
    wanted = rng.choice((*keys, "submission_org", "submission_division", "eval_samples"))
    run[:] = [record for record in run if record.key != wanted]


def never_at_target(rng: random.Random, run: Run) -> None:
    last(run, "eval_accuracy").value = rng.choice((0.7588, 0.75898, 0.1, 0))


def target_after_run_stop(rng: random.Random, run: Run) -> None:
    record = last(run, "eval_accuracy")
    run.remove(record)
    record.time_ms = run[-1].time_ms + 1000
    run.append(record)


def percent(rng: random.Random, run: Run) -> None:
    last(run, "eval_accuracy").value = 75.92


def two_batches(rng: random.Random, run: Run) -> None:
    _anywhere(rng, run, "global_batch_size").value = rng.choice((32, 6528, 86016))


def other_division(rng: random.Random, run: Run) -> None:
    _anywhere(rng, run, "submission_division").value = "open"


def other_benchmark(rng: random.Random, run: Run) -> None:
    _anywhere(rng, run, "submission_benchmark").value = rng.choice(("bert", "ssd"))


def other_weight_decay(rng: random.Random, run: Run) -> None:
    key = find(run, "opt_name").value
    _anywhere(rng, run, f"{key}_opt_weight_decay").value = rng.choice((0.0002, 3e-5, 0, 0.5))


def wrong_weight_decay(rng: random.Random, run: Run) -> None:
    put(f"{find(run, 'opt_name').value}_opt_weight_decay", rng.choice((3e-5, 0, -1e-4, 0.3)))(run)


def wrong_end_lr(rng: random.Random, run: Run) -> None:
    optimizer = find(run, "opt_name").value
    put(f"{optimizer}_opt_end_learning_rate", rng.choice((0.01, -1, 0.001)))(run)


def wrong_power(rng: random.Random, run: Run) -> None:
    optimizer = find(run, "opt_name").value
    put(f"{optimizer}_opt_learning_rate_decay_poly_power", rng.choice((1, 3, 0)))(run)


def wrong_momentum(rng: random.Random, run: Run) -> None:
    put(f"{find(run, 'opt_name').value}_opt_momentum", rng.choice((0.5, 0.99, 0)))(run)


def wrong_optimizer(rng: random.Random, run: Run) -> None:
    put("opt_name", rng.choice(("adam", "LARS", "", "sgd2")))(run)


def other_optimizer_too(rng: random.Random, run: Run) -> None:
    _anywhere(rng, run, "opt_name").value = "adam"


def wrong_samples(rng: random.Random, run: Run) -> None:
    key, value = rng.choice((("eval_samples", 49_984), ("train_samples", 1_000_000)))
    put(key, value)(run)


def other_samples(rng: random.Random, run: Run) -> None:
    _anywhere(rng, run, "eval_samples").value = rng.choice((100, 10_000))


def long_init(rng: random.Random, run: Run) -> None:
    at = run.index(last(run, "init_stop"))
    for record in run[at:]:
        record.time_ms += 2_400_000


def run_of_less_than_nothing(rng: random.Random, run: Run) -> None:
    last(run, "run_stop").time_ms = find(run, "run_start").time_ms - rng.choice((1, 1000, 10**6))


def clock_back(rng: random.Random, run: Run) -> None:
    at = run.index(rng.choice([record for record in run if record.key == "epoch_start"]))
    for record in run[at:]:
        record.time_ms -= 3_600_000


def no_cache_clear(rng: random.Random, run: Run) -> None:
    last(run, "cache_clear").value = False


def two_runs(rng: random.Random, run: Run) -> None:
    later = copy.deepcopy(run)
    by_ms = run[-1].time_ms - run[0].time_ms + rng.choice((1000, 10**6))
    for record in later:
        record.time_ms += by_ms
    run += later


def claimed_epochs(rng: random.Random, run: Run) -> None:
    for key in ("eval_start", "eval_stop", "eval_accuracy"):
        last(run, key).metadata["epoch_num"] += rng.choice((1, 4, 55))


def untrained_epoch(rng: random.Random, run: Run) -> None:
    key = rng.choice(("epoch_start", "epoch_stop"))
    run.remove(rng.choice([record for record in run if record.key == key]))


def look_alike(rng: random.Random, run: Run) -> None:
    key = rng.choice(("run_st\u043ep", "\u0435val_accuracy", "global_batch_size\u200b", "Opt_name"))
    at = rng.randrange(1, len(run))
    run.insert(at, Record(key, 1, run[at - 1].time_ms))


VIOLATIONS: tuple[Violation, ...] = (
    *(two_run_stops, two_run_starts, aborted, aborted_too, no_key, never_at_target),
    *(target_after_run_stop, percent, two_batches, other_division, other_benchmark),
    *(other_weight_decay, wrong_weight_decay, wrong_end_lr, wrong_power, wrong_momentum),
    *(wrong_optimizer, other_optimizer_too, wrong_samples, other_samples, long_init),
    *(run_of_less_than_nothing, clock_back, no_cache_clear, two_runs),
    *(claimed_epochs, untrained_epoch, look_alike),
)


# --- what is harmless ---------------------------------------------------------------------------


def _behind_noise(rng: random.Random, run: Run, ruleset: str) -> tuple[bytes, list[str]]:
    """The same run with harmless changes, and their names."""
    noises = []
    lines: list[str] = []
    copies = rng.choice((1, 1, 1, 2, 4))
    if copies > 1:
        noises.append(f"{copies} ranks")
    turned = rng.random() < 0.2
    if turned:
        noises.append("keys turned round")
    for record in run:
        # The names of all weights are compared as a list: of copies the official checker fails.
        for rank in range(1 if record.key == "weights_initialization" else copies):
            one = Record(record.key, record.value, record.time_ms + rank)
            one.metadata = record.metadata
            text = one.text(ruleset)
            if turned:
                content = json.loads(text.removeprefix(":::MLLOG "))
                text = f":::MLLOG {json.dumps(dict(reversed(content.items())))}"
            lines.append(text)
    if rng.random() < 0.7:
        count = rng.choice((5, 300, 499, 501, 600, 2500))
        noises.append(_flood(rng, lines, count, run[0].time_ms))
    if rng.random() < 0.3:
        for _ in range(rng.choice((1, 20, 400))):
            text = rng.choice(("", "epoch 3 of 4", "x" * 300, "WARNING: é", "{}", "MLLOG :::"))
            lines.insert(rng.randrange(len(lines) + 1), text)
        noises.append("text")
    prefix = rng.choice(("", "", "", "0: ", "[1,0]<stdout>:", "2024-04-01T10:00:00 "))
    end = rng.choice(("\n", "\n", "\r\n"))
    noises += [repr(part) for part in (prefix, end) if part not in ("", "\n")]
    return "".join(f"{prefix}{line}{end}" for line in lines).encode(), noises


def _flood(rng: random.Random, lines: list[str], count: int, time_ms: float) -> str:
    """Records of keys that no rule reads; at one place, or all over. Stamped as the line before."""
    kind = rng.choice(("distinct keys", "one key", "long values"))
    place = rng.choice(("first", "last", "middle", "all over"))
    at = {"first": 0, "last": len(lines), "middle": len(lines) // 2}.get(place, 0)
    stamps = [time_ms] + [json.loads(line.partition(" ")[2])["time_ms"] for line in lines]
    places = [rng.randrange(len(lines) + 1) if place == "all over" else at for _ in range(count)]
    for number, where in enumerate(sorted(places, reverse=True)):
        content = {
            "namespace": "",
            "time_ms": stamps[where],
            "event_type": "POINT_IN_TIME",
            "key": "noise" if kind == "one key" else f"noise_{number}",
            "value": "x" * 2000 if kind == "long values" else number,
            "metadata": {"file": "train.py", "lineno": 7},
        }
        lines.insert(where, f":::MLLOG {json.dumps(content)}")
    return f"{count} records of {kind} {place}"
