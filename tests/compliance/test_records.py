"""Records that are not whole, floods of them, hostile values, and how the round is found."""

import gzip
import json
import lzma
import os
import random
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.cli.log_check import check_lines
from rn50.compliance.check_log import CANNOT_READ, Check, check_log
from rn50.compliance.log_rules import checked_keys
from rn50.compliance.log_rules.records import _plain_letters
from rn50.host.finding import ERROR, MISSING, SEVERITIES
from rn50.logging import parse
from tests.compliance.log_text import Record, find, good_run, last, official, put, write
from tests.waiting import finished

Lines = list[str]


def good_lines(ruleset: str = "4.0.0") -> Lines:
    return [record.text(ruleset) + "\n" for record in good_run(ruleset)]


def checked(path: Path, lines: Lines, ruleset: str | None = "4.0.0") -> Check:
    path.write_bytes("".join(lines).encode("utf-8", "surrogatepass"))
    return check_log(path, ruleset, official=False)


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda log_text: log_text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("}}\n", "}} trailing\n"),
        ('"key"', '"kee"'),
        ('"time_ms"', '"time_s"'),
        ('"lineno": 7}}\n', '"lineno": 7\n'),
        (":::MLLOG ", ":::MLLOG\t"),
        (":::MLLOG ", ":::MLLOG"),
        ('"value": "resnet"', '"value": ":::MLLOG x"'),
        ("\n", ""),
    ],
)
def test_records_that_are_not_whole(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "result_0.txt"
    check = checked(path, ["".join(good_lines()).replace(old, new, 1)])
    joined = old == "\n"  # the one fault that hides no record from a reader
    finding = check.findings[0]
    assert finding.name == ("joined-records" if joined else "broken-record")
    assert check.verdict == ("PASS" if joined else "FAIL")
    assert str(finding.line) in finding.message
    assert official(path, "4.0.0") in ("FAIL", "CRASH")


@pytest.mark.parametrize(
    ("old", "new", "twice"),
    [
        ('"value": "us"', '"value": "us", "value": "them"', True),
        ('"key": "seed"', '"key": "seed", "key": "tracked"', True),
        ('"status": "success"', '"status": "aborted", "status": "success"', True),
        ('"value": "us"', '"value": {"a": {"b": 1, "b": 2}}', True),
        ('"value": "us"', '"value": {"a": "b: c: d"}', False),
    ],
)
def test_a_name_twice_has_no_value(
    tmp_path: Path, old: str, new: str, twice: bool
) -> None:
    lines = good_lines()
    (number,) = (number for number, line in enumerate(lines, 1) if old in line)
    check = checked(tmp_path / "log.txt", [replaced(old, new)("".join(lines))])
    lines = [f.line for f in check.findings if f.name == "broken-record"]
    assert lines == [number] * twice


def test_what_a_lost_record_may_explain_is_marked(tmp_path: Path) -> None:
    lines = [
        line[:20] + "\n" if '"cache_clear"' in line else line for line in good_lines()
    ]
    broken, *consequences = checked(tmp_path / "log.txt", lines).findings
    assert [(f.about, f.caused_by) for f in consequences] == [(MISSING, broken.id)]


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress,
        lzma.compress,
        lambda content: content.decode().encode("utf-16-be"),
    ],
)
@pytest.mark.parametrize("end", ["", "\n"])
def test_what_is_no_text_may_hold_records(
    tmp_path: Path, packed: Callable[[bytes], bytes], end: str
) -> None:
    """A second run behind the first, where no reader finds it."""
    path = tmp_path / "log.txt"
    lines = good_lines()
    log_bytes = "".join(lines).encode()
    path.write_bytes(log_bytes.removesuffix(b"\n") + end.encode() + packed(log_bytes))
    check = check_log(path, "4.0.0", official=False)
    assert check.verdict == "FAIL"
    assert check.findings[0].name == "broken-record"
    assert check.findings[0].line == len(lines) + bool(end)
    assert "binary" in check.cause


@pytest.mark.parametrize(
    "edit",
    [
        replaced(":::MLL ", ":::MLL\t"),
        replaced(":::MLL ", ":::MLL  "),
        replaced(":::MLL ", ":::MLL"),
        replaced("_", "-"),
        lambda log_text: log_text + "+ grep :::MLL log.txt\n",
    ],
)
def test_a_record_of_v06_in_another_form(
    tmp_path: Path, edit: Callable[[str], str]
) -> None:
    path = tmp_path / "log.txt"
    check = checked(path, [edit("".join(good_lines("0.6.0")))], "0.6.0")
    assert (check.verdict, check.findings[0].name) == ("FAIL", "broken-record")
    assert official(path, "0.6.0") != "PASS"


def test_a_log_cut_anywhere_has_one_cause(tmp_path: Path) -> None:
    lines = good_lines()
    for records in (5, 9, 20, 24, 40, 60):
        check = checked(tmp_path / "log.txt", ["".join(lines[:records])[:-20]])
        errors = [f.name for f in check.findings if f.severity == ERROR]
        assert errors == ["broken-record"]
        assert "truncated" in check.cause
        assert f"line {records}" in check.cause


@pytest.mark.parametrize("order", ["before", "behind", "between"])
@pytest.mark.parametrize(
    ("ours", "other_ruleset"), [("4.0.0", "0.6.0"), ("0.6.0", "4.0.0")]
)
def test_a_run_in_each_format(
    tmp_path: Path, ours: str, other_ruleset: str, order: str
) -> None:
    """Neither hides the other, however long the one that passes is."""
    run = good_run(other_ruleset)
    last(run, "run_stop").metadata["status"] = "aborted"
    bad = [record.text(other_ruleset) + "\n" for record in run]
    good = good_lines(ours)
    lines = {
        "before": bad + good,
        "behind": good + bad,
        "between": good[:60] + bad + good[60:],
    }
    for ruleset in (None, "0.6.0", "4.0.0"):
        check = checked(tmp_path / "log.txt", lines[order], ruleset)
        assert check.verdict in ("FAIL", "CANNOT_READ")


# --- floods and junk ------------------------------------------------------------------------------


def junk(number: int, time_ms: float) -> str:
    """What no rule reads: text of other programs, and records of keys without rules."""
    tracked = Record(f"tracked_{number}", {"x": number}, time_ms, status="aborted")
    record = tracked.text("4.0.0")
    texts = (
        record,
        f"[1,0]<stdout>:{record}",
        record.replace('": ', '":') + "\r",
        "\x1b[A 35 %|###\r 36 %|####",
        '{"key": "run_stop", "metadata": {"status": "aborted"}}',
        "::: MLLOG is the token, + grep :::MLLOG' log.txt",
        "\0" * 50 + "\xff",
        "x" * 3000,
    )
    return texts[number % len(texts)] + "\n"


@pytest.mark.parametrize("violation", [None, "lars_epsilon", "seed"])
def test_what_no_rule_reads_changes_no_verdict(
    tmp_path: Path, violation: str | None
) -> None:
    run = good_run()
    put(violation or "", "x")(run)
    clean = checked(tmp_path / "log.txt", [r.text("4.0.0") + "\n" for r in run])
    rng = random.Random(violation)
    lines = []
    for record in run:
        lines.append(record.text("4.0.0") + "\n")
        count = rng.choice([0, 0, 1, 500])
        lines += [junk(rng.randrange(10_000), record.time_ms) for _ in range(count)]
    check = checked(tmp_path / "log.txt", lines)
    names = [finding.name for finding in check.findings]
    assert names == [finding.name for finding in clean.findings]
    assert check.verdict == clean.verdict


def test_more_records_than_a_run_has_leave_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parse, "MOST_RECORDS", 1000)
    lines = good_lines()
    seed = next(line for line in lines if '"seed"' in line)
    check = checked(tmp_path / "log.txt", [*lines[:12], *[seed] * 1000, *lines[12:]])
    assert check.verdict == CANNOT_READ
    assert "1,000" in check.cause
    assert "line 1001" in check.cause
    assert "seed" in check.cause


def test_more_lines_than_a_log_has_leave_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parse, "MOST_LINES", 1000)
    check = checked(tmp_path / "log.txt", [*good_lines(), *["\n"] * 1000])
    assert check.verdict == CANNOT_READ
    assert "more than 1,000 lines" in check.cause


# --- hostile content ------------------------------------------------------------------------------


def judge(folder: Path, content: bytes, ruleset: str | None) -> None:
    """Check, and look at everything that a user sees of it."""
    path = folder / "result_0.txt"
    path.write_bytes(content)
    check = check_log(path, ruleset, official=False)
    assert check.cause
    assert {finding.severity for finding in check.findings} <= set(SEVERITIES)
    json.dumps(check.to_dict(), allow_nan=False)
    assert "".join(check_lines(check)).isprintable()


@pytest.mark.parametrize(
    "content",
    [
        b":::MLLOG " + b"[" * 100_000,
        b":::MLLOG {" + b"\x00" * 50,
        b":::MLL 1.2.3 run_start: {}",
        b":::MLL 1 run_start: " + b"9" * 10_000,
        b'\r:::MLLOG {"key": "a", "time_ms": 1, "value": 1, "metadata": {}}\r\r',
    ],
    ids=range(5),
)
def test_hostile_bytes(tmp_path: Path, content: bytes) -> None:
    judge(tmp_path, content, None)


def test_letters_that_stand_for_many_cost_no_more_than_others() -> None:
    """U+FDFA is a sentence of 18 letters."""
    name = "\ufdfa" * 300_000
    tracemalloc.start()
    try:
        assert len(_plain_letters(name)) < 200
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000
    assert _plain_letters("\u200b" * 1000 + "run_\uff53top") == "runstop"


@pytest.mark.parametrize("key", sorted(checked_keys()))
def test_a_hostile_value_has_no_effect(tmp_path: Path, key: str) -> None:
    run = good_run()
    for record in run:
        if record.key == key:
            controls = "\x1b]0;owned\x07\x1b[2J\n\x00\u202e"
            record.value = f"{controls}$(touch {tmp_path}/evil)"
            record.metadata = dict.fromkeys(record.metadata, record.value)
    log_text = "".join(record.text("4.0.0") + "\n" for record in run)
    judge(tmp_path, log_text.encode(), "4.0.0")
    assert [path.name for path in tmp_path.iterdir()] == ["result_0.txt"]


@pytest.mark.parametrize(
    "key", ["submission_division", "submission_benchmark", "opt_name"]
)
@pytest.mark.parametrize("count", [0, 3])
def test_the_official_checker_never_sees_an_unsafe_name(
    tmp_path: Path, key: str, count: int
) -> None:
    """It makes file names of these values."""
    run = good_run()
    good = find(run, key)
    index = run.index(good)
    run[index : index + 1] = [good] * count + [
        Record(key, "../../../evil", good.time_ms)
    ]
    check = check_log(write(tmp_path / "log.txt", run), "4.0.0")
    assert check.verdict == "FAIL"
    assert check.official is not None
    assert check.official.verdict == "NOT_RUN"
    assert check.official.messages == (f"unsafe value of {key}",)


@pytest.mark.parametrize(
    "line",
    [
        ':::MLL 1.5 opt_name:\xa0{"value": "../../evil", "metadata": {}}',
        ':::MLLOG {"key": "opt_name", "time_ms": true, "value": "../../evil", "metadata": {}}',
        ':::MLLOG {"key": "a", "key": "opt_name", "time_ms": 1, "value": "../evil", "metadata": 1}',
    ],
)
def test_nor_a_name_that_we_cannot_read(tmp_path: Path, line: str) -> None:
    ruleset = "0.6.0" if ":::MLL " in line else "4.0.0"
    path = tmp_path / "log.txt"
    path.write_bytes("".join([*good_lines(ruleset), line + "\n"]).encode("latin-1"))
    check = check_log(path, ruleset, official=True)
    assert check.official is not None
    assert check.official.verdict == "NOT_RUN"


def test_a_check_loads_no_other_command(tmp_path: Path) -> None:
    log = write(tmp_path / "result_0.txt", good_run())
    arguments = ["rn50", "log", "check", str(log), "--no-official"]
    script = f"""import sys
from rn50.cli.entry import main
sys.argv = {arguments!r}
try:
    main()
finally:
    others = {{"numpy", "rn50.cli.bench", "rn50.cli.data"}} & set(sys.modules)
    print(others, file=sys.stderr)
"""
    done = finished([sys.executable, "-c", script], timeout=60)
    assert done.stderr == "set()\n"
    assert "PASS" in done.stdout


def test_an_open_pipe_is_read_once() -> None:
    done = finished(
        [
            sys.executable,
            "-m",
            "rn50.cli.entry",
            "log",
            "check",
            "/dev/stdin",
            "--ruleset",
            "4.0",
        ],
        input="".join(good_lines()),
        timeout=60,
    )
    assert done.returncode == 0, done
    assert done.stdout.startswith("PASS /dev/stdin: converged")
    assert "NOT_RUN: read from a pipe" in done.stdout


def test_a_file_that_has_no_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.touch()
    os.truncate(path, 6 << 30)
    (tmp_path / "link").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo")
    for name, what in (
        ("log.txt", "1,073,741,824 bytes"),
        ("link", "found c"),
        ("fifo", "found p"),
    ):
        check = check_log(tmp_path / name)
        assert check.verdict == CANNOT_READ
        assert what in check.cause


# --- the ruleset ----------------------------------------------------------------------------------


def test_records_of_the_other_format_do_not_choose_the_rules(tmp_path: Path) -> None:
    foreign_record = ':::MLL 1560000000.0 junk: {"value": 1, "metadata": {}}\n'
    check = checked(
        tmp_path / "log.txt", [*good_lines(), *[foreign_record] * 500], None
    )
    assert (check.verdict, check.ruleset) == ("PASS", "4.0.0")
