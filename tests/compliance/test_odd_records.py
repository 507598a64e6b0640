"""Records that are not what they seem, at any place of a log: nothing vanishes without a word."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import logging
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlperf_logging.compliance_checker import mlp_compliance

from rn50.compliance.check_log import Check, check_log
from rn50.compliance.rule import code_of
from rn50.config.finding import Finding
from rn50.logging.parse import CannotRead, read_log
from tests.compliance.log_text import Edit, Record, find, good_run, put, shift, write

Lines = list[str]
PLACES = 12
"""Of each kind so many places are tried, drawn by its name."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def good_lines(ruleset: str = "4.0.0") -> Lines:
    return [record.text(ruleset) + "\n" for record in good_run(ruleset)]


def official_passes(path: Path, ruleset: str) -> bool:
    """In this process, for speed."""
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", ruleset, True, False)
    with contextlib.redirect_stdout(io.StringIO()):
        valid, *_ = mlp_compliance.main(str(path), f"training_{ruleset}/common.yaml", checker)
    return bool(valid)


def checked(path: Path, lines: Lines, ruleset: str = "4.0.0") -> Check:
    path.write_bytes("".join(lines).encode("utf-8", "surrogatepass"))
    return check_log(path, ruleset, official=False)


def of(found: Check, rule: str) -> Finding:
    return next(finding for finding in found.findings if finding.name == rule)


@pytest.mark.parametrize(
    ("once", "twice"),
    [
        ('"value": ', '"value": 0.123, "value": '),
        ('"key": ', '"key": "harmless", "key": '),
        ('"time_ms": ', '"time_ms": 5, "time_ms": '),
        ('"metadata": ', '"metadata": {"status": "aborted"}, "metadata": '),
        ('"lineno": 7', '"lineno": 7, "epoch_num": 4711, "epoch_num": 3'),
        ('"lineno": 7', '"lineno": 7, "status": 1, "status": true'),
    ],
)
def test_two_values_under_one_name(tmp_path: Path, once: str, twice: str) -> None:
    """In any record that a rule reads. (The official checker takes the last.)"""
    rng = random.Random(twice)
    for at in rng.sample(range(len(good_lines())), PLACES):
        lines = good_lines()
        lines[at] = lines[at].replace(once, twice)
        found = checked(tmp_path / "log.txt", lines)
        assert found.verdict == "FAIL"
        assert (of(found, "broken-record").line, "twice" in found.cause) == (at + 1, True)


def test_one_value_twice_is_a_note(tmp_path: Path) -> None:
    lines = good_lines()
    lines[3] = re.sub(r'("value": "[a-z]+", )', r"\1\1", lines[3])
    found = checked(tmp_path / "log.txt", lines)
    assert (found.verdict, of(found, "odd-record").line) == ("PASS", 4)
    lines = good_lines()
    lines[5] = lines[5].replace('"lineno": 7', '"lineno": 7, "lineno": 8')  # no rule reads it
    found = checked(tmp_path / "log.txt", lines)
    assert (found.verdict, of(found, "odd-record").line) == ("PASS", 6)


@pytest.mark.parametrize("odd", ["", "\t", "  \t"[2:], "\xa0", ":", ": ", "\x00", "\x0b", "\u2003"])
def test_no_single_blank_after_the_token(tmp_path: Path, odd: str) -> None:
    """Of a record that counts the official checker says that it is missing, or nothing at all."""
    rng = random.Random(odd)
    for at in rng.sample(range(len(good_lines())), PLACES):
        lines = good_lines()
        lines[at] = lines[at].replace(":::MLLOG ", f":::MLLOG{odd}")
        found = checked(tmp_path / "log.txt", lines)
        assert found.verdict == "FAIL", found
        assert of(found, "broken-record").line == at + 1
        assert not any(f.message.startswith("no ") for f in found.findings)
    lines = good_lines()
    lines.insert(50, lines[0].replace(":::MLLOG ", f":::MLLOG{odd}").replace('"sub', '"xsub'))
    found = checked(tmp_path / "log.txt", lines)
    assert (found.verdict, of(found, "odd-record").line) == ("PASS", 51)


@pytest.mark.parametrize(
    "prose", ["+ grep :::MLLOG' log.txt", "token ':::MLLOG' {x}", ":::MLLOG {2}"]
)
def test_prose_about_the_format_is_no_record(tmp_path: Path, prose: str) -> None:
    lines = good_lines()
    lines.insert(7, prose.replace("MLLOG {2}", "MLLOG-{2}") + "\n")
    assert checked(tmp_path / "log.txt", lines).findings == ()


def odd_forms() -> dict[str, Callable[[str], str]]:
    return {
        "tab after the token": lambda t: t.replace(":::MLL ", ":::MLL\t"),
        "two blanks": lambda t: t.replace(":::MLL ", ":::MLL  "),
        "no blank": lambda t: t.replace(":::MLL ", ":::MLL"),
        "negative stamp": lambda t: t.replace(":::MLL ", ":::MLL -"),
        "exponent": lambda t: re.sub(r"MLL [\d.]+", "MLL 1.5e9", t),
        "infinite stamp": lambda t: re.sub(r"MLL [\d.]+", "MLL inf", t),
        "no blank after the colon": lambda t: t.replace(": {", ":{", 1),
        "a dash in the key": lambda t: t.replace("_", "-", 1),
        "no stamp": lambda t: re.sub(r"MLL [\d.]+", "MLL", t),
    }


@pytest.mark.parametrize("form", odd_forms())
def test_a_record_of_v06_in_another_form(tmp_path: Path, form: str) -> None:
    """The official parser refuses the whole log; none of them vanishes as prose."""
    rng = random.Random(form)
    path = tmp_path / "log.txt"
    keyed = [n for n, text in enumerate(good_lines("0.6.0")) if "_" in text.split(":")[-3]]
    for at in rng.sample(keyed or range(20), min(PLACES, len(keyed) or 20)):
        lines = good_lines("0.6.0")
        lines[at] = odd_forms()[form](lines[at])
        if lines[at] == good_lines("0.6.0")[at]:
            continue
        found = checked(path, lines, "0.6.0")
        assert found.verdict == "FAIL"
        assert of(found, "broken-record").line == at + 1
        assert not official_passes(path, "0.6.0")


def test_prose_fails_a_log_of_v06_as_it_does_officially(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    lines = [*good_lines("0.6.0"), "+ grep :::MLL log.txt\n"]
    assert checked(path, lines, "0.6.0").verdict == "FAIL"
    assert not official_passes(path, "0.6.0")
    assert checked(path, [*good_lines(), "+ grep :::MLL log.txt\n"]).findings == ()


# --- stamps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["run_start", "run_stop", "eval_accuracy", "init_stop", "seed"])
@pytest.mark.parametrize("stamp", [-1, -0.5, -1e12, 1.7e15, 1.7e18, 5e12])
def test_a_stamp_that_is_no_time(tmp_path: Path, key: str, stamp: float) -> None:
    run = good_run()
    find(run, key).time_ms = stamp
    found = check_log(write(tmp_path / "log.txt", run), "4.0.0", official=False)
    assert found.verdict == "FAIL"
    assert of(found, "impossible-stamp").severity == "error"
    assert f"({key})" in of(found, "impossible-stamp").message


@pytest.mark.parametrize(("times", "words"), [(1e3, "microseconds?"), (1e6, "nanoseconds?")])
def test_a_log_in_microseconds_is_read_and_fails(tmp_path: Path, times: float, words: str) -> None:
    run = good_run()
    for record in run:
        record.time_ms *= times
    found = check_log(write(tmp_path / "log.txt", run), official=False)
    assert (found.verdict, words in found.cause) == ("FAIL", True), found.cause
    assert sum(finding.name == "impossible-stamp" for finding in found.findings) == 1


@pytest.mark.parametrize("ruleset", ["0.6.0", "4.0.0"])
def test_a_log_before_1970_is_read_and_fails(tmp_path: Path, ruleset: str) -> None:
    run = good_run(ruleset)
    for record in run:
        record.time_ms *= -1
    found = check_log(write(tmp_path / "log.txt", run, ruleset), ruleset, official=False)
    assert found.verdict == "FAIL"
    assert "before 1970" in of(found, "impossible-stamp").message


@pytest.mark.parametrize("stamp", ["9" * 400, "9" * 30, "1.2.3", "NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("ruleset", ["0.6.0", "4.0.0"])
def test_a_stamp_without_end(tmp_path: Path, stamp: str, ruleset: str) -> None:
    lines = good_lines(ruleset)
    pattern = r"(?<=MLL )[\d.]+" if ruleset == "0.6.0" else r'(?<="time_ms": )[\d.]+'
    lines[-1] = re.sub(pattern, stamp, lines[-1])
    found = checked(tmp_path / "log.txt", lines, ruleset)
    assert found.verdict == "FAIL"
    assert of(found, "broken-record").line == len(lines)
    assert "inf s" not in found.cause


def test_a_text_as_stamp_is_a_note(tmp_path: Path) -> None:
    lines = [re.sub(r'"time_ms": ([\d.]+)', r'"time_ms": "\1"', line) for line in good_lines()]
    found = checked(tmp_path / "log.txt", lines)
    assert found.verdict == "PASS"
    assert f"{len(lines)} records" in of(found, "impossible-stamp").message
    assert official_passes(tmp_path / "log.txt", "4.0.0")


@pytest.mark.parametrize("stamp", ["-1", "NaN", "1700000000000000"])
def test_an_odd_stamp_of_a_key_without_rules_is_a_note(tmp_path: Path, stamp: str) -> None:
    lines = good_lines()
    odd = next(line for line in lines if '"seed"' in line).replace('"seed"', '"tracked"')
    lines.insert(40, re.sub(r'(?<="time_ms": )[\d.]+', stamp, odd))
    found = checked(tmp_path / "log.txt", lines)
    assert found.verdict == "PASS"
    assert {finding.name for finding in found.findings} <= {"impossible-stamp", "odd-record"}
    assert found.findings


def test_many_small_steps_back_are_one_large_one(tmp_path: Path) -> None:
    """A ladder of records that nobody reads, each a little earlier, hides no step of minutes."""
    run = good_run()
    at = len(run) // 2
    step_ms = 900.0
    ladder = [Record("x", 1, run[at].time_ms - n * step_ms) for n in range(1, 11)]
    for record in run[at + 1 :]:
        record.time_ms -= 10 * step_ms
    run[at + 1 : at + 1] = ladder
    found = check_log(write(tmp_path / "log.txt", run), "4.0.0", official=False)
    assert of(found, "time-goes-back").severity == "policy"
    assert "most by 9 s" in of(found, "time-goes-back").message


# --- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [b"\0" * 4096, b"\x01\x02\x03", b"\x7f"])
def test_bytes_that_no_text_has_are_a_note(tmp_path: Path, junk: bytes) -> None:
    lines = [line.encode() for line in good_lines()]
    path = tmp_path / "log.txt"
    path.write_bytes(b"".join([*lines[:60], junk, *lines[60:]]))
    found = check_log(path, "4.0.0", official=False)
    assert (found.verdict, of(found, "odd-bytes").line) == ("PASS", 61)


def test_a_lost_page_explains_what_is_missing(tmp_path: Path) -> None:
    """4 KiB of zeros over a part of the log, as a crashed machine leaves it."""
    content = "".join(good_lines()).encode()
    for start in range(0, len(content) - 4096, 4096):
        path = tmp_path / "log.txt"
        path.write_bytes(content[:start] + b"\0" * 4096 + content[start + 4096 :])
        found = check_log(path, "4.0.0", official=False)
        assert found.verdict in ("FAIL", "POLICY")
        assert "odd-bytes" in {finding.name for finding in found.findings}
        first = found.findings[0]
        assert (
            first.severity == "policy"
            or first.name == "broken-record"
            or first.caused_by == code_of("odd-bytes")
        ), found.findings
        for finding in found.findings:
            if finding.found == "none":
                assert finding.caused_by in (code_of("broken-record"), code_of("odd-bytes")), (
                    finding
                )


# --- two formats --------------------------------------------------------------------------------


def failed(ruleset: str) -> Lines:
    run = good_run(ruleset)
    for record in run:
        if record.key == "run_stop":
            record.metadata["status"] = "aborted"
    return [record.text(ruleset) + "\n" for record in run]


@pytest.mark.parametrize("order", ["before", "behind", "between"])
@pytest.mark.parametrize(("one", "other"), [("4.0.0", "0.6.0"), ("0.6.0", "4.0.0")])
def test_a_run_in_each_format(tmp_path: Path, one: str, other: str, order: str) -> None:
    """Neither hides the other, however long the one that passes is."""
    good, bad = good_lines(one), failed(other)
    good[60:60] = good_lines(one)[40:50] * 50 if order == "between" else []
    lines = {
        "before": bad + good,
        "behind": good + bad,
        "between": good[:60] + bad + good[60:],
    }[order]
    for given in (None, "0.6.0", "4.0.0"):
        path = tmp_path / "log.txt"
        path.write_text("".join(lines))
        assert check_log(path, given, official=False).verdict in ("FAIL", "CANNOT_READ")


def test_records_of_the_other_format_do_not_choose_the_rules(tmp_path: Path) -> None:
    junk = ':::MLL 1560000000.0 junk: {"value": 1, "metadata": {}}\n'
    found = checked(tmp_path / "log.txt", [*good_lines(), *[junk] * 500])
    assert (found.verdict, found.ruleset) == ("PASS", "4.0.0")
    assert of(found, "odd-record").severity == "note"


# --- the short way and the long way -------------------------------------------------------------


def spaced(line: str) -> str:
    """The same record in other words: the fast path does not know it."""
    token, content = line.split(" ", 1)
    return f"{token} {json.dumps(json.loads(content), separators=(',', ':'))}\n"


def escaped(line: str) -> str:
    return line.replace('"key": "r', '"key": "\\u0072').replace('"key": "s', '"key": "\\u0073')


@pytest.mark.parametrize("way", [spaced, escaped])
def test_other_words_mean_the_same(tmp_path: Path, way: Callable[[str], str]) -> None:
    edits: list[Edit] = [put("global_batch_size", 1), put("seed", None), shift("run_stop", -1e9)]
    for edit in edits:
        run = good_run()
        run[100:100] = [find(run, "seed")] * 700
        run[100:100] = [find(run, "run_stop" if edit is edits[2] else "epoch_stop")] * 600
        edit(run)
        plain = [record.text("4.0.0") + "\n" for record in run]
        one = checked(tmp_path / "log.txt", plain)
        other = checked(tmp_path / "log.txt", [way(line) for line in plain])
        assert one.findings == other.findings
        assert one.run is not None and other.run is not None
        assert one.run.log.events == other.run.log.events
        assert one.run.log.counts == other.run.log.counts


# --- what a log is read from --------------------------------------------------------------------


def test_a_fifo_does_not_hold_it_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "result_0.txt")
    with pytest.raises(CannotRead, match="found a FIFO"):
        read_log(tmp_path / "result_0.txt")
    assert check_log(tmp_path / "result_0.txt").verdict == "CANNOT_READ"


@pytest.mark.parametrize("name", ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_an_open_pipe_is_read_once(tmp_path: Path, name: str) -> None:
    packed = gzip.compress("".join(good_lines()).encode())
    code = "from rn50.cli.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "log", "check", name, "--ruleset", "4.0"],
        input=gzip.decompress(packed),
        capture_output=True,
        timeout=60,
    )
    text = done.stdout.decode()
    assert done.returncode == 0, done
    assert text.startswith(f"PASS {name}: converged")
    assert "NOT_RUN: read from a pipe, which can be read once" in text


def test_a_file_that_has_no_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with path.open("wb") as file:
        file.truncate(6 << 30)
    found = check_log(path)
    assert found.verdict == "CANNOT_READ"
    assert "1,073,741,824 bytes" in found.cause
    (tmp_path / "link").symlink_to("/dev/zero")
    assert "a device" in check_log(tmp_path / "link").cause


# --- the official checker's safety --------------------------------------------------------------


@pytest.mark.parametrize("key", ["submission_division", "submission_benchmark", "opt_name"])
@pytest.mark.parametrize("count", [3, 1200])
def test_the_official_checker_sees_no_unsafe_name_in_a_flood(
    tmp_path: Path, key: str, count: int
) -> None:
    rng = random.Random(key)
    run = good_run()
    copies = [find(run, key)] * count
    evil = Record(key, "../../../evil", copies[0].time_ms)
    copies.insert(rng.randrange(count), evil)
    run[10:10] = copies
    found = check_log(write(tmp_path / "log.txt", run), "4.0.0")
    assert found.official is not None
    assert found.official.verdict == "NOT_RUN"


@pytest.mark.parametrize("size", [100_000, 2_000_000])
def test_the_official_checker_sees_no_huge_record(tmp_path: Path, size: int) -> None:
    """Whose key is a guess: the official parser takes the last one."""
    content = {
        "key": "harmless",
        "time_ms": 1,
        "metadata": {},
        "value": "x" * size,
    }
    huge = json.dumps(content)[:-1] + ', "key": "opt_name", "value": "../../evil"}'
    found = checked(tmp_path / "log.txt", good_lines())
    path = tmp_path / "log.txt"
    path.write_text("".join(good_lines()) + f":::MLLOG {huge}\n")
    found = check_log(path, "4.0.0", official=True)
    assert found.official is not None
    assert found.official.verdict == "NOT_RUN"
    assert found.verdict == "FAIL"


# --- the ruleset --------------------------------------------------------------------------------


def large_batch() -> str:
    run = good_run()
    put("global_batch_size", 86_016)(run)
    put("gradient_accumulation_steps", None)(run)
    return "".join(record.text("4.0.0") + "\n" for record in run)


@pytest.mark.parametrize("ruleset", ["0.7.0", "1.0.0", "v0.7", "'3.0.0'"])
def test_a_config_beside_a_log_does_not_choose_its_ruleset(tmp_path: Path, ruleset: str) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text(large_batch())
    alone = check_log(path, official=False)
    (tmp_path / "config.yaml").write_text(f"ruleset: {ruleset}\n")
    found = check_log(path, official=False)
    assert (found.verdict, found.ruleset) == (alone.verdict, "4.0.0")
    assert [f for f in found.findings if f.name != "ruleset-contradicted"] == list(alone.findings)
    assert of(found, "ruleset-contradicted").severity == "note"
    assert check_log(path, "0.7", official=False).ruleset == "0.7.0"
    assert "ruleset-contradicted" not in {
        f.name for f in check_log(path, "0.7", official=False).findings
    }


@pytest.mark.parametrize("folder", ["v0.7", "training_results_v1.0", "v3.1"])
def test_a_folder_of_an_earlier_round_is_not_believed(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    path = write(tmp_path / folder / "result_0.txt", good_run())
    found = check_log(path, official=False)
    assert (found.ruleset, found.ruleset_source) == ("4.0.0", "dates in the log")
    assert (found.verdict, of(found, "ruleset-contradicted").severity) == ("POLICY", "policy")


def test_a_config_says_what_nothing_else_does(tmp_path: Path) -> None:
    """A log whose stamps are all 0: only its config knows. A link out of the folder does not."""
    run = good_run()
    for record in run:
        record.time_ms = 0
    path = write(tmp_path / "result_0.txt", run)
    (tmp_path / "config.yaml").write_text("ruleset: 3.0.0\n")
    found = check_log(path, official=False)
    assert (found.ruleset, found.ruleset_source) == ("3.0.0", "config.yaml beside it")
    assert (
        "nothing but config.yaml beside it says the ruleset"
        in of(found, "ruleset-contradicted").message
    )
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "config.yaml").rename(other / "config.yaml")
    (tmp_path / "config.yaml").symlink_to(other / "config.yaml")
    inside = check_log(path, official=False)
    assert inside.ruleset == "3.0.0"
    (tmp_path / "config.yaml").unlink()
    (tmp_path / "config.yaml").symlink_to("/etc/../etc/hostname")
    assert check_log(path, official=False).ruleset == "4.0.0"
    (tmp_path / "config.yaml").unlink()
    os.mkfifo(tmp_path / "config.yaml")
    assert check_log(path, official=False).ruleset == "4.0.0"


@pytest.mark.parametrize("years", [7, 15, 22])
@pytest.mark.parametrize("place", ["", "v4.0"])
def test_a_log_from_before_mlperf_is_no_log_without_dates(
    tmp_path: Path, years: int, place: str
) -> None:
    """Neither its config nor its folder makes it one that passes."""
    run = good_run()
    for record in run:
        record.time_ms -= years * 365 * 86_400_000
    (tmp_path / place).mkdir(exist_ok=True)
    path = write(tmp_path / place / "result_0.txt", run)
    (tmp_path / place / "config.yaml").write_text("ruleset: 0.7.0\n")
    found = check_log(path, official=False)
    assert (found.verdict, found.ruleset) == ("POLICY", "4.0.0")
    assert of(found, "impossible-stamp").severity == "policy"
    assert "before MLPerf began (2018)" in of(found, "impossible-stamp").message
    assert check_log(path, "4.0.0", official=False).verdict == "POLICY"


@pytest.mark.parametrize(
    ("path", "ruleset"),
    [
        ("training_results_v4.0/us/results/v3.1/resnet", "4.0.0"),
        ("v3.1/training_results_v4.0/us/results/box/resnet", "4.0.0"),
        ("v4.0/us/results/v3.1/resnet", "4.0.0"),
    ],
)
def test_a_submitter_names_no_round(tmp_path: Path, path: str, ruleset: str) -> None:
    """A system called v3.1 is not held to 3.1.0."""
    (tmp_path / path).mkdir(parents=True)
    found = check_log(write(tmp_path / path / "result_0.txt", good_run("3.0.0")), official=False)
    assert (found.ruleset, found.verdict) == (ruleset, "POLICY")
    assert "folders of the path say 4.0.0 and 3.1.0" in of(found, "ruleset-contradicted").message


def test_a_token_inside_a_text_fails_as_it_does_officially(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    for text in (":::MLLOG x", "x:::MLLOG "):
        lines = good_lines()
        lines.insert(3, lines[0].replace("submission_benchmark", "note").replace("resnet", text))
        assert checked(path, lines).verdict == "FAIL"
        assert not official_passes(path, "4.0.0")
    lines[3] = lines[3].replace("MLLOG", "MLLOGS")
    assert checked(path, lines).verdict == "PASS"
    assert official_passes(path, "4.0.0")


@pytest.mark.parametrize("blank", ["\xa0", "\x85", "\x1c"])
def test_the_official_checker_sees_no_name_that_we_do_not(tmp_path: Path, blank: str) -> None:
    """Blanks of Latin-1 after the colon, which its parser takes for blanks."""
    lines = good_lines("0.6.0")
    evil = ':::MLL 1.5 opt_name:@{"value": "../../evil", "metadata": {}}\n'
    path = tmp_path / "log.txt"
    content = "".join([*lines, evil]).encode().replace(b":@", b":" + blank.encode("latin-1"))
    path.write_bytes(content)
    found = check_log(path, "0.6.0")
    assert found.official is not None
    assert found.official.verdict == "NOT_RUN"


@pytest.mark.parametrize("stamp", ["true", '"1e999"', "1e999", "NaN"])
def test_the_official_checker_sees_no_log_that_we_cannot_read(tmp_path: Path, stamp: str) -> None:
    """Its parser takes stamps that are none, so it would read what a log of them names."""
    path = tmp_path / "log.txt"
    body = f'"time_ms": {stamp}, "value": "../../evil", "metadata": {{}}'
    path.write_text(f':::MLLOG {{"key": "submission_division", {body}}}\n' * 3)
    found = check_log(path, "4.0.0", official=True)
    assert found.verdict == "CANNOT_READ"
    assert found.official is not None
    assert found.official.verdict == "NOT_RUN"
