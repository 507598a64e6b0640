"""No flood of records hides one that a rule reads: the verdict stays, or says that it cannot be."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rn50.compliance.check_log import CANNOT_READ, FAIL, PASS, check_log
from rn50.compliance.log_rules import checked_keys
from rn50.logging.keeping import FIRST
from rn50.logging.parse import read_log
from rn50.report.show import shown
from tests.compliance.log_text import (
    Edit,
    Record,
    Run,
    again,
    drop,
    find,
    good_run,
    last,
    meta,
    write,
)

DAY_MS = 86_400_000


def late_target(run: Run) -> None:
    """The accuracy that reaches the target comes after run_stop."""
    record = last(run, "eval_accuracy")
    run.remove(record)
    run.append(record)
    record.time_ms = run[-2].time_ms + 1


def second_run(run: Run) -> None:
    run.extend(good_run())


def start_after_init(run: Run) -> None:
    """A copy of init_start inside the run, word for word."""
    copy = find(run, "init_start")
    run.insert(len(run) - 2, Record(copy.key, copy.value, run[-2].time_ms, **copy.metadata))


def zero_stop(run: Run) -> None:
    run.append(Record("run_stop", None, 0, status="success"))


VIOLATIONS: dict[str, Edit] = {
    "second run_stop, 600 s later": again("run_stop", 600_000),
    "second run_stop says aborted": again("run_stop", 1, metadata={"status": "aborted"}),
    "second run_start, 600 s later": again("run_start", 600_000),
    "second batch size": again("global_batch_size", 0, value=86_016),
    "batch size true": again("global_batch_size", 0, value=True),
    "another weight decay": again("lars_opt_weight_decay", 0, value=3e-4),
    "another division": again("submission_division", 0, value="open"),
    "aborted": meta("run_stop", "status", "aborted"),
    "target after run_stop": late_target,
    "run_stop stamped 0": zero_stop,
    "no run_stop": drop("run_stop"),
    "init_start in the run": start_after_init,
    "second run": second_run,
}


Flood = Callable[[int], Iterator[str]]


def line(key: str, value: object = 1, time_ms: float = 0, **metadata: object) -> str:
    content = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": {"file": "train.py", "lineno": 7, **metadata},
    }
    return f":::MLLOG {json.dumps(content)}\n"


def unknown_keys(time_ms: float) -> Iterator[str]:
    return (line(f"junk_{n}", n, time_ms) for n in itertools.count())


def one_unknown_key(time_ms: float) -> Iterator[str]:
    return (line("tracked_stats", {"throughput": n}, time_ms) for n in itertools.count())


def copies(time_ms: float) -> Iterator[str]:
    return itertools.repeat(line("epoch_stop", None, time_ms, epoch_num=35))


def copies_in_other_words(time_ms: float) -> Iterator[str]:
    """Not as mllog writes them, so by the long way."""
    return itertools.repeat(line("epoch_stop", None, time_ms, epoch_num=35).replace("{", "{ "))


def many_values(time_ms: float) -> Iterator[str]:
    return (line("seed", n, time_ms) for n in itertools.count())


def other_format(time_ms: float) -> Iterator[str]:
    body = '{"value": 1, "metadata": {}}'
    return (f":::MLL {time_ms / 1000:.3f} junk_{n}: {body}\n" for n in itertools.count())


def families(time_ms: float) -> Iterator[str]:
    return (line(f"duplicate_{n}", n, time_ms) for n in itertools.count())


FLOODS: dict[str, Flood] = {
    "unknown keys": unknown_keys,
    "one unknown key": one_unknown_key,
    "copies": copies,
    "copies in other words": copies_in_other_words,
    "values of a key": many_values,
    "the other format": other_format,
    "a family of keys": families,
}
RECORDS = 1100  # more than what is kept of one key, and of unknown names


def flooded(path: Path, run: Run, flood: Flood, at: int, records: int) -> Path:
    """The run with a flood before its record number `at`, stamped as the record before it."""
    at %= len(run) + 1
    time_ms = run[max(at - 1, 0)].time_ms
    with path.open("w") as file:
        file.writelines(record.text("4.0.0") + "\n" for record in run[:at])
        file.writelines(itertools.islice(flood(time_ms), records))
        file.writelines(record.text("4.0.0") + "\n" for record in run[at:])
    return path


def errors(path: Path) -> set[str]:
    """The rules that fail a log."""
    found = check_log(path, "4.0.0", official=False).findings
    return {finding.name for finding in found if finding.severity == "error"}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("violation", VIOLATIONS)
def test_no_flood_hides_a_violation(tmp_path: Path, violation: str, flood: str) -> None:
    """Before, behind and at one place within the run."""
    run = good_run()
    VIOLATIONS[violation](run)
    clean = errors(write(tmp_path / "clean.txt", run))
    assert clean
    within = random.Random(violation + flood).randrange(1, len(run))
    for at in (0, within, len(run)):
        path = flooded(tmp_path / "log.txt", run, FLOODS[flood], at, RECORDS)
        found = check_log(path, "4.0.0", official=False)
        assert found.verdict in (FAIL, CANNOT_READ), (at, found.cause)
        if flood in ("unknown keys", "one unknown key", "the other format", "a family of keys"):
            assert errors(path) == clean, at


@pytest.mark.parametrize("flood", ["unknown keys", "one unknown key", "a family of keys"])
def test_a_flood_alone_fails_nothing(tmp_path: Path, flood: str) -> None:
    path = flooded(tmp_path / "log.txt", good_run(), FLOODS[flood], 60, RECORDS)
    found = check_log(path, "4.0.0", official=False)
    assert found.verdict == PASS, found.cause
    assert found.run is not None
    assert sum(found.run.log.counts.values()) == len(good_run()) + RECORDS


@pytest.mark.slow
def test_more_than_can_be_kept_has_no_verdict(tmp_path: Path) -> None:
    run = good_run()
    path = flooded(tmp_path / "log.txt", run, many_values, 12, 60_000)
    found = check_log(path, "4.0.0")
    assert found.verdict == CANNOT_READ
    assert "could not be kept" in found.cause
    assert "(seed)" in found.cause
    assert "\n" not in found.cause
    assert shown(path)["status"] == "success"  # the room of its key is its own


def test_of_copies_their_place_and_time_are_kept(tmp_path: Path) -> None:
    """First, last, earliest, latest: of those behind the first hundreds too, in file order."""
    path = tmp_path / "log.txt"
    stamps = [1_714_000_000_000 + n for n in range(3000)]
    stamps[1000], stamps[2000] = 0, 1_714_000_000_000 + DAY_MS
    path.write_text("".join(line("run_stop", None, s, status="success") for s in stamps))
    for others in (False, True):
        log = read_log(path, checked_keys(), others=others)
        kept = [event.line - 1 for event in log.all("run_stop")]
        assert kept == [*range(FIRST), FIRST, 1000, 2000, 2999]
        assert [event.time_ms for event in log.all("run_stop")] == [stamps[n] for n in kept]
        assert [event.order - 1 for event in log.all("run_stop")] == kept
        assert log.unkept == {"run_stop": 3000 - len(kept)}
        assert log.overflow is None


@pytest.mark.parametrize("others", [[1, 1.0, True], ["1", 1], [None, False, 0, ""]])
def test_values_differ_by_type(tmp_path: Path, others: list[object]) -> None:
    path = tmp_path / "log.txt"
    many = [line("seed", "first", 1_714_000_000_000)] * 600
    path.write_text("".join([*many, *(line("seed", v, 1_714_000_000_000) for v in others), *many]))
    found = [event.value for event in read_log(path, checked_keys()).all("seed")]
    assert [repr(value) for value in found if value != "first"] == [repr(v) for v in others]


@pytest.mark.parametrize("long", [False, True])
def test_a_huge_record_is_kept_by_what_rules_read_of_it(tmp_path: Path, long: bool) -> None:
    """Two that differ at their end alone stay two; the status is still there."""
    path = tmp_path / "log.txt"
    padding = {f"p{n}": "x" * 100 for n in range(400)}
    values = (
        ["y" * 50_000 + end for end in "ab"] if long else [[0] * 30_000 + [end] for end in "ab"]
    )
    path.write_text(
        "".join(line("run_stop", v, 1_714_000_000_000, **padding, status="aborted") for v in values)
    )
    first, second = read_log(path, checked_keys()).all("run_stop")
    assert first.value != second.value
    assert len(repr(first)) < 6000
    assert first.metadata["status"] == "aborted"


_MEASURED = """
import sys
from pathlib import Path
from rn50.compliance.check_log import check_log
found = check_log(Path(sys.argv[1]), "4.0.0", official=False)
with open("/proc/self/status") as status:
    peak = next(line for line in status if line.startswith("VmHWM")).split()[1]
print(found.verdict, peak)
"""


def large_values(time_ms: float) -> Iterator[str]:
    return (line("seed", f"{n} " + "x" * 200_000, time_ms) for n in itertools.count())


def large_names(time_ms: float) -> Iterator[str]:
    return (line(f"{n}" + "x" * 200_000, n, time_ms) for n in itertools.count())


def wide_records(time_ms: float) -> Iterator[str]:
    wide = {f"p{n}": n for n in range(300)}
    return (line("epoch_stop", n, time_ms, epoch_num=n, **wide) for n in itertools.count())


def nested_values(time_ms: float) -> Iterator[str]:
    value: object = []
    for _ in range(500):
        value = [value]
    return (line("seed", [n, value], time_ms) for n in itertools.count())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flood", "records"),
    [
        (many_values, 60_000),
        (copies, 60_000),
        (unknown_keys, 60_000),
        (one_unknown_key, 60_000),
        (families, 60_000),
        (large_values, 200),
        (large_names, 200),
        (wide_records, 6_000),
        (nested_values, 6_000),
    ],
)
def test_memory_is_bounded(tmp_path: Path, flood: Flood, records: int) -> None:
    run = good_run()
    again("run_stop", 600_000)(run)
    path = flooded(tmp_path / "log.txt", run, flood, 12, records)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(path)], capture_output=True, text=True, check=True
    )
    verdict, peak_kb = done.stdout.split()
    assert verdict in (FAIL, CANNOT_READ)
    assert int(peak_kb) < 100_000


NOISE = (
    "",
    "I0518 21:33:07.3 427370 train.py:168] step 5\n",
    "\x1b[A 35 %|###\r 36 %|####\n",
    "{'key': 'run_stop', 'value': 0.5}\n",
    '{"key": "run_stop", "metadata": {"status": "aborted"}}\n',
    "::: MLLOG is the token; :::MLPv0.6 was another\n",
    "x" * 3000 + "\n",
    "\n\r\n\n",
)


def junk(rng: random.Random, time_ms: float) -> str:
    """What no rule reads: text of others, and records of keys without rules."""
    if rng.random() < 0.5:
        return rng.choice(NOISE)
    values: list[object] = [
        None,
        rng.random(),
        "a: b",
        [1, [2]],
        {"x": {"y": "\u00e9"}},
        True,
        10**30,
    ]
    key = f"{rng.choice(['run_stops', 'tracked', 'x' * 300, 'Run_Stop', 'a b'])}{rng.randrange(5)}"
    text = line(key, rng.choice(values), time_ms, epoch_num=rng.randrange(50), status="aborted")
    return rng.choice(["", "[1,0]<stdout>:", "warning "]) + rng.choice(
        [
            text,
            text.replace('": ', '":'),
            text.replace("\n", "\r\n"),
            text.replace("e", "\\u0065", 1),
        ]
    )


@pytest.mark.parametrize("violation", ["none", *VIOLATIONS])
def test_what_no_rule_reads_changes_nothing(tmp_path: Path, violation: str) -> None:
    """Anywhere, any number: the same findings, in other lines."""
    run = good_run()
    VIOLATIONS.get(violation, lambda _: None)(run)

    def said(path: Path) -> list[tuple[str, str, str, str]]:
        found = check_log(path, "4.0.0", official=False).findings
        return [(f.name, f.severity, f.caused_by, re.sub(r"\d+", "N", f.message)) for f in found]

    clean = said(write(tmp_path / "clean.txt", run))
    rng = random.Random(violation)
    for _ in range(4):
        parts = [""]
        for record in run:
            time_ms = record.time_ms
            parts.append(record.text("4.0.0") + "\n")
            if rng.random() < 0.3:
                parts.extend(junk(rng, time_ms) for _ in range(rng.choice([1, 2, 40])))
        path = tmp_path / "log.txt"
        path.write_bytes("".join(parts).encode())
        assert said(path) == clean
