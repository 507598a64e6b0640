"""No content of a log raises: random bytes, mutated and cut logs, huge numbers, deep JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rn50.cli.log_check import check_lines
from rn50.compliance.check_log import Check, check_log
from rn50.compliance.log_rules import checked_keys
from rn50.compliance.score import score_folder
from rn50.compliance.submission import check_folder
from rn50.config.finding import SEVERITIES
from rn50.logging.parse import CannotRead, read_log
from tests.compliance.log_text import good_run

RULESETS = st.sampled_from([None, "0.6.0", "0.7.0", "1.1.0", "2.0.0", "4.0.0"])
GOOD = {
    ruleset: "".join(r.text(ruleset) + "\n" for r in good_run(ruleset)).encode()
    for ruleset in ("0.6.0", "4.0.0")
}
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(),
    st.text(max_size=8),
    st.sampled_from(
        [10**400, -(10**400), 2**63, 0, 0.759, "../../x", "!!python/object", "\x1b[2J"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = st.one_of(st.sampled_from(sorted(checked_keys().named)), VALUES)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def counted(path: Path, *, others: bool) -> tuple[Any, ...]:
    """What does not depend on the keys that are kept: the short way must agree with the long."""
    try:
        log = read_log(path, checked_keys(), others=others)
    except CannotRead as error:
        return (error.reason,)
    return log.counts, log.problems, log.problem_count, log.steps_back, log.lines, log.dialect


def judge(folder: Path, content: bytes, ruleset: str | None) -> Check:
    """Check, and everything that a user sees of it."""
    path = folder / "result_0.txt"
    path.write_bytes(content)
    assert counted(path, others=True) == counted(path, others=False)
    found = check_log(path, ruleset, official=False)
    assert found.verdict in ("PASS", "POLICY", "FAIL", "CANNOT_READ")
    assert found.cause
    assert all(finding.severity in SEVERITIES for finding in found.findings)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["verdict"] == found.verdict
    shown = "".join(check_lines(found))
    assert shown.isprintable()
    assert len(shown) < 100_000
    return found


@settings(max_examples=250)
@given(st.binary(max_size=400), RULESETS)
@example(b":::MLLOG " + b"[" * 100_000, None)
@example(b":::MLLOG {" + b"\x00" * 50, None)
@example(b":::MLL 1.2.3 run_start: {}", None)
@example(b":::MLL 1 run_start: " + b"9" * 10_000, None)
@example(b'\r:::MLLOG {"key": "a", "time_ms": 1, "value": 1, "metadata": {}}\r\r', None)
def test_random_bytes(folder: Path, content: bytes, ruleset: str | None) -> None:
    judge(folder, b":::MLLOG " + content, ruleset)
    judge(folder, content, ruleset)


@pytest.mark.slow
@settings(max_examples=500)
@given(
    st.sampled_from(sorted(GOOD)),
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 60), st.binary(max_size=12)), max_size=5
    ),
    st.integers(0, 10**6),
)
def test_mutated_and_cut_logs(
    folder: Path, ruleset: str, edits: list[tuple[int, int, bytes]], end: int
) -> None:
    content = bytearray(GOOD[ruleset])
    for at, length, new in edits:
        at %= len(content)
        content[at : at + length] = new
    judge(folder, bytes(content)[: end % (2 * len(content))], None)


@pytest.mark.slow
@settings(max_examples=250)
@given(
    st.lists(
        st.tuples(
            KEYS,
            VALUES,
            st.one_of(st.dictionaries(st.text(max_size=6), VALUES, max_size=2), VALUES),
            st.one_of(st.integers(0, 2**42), VALUES),
            st.sampled_from(["status", "epoch_num", "first_epoch_num", "epoch_count", "tensor"]),
        ),
        max_size=12,
    ),
    RULESETS,
)
def test_any_values_under_known_keys(
    folder: Path, records: list[tuple[Any, Any, Any, Any, str]], ruleset: str | None
) -> None:
    lines = []
    for key, value, metadata, time_ms, name in records:
        if isinstance(metadata, dict):
            metadata = {**metadata, name: value}
        content = {"time_ms": time_ms, "key": key, "value": value, "metadata": metadata}
        lines.append(f":::MLLOG {json.dumps(content)}\n")
    judge(folder, "".join(lines).encode("utf-8", "surrogatepass"), ruleset)


@pytest.mark.slow
@settings(max_examples=120)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), VALUES, st.integers(0, 3)), min_size=1, max_size=3),
    st.sampled_from(["0.7.0", "1.1.0", "4.0.0"]),
    st.sampled_from(["closed", "open"]),
)
def test_a_good_run_with_odd_parts(
    folder: Path, edits: list[tuple[int, Any, int]], ruleset: str, division: str
) -> None:
    run = good_run(ruleset, division)
    for at, value, what in edits:
        record = run[at % len(run)]
        if what == 0:
            record.value = value
        elif what == 1:
            record.metadata = value
        elif what == 2:
            record.time_ms = value
        else:
            record.metadata = dict.fromkeys(["file", "epoch_num", "status", "tensor"], value)
    text = "".join(record.text(ruleset) + "\n" for record in run)
    judge(folder, text.encode("utf-8", "surrogatepass"), ruleset)
    score_folder(folder).to_dict()
    check_folder(folder, official=False)[-1].to_dict()


HOSTILE = [
    "../../../../tmp/evil",
    "!!python/object/apply:os.system ['touch /tmp/evil']",
    "\x1b]0;owned\x07\x1b[2J\x1b[31m",
    "<script>alert(1)</script>",
    "{0.__class__}%s%n",
    "$(touch /tmp/evil)`id`",
    "a\nb\r\x00\u202e\u2028",
]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("key", sorted(checked_keys().named))
def test_a_hostile_value_has_no_effect(folder: Path, key: str, value: str) -> None:
    """In every key that the check reads: nothing printed but text, nothing opened."""
    run = good_run()
    for record in run:
        if record.key == key:
            record.value = value
            record.metadata = dict.fromkeys(record.metadata, value)
    text = "".join(record.text("4.0.0") + "\n" for record in run)
    judge(folder, text.encode(), "4.0.0")


@pytest.mark.parametrize("key", ["submission_division", "submission_benchmark", "opt_name"])
def test_the_official_checker_never_sees_an_unsafe_name(tmp_path: Path, key: str) -> None:
    run = good_run()
    for record in run:
        if record.key == key:
            record.value = "../../../evil"
    path = tmp_path / "result_0.txt"
    path.write_text("".join(record.text("4.0.0") + "\n" for record in run))
    found = check_log(path, "4.0.0")
    assert found.verdict == "FAIL"
    assert found.official is not None
    assert found.official.verdict == "NOT_RUN"
    assert found.official.messages == (f"unsafe value of {key}",)
