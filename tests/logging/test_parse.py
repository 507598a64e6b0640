"""The parser on every shape of line that published logs have, and on some that none has."""

import gzip
import lzma
from pathlib import Path

import pytest

from rn50.logging.events import CannotRead, Log
from rn50.logging.parse import read_log

START = '{"namespace": "", "time_ms": 1714000000000, "event_type": "POINT_IN_TIME", '


def record(key: str = "seed", value: str = "1") -> str:
    return f':::MLLOG {START}"key": "{key}", "value": {value}, "metadata": {{"lineno": 1}}}}'


def read(folder: Path, content: bytes | str) -> Log:
    path = folder / "log.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_log(path)


@pytest.mark.parametrize(
    "prefix",
    [
        b"",
        b"[1,0]<stdout>:",
        b"I0518 21:33:07.3 427370 mllog.py:168] ",
        b"\x1b[A[",
        b"\xff\xfe\x80",
    ],
)
@pytest.mark.parametrize("after", [b"\n", b"\r\n", b"  \n", b"\rprogress 3 %\r\n"])
def test_text_around_a_record_does_not_matter(
    tmp_path: Path, prefix: bytes, after: bytes
) -> None:
    log = read(
        tmp_path, b"\xef\xbb\xbfhello\n" + (prefix + record().encode() + after) * 2
    )
    assert [(e.line, e.key, e.value) for e in log.events] == [
        (2, "seed", 1),
        (3, "seed", 1),
    ]
    assert log.problems == []
    assert log.lines == 3


def test_v06_seconds_become_milliseconds(tmp_path: Path) -> None:
    line = 'x :::MLL 1560820747.803 run_start : {"metadata": {"lineno": 4}, "value": null}\n'
    log = read(tmp_path, line + line.replace("start :", "stop:"))
    assert log.dialect == "MLL"
    first = log.first("run_start")
    assert first is not None
    assert first[:5] == (1, 1560820747803.0, "run_start", None, {"lineno": 4})
    assert len(log.events) == 2


def test_records_of_one_line_are_all_read(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        record("a") + record("b") + " noise " + record("c") + "\n" + record("d"),
    )
    assert [event.key for event in log.events] == ["a", "b", "c", "d"]
    assert {problem.fault for problem in log.problems} == {"trailing"}
    assert log.joined == (1, 1)


@pytest.mark.parametrize(
    ("broken", "fault", "key", "lost"),
    [
        (record("opt_name")[:-9], "truncated", "opt_name", True),
        (record("opt_name", '{"a": 1, "a": 1}')[:-9], "truncated", "opt_name", True),
        (record("opt_name")[:-9] + "\n", "torn", "opt_name", True),
        (record("opt_name") + " \x1b[0m\n", "trailing", "opt_name", False),
        (record("a")[:40] + record("b") + "\n", "torn", None, True),
        (':::MLLOG ["a"]\n', "shape", None, True),
        (':::MLLOG {"key": 3, "time_ms": 1}\n', "type", None, True),
        (':::MLLOG {"key": "a"}\n', "missing", "a", True),
        (record().replace("1714000000000", "null"), "type", "seed", True),
        (record().replace("1714000000000", "1e300"), "type", "seed", True),
        (record().replace("1714000000000", "NaN"), "type", "seed", True),
        (record().partition(', "metadata"')[0] + "}", "missing", "seed", False),
        (record("a", "[" * 5000 + "]" * 5000), "type", None, True),
        (record("a", "9" * 5000), "torn", "a", True),
        (':::MLLOG{"key": "seed"}\n', "token", "seed", True),
        (record().replace("MLLOG ", "MLLOG\t") + "\n", "token", "seed", True),
        (":::MLLOG", "truncated", None, True),
        (":::ML", "truncated", None, True),
    ],
)
def test_what_is_not_whole_is_a_problem(
    tmp_path: Path, broken: str, fault: str, key: str | None, lost: bool
) -> None:
    log = read(tmp_path, record("first") + "\n" + broken)
    assert log.problems[0]._replace(message="") == (2, fault, key, "", lost)
    assert [event.value for event in log.all("first")] == [1]


def test_text_as_a_stamp_is_read_as_the_official_parser_does(tmp_path: Path) -> None:
    (event,) = read(tmp_path, record().replace("1714000000000", '"15.5"')).events
    assert event.time_ms == 15.5


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (b"", "empty file (0 bytes)"),
        (b"hello\nworld\n", "found none in 2 lines"),
        (gzip.compress(b"hello\n", mtime=0), "gzip data; as text: zcat "),
        (lzma.compress(b"hello\n"), "xz data; as text: xzcat "),
        ("hello\n".encode("utf-16"), "UTF-16 data; as text: iconv -f UTF-16"),
        (b"a\0b", "binary data"),
        (b":::MLLOG {\n", "line 1"),
    ],
)
def test_what_is_no_log_is_named(tmp_path: Path, content: bytes, phrase: str) -> None:
    with pytest.raises(CannotRead, match=r"log\.txt: ") as error:
        read(tmp_path, content)
    assert phrase in error.value.reason


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/nowhere", "/", "a\0b"])
def test_what_is_no_file_is_named(name: str) -> None:
    with pytest.raises(CannotRead, match="cannot read: "):
        read_log(Path(name))


def test_a_long_record_is_read_and_a_longer_one_is_skipped(tmp_path: Path) -> None:
    long = record("long", '"' + "x" * 1_000_000 + '"')
    longer = record("longer", '"' + "x" * 3_000_000 + '"')
    endless = record("endless", '"' + "x" * 20_000_000 + '"')
    log = read(tmp_path, f"{long}\n{longer}\n{endless}\n{record('after')}\n")
    assert [(event.line, event.key) for event in log.events] == [
        (1, "long"),
        (4, "after"),
    ]
    assert [(p.line, p.fault, p.key) for p in log.problems] == [
        (2, "long", "longer"),
        (3, "long", None),
    ]


def test_of_keys_that_are_not_asked_for_none_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(f"{record('a')}\n{record('b')}\n{record('a')[:50]}\n")
    log = read_log(path, frozenset({"b"}))
    assert [(event.key, event.order) for event in log.events] == [("b", 2)]
    assert log.problem_count == 1  # a torn record is an error whatever its key
    with pytest.raises(CannotRead):
        read_log(tmp_path / "none.txt", frozenset({"b"}))


def test_the_lines_of_a_large_log_have_their_numbers(tmp_path: Path) -> None:
    flood = [record("loss", '{"a": 0.5}') + "\n"] * 20_000
    odd_lines = (
        record("run_st\u043ep"),
        record("loss", "1,"),
        record("seed", "7"),
        record("loss") * 2,
    )
    for number, line in enumerate(odd_lines):
        flood[15_000 + number] = line + "\n"
    path = tmp_path / "log.txt"
    path.write_text("".join(flood))
    log = read_log(path, frozenset({"seed"}))
    assert [(event.line, event.key, event.value) for event in log.events] == [
        (15_003, "seed", 7)
    ]
    assert [event.line for event in log.odd_keys.values()] == [15_001]
    assert [(problem.line, problem.fault) for problem in log.problems] == [
        (15_002, "torn")
    ]
    assert log.joined == (1, 15_004)
    assert log.lines == 20_000
