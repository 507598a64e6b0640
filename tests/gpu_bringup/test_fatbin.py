"""Reading and thinning fat binaries, good ones and spoilt ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.gpu_bringup import fatbin
from rn50.gpu_bringup.fatbin import Entry, FatbinError, architectures, entries
from rn50.gpu_bringup.thin import thin, unloadable
from tests.gpu_bringup.fat import Code, fat_binary, library

FIRST = [
    Code(2, 50, b"A" * 40),
    Code(2, 90, b"B" * 24, 0x2000),
    Code(1, 90, b"C" * 16, 0x8000),
]
SECOND = [Code(2, 80, b"D" * 8), Code(1, 80, b"E" * 72), Code(1, 50, b"F" * 8)]
RELOCATABLE = [Code(2, 86, b"G" * 8), Code(1, 100, b"H" * 8), Code(8, 86, b"I" * 8)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two fat binaries with padding between them, one relocatable, text that looks like one."""
    both = fat_binary(FIRST) + bytes(24) + fat_binary(SECOND) + bytes(8)
    return library(
        tmp_path_factory.mktemp("fat") / "libmade.so",
        nv_fatbin=both,
        other=fat_binary(FIRST),
        nv_relfatbin=fat_binary(RELOCATABLE),
    )


def test_every_entry_is_found_where_it_is(made: Path) -> None:
    content = made.read_bytes()
    kinds = {1: "PTX", 2: "ELF", 8: "8"}
    found = list(entries(made))
    assert [(e.kind, e.sm, e.compressed) for e in found] == [
        (kinds[code.kind], code.sm, code.flags != 0) for code in FIRST + SECOND + RELOCATABLE
    ]
    for entry, code in zip(found, FIRST + SECOND + RELOCATABLE, strict=True):
        assert content[entry.offset : entry.offset + entry.size] == code.payload
        assert content[entry.fatbin : entry.fatbin + 4] == b"\x50\xed\x55\xba"
    assert [e.section for e in found] == [".nv_fatbin"] * 6 + ["__nv_relfatbin"] * 3
    assert len({e.fatbin for e in found}) == 3
    assert architectures(made) == {"ELF": {50, 80, 86, 90}, "PTX": {50, 80, 90, 100}, "8": {86}}


def test_a_library_without_gpu_code_has_no_entries(tmp_path: Path) -> None:
    assert not list(entries(library(tmp_path / "libplain.so", other=b"text")))


# --- spoilt -------------------------------------------------------------------------------------


def spoil(made: Path, folder: Path, place: int, content: bytes, end: int | None = None) -> Path:
    whole = bytearray(made.read_bytes())
    whole[place : place + len(content)] = content
    path = folder / "libspoilt.so"
    path.write_bytes(whole[:end])
    return path


def test_what_is_spoilt_is_said_in_one_line(made: Path, tmp_path: Path) -> None:
    first = next(entries(made)).fatbin
    for place, content, words in [
        (0, b"MZ", "a 64-bit little-endian ELF expected"),
        (first, b"\1\2\3\4", f"byte {first}: a fat binary expected, found 04030201"),
        (first + 8, b"\xff" * 8, f"byte {first}: a fat binary of 16 + "),
        (first + 16 + 4, b"\0", f"byte {first + 16}: an entry of 0 + 40 bytes expected"),
        (first + 16 + 8, b"\xff" * 7, f"byte {first + 16}: an entry of 64 + "),
    ]:
        path = spoil(made, tmp_path, place, content)
        with pytest.raises(FatbinError, match=words.replace("+", r"\+")) as error:
            list(entries(path))
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)
    for size in (0, 63, 64, made.stat().st_size - 1):
        with pytest.raises(FatbinError, match="expected, found"):
            list(entries(spoil(made, tmp_path, 0, b"", size)))


@given(data=st.data())
def test_no_content_raises_anything_else(
    made: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    size = made.stat().st_size
    headers = [(0, 64), (size - 1000, size)]
    headers += [(entry.fatbin, entry.fatbin + 100) for entry in entries(made)]
    low, high = data.draw(st.sampled_from(headers))
    place = data.draw(st.integers(low, high - 1))
    content = data.draw(st.binary(min_size=1, max_size=8))
    end = data.draw(st.sampled_from([None, place + 1]))
    path = spoil(made, tmp_path_factory.mktemp("spoilt"), place, content[: size - place], end)
    try:
        found = list(entries(path))
    except FatbinError:
        return
    assert all(e.offset + e.size <= path.stat().st_size for e in found)


def test_as_a_program_it_prints_a_table_and_names_what_is_no_library(
    made: Path, tmp_path: Path
) -> None:
    script = str(fatbin.__file__)
    done = subprocess.run(
        [sys.executable, script, str(made)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0] == f"{made}: 9 entries, 0.0 MB"
    assert any(
        line.split()[:4] == [".nv_fatbin", "ELF", "sm_90", "1"] for line in done.stdout.splitlines()
    )
    (tmp_path / "text").write_text("no library")
    done = subprocess.run(
        [sys.executable, script, str(tmp_path / "text")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"fatbin: error: {tmp_path}/text: an ELF file expected, found 10 bytes\n"


# --- thinning -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sm", "codes", "kept"),
    [
        (90, "ELF 80, ELF 90, PTX 90", "ELF 90"),
        (90, "ELF 80, PTX 80", "PTX 80"),  # NCCL 2.21.5
        (90, "ELF 80, ELF 86", ""),  # MXNet 1.9.1
        (90, "PTX 50, PTX 80, PTX 120", "PTX 80"),
        (90, "ELF 100, PTX 100", ""),
        (90, "ELF 90, ELF 90, PTX 80", "ELF 90, ELF 90"),
        (90, "ELF 80, 8 80", "8 80"),
        (89, "ELF 80, ELF 86, ELF 90, PTX 90", "ELF 86"),
        (80, "ELF 80, ELF 86", "ELF 80"),
        (75, "ELF 70, ELF 80, PTX 80", "ELF 70"),
        (0, "ELF 50, PTX 52", ""),
    ],
)
def test_what_stays_is_the_newest_that_the_gpu_can_load(sm: int, codes: str, kept: str) -> None:
    found = [
        Entry("", 0, place, 1, kind, int(version), False)
        for place, (kind, version) in enumerate(code.split() for code in codes.split(", "))
    ]
    dropped = unloadable(found, sm)
    assert ", ".join(f"{e.kind} {e.sm}" for e in found if e not in dropped) == kept


def test_each_fat_binary_is_decided_by_itself() -> None:
    codes = [("ELF", 90, 0), ("PTX", 90, 0), ("ELF", 80, 1), ("PTX", 80, 1)]
    found = [
        Entry("", group, place, 1, kind, sm, False) for place, (kind, sm, group) in enumerate(codes)
    ]
    assert [(e.kind, e.sm) for e in unloadable(found, 90)] == [("PTX", 90), ("ELF", 80)]


def test_thinning_zeroes_payloads_and_keeps_every_other_byte(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "libthin.so"
    left_out = thin(made, copy, 90)
    dropped = unloadable(entries(made), 90)
    assert {(e.kind, e.sm) for e in dropped} == {
        *(("ELF", 50), ("PTX", 90), ("ELF", 80), ("PTX", 50), ("ELF", 86), ("PTX", 100)),
    }
    expected = bytearray(made.read_bytes())
    for entry in dropped:
        expected[entry.offset : entry.offset + entry.size] = bytes(entry.size)
    assert left_out == sum(entry.size for entry in dropped)
    assert copy.read_bytes() == expected != made.read_bytes()
    assert list(entries(copy)) == list(entries(made))


def test_what_is_left_out_takes_no_disk(tmp_path: Path) -> None:
    payload = b"x" * (1 << 20)
    big = library(
        tmp_path / "libbig.so", nv_fatbin=fat_binary([Code(2, 50, payload), Code(2, 90, b"y")])
    )
    assert thin(big, tmp_path / "libthin.so", 90) == len(payload)
    assert (tmp_path / "libthin.so").stat().st_size == big.stat().st_size
    assert (tmp_path / "libthin.so").stat().st_blocks * 512 < len(payload) // 4
