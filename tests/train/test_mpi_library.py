"""Which MPI Horovod was linked to, on libraries that are built here and on Horovod's own."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rn50.config.engines import Family
from rn50.train.communication.mpi_library import (
    MpiLibrary,
    family_of,
    horovods_mpi,
    library_version,
    linked_mpi,
)

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++ on this machine"
)
ASK = """extern "C" int MPI_Get_library_version(char *text, int *length) {
  const char *words = "%s"; for (*length = 0; (*text++ = *words++); ++*length); return 0; }"""
MPICH = "MPICH Version: 4.0.2"


def compile_library(path: Path, source: str, *options: str) -> Path:
    """A shared library whose own name is that of its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = f"g++ -shared -fPIC -x c++ - -x none -o {path} -Wl,-soname,{path.name}"
    subprocess.run(
        [*command.split(), "-Wl,--no-as-needed", *options],
        input=source,
        text=True,
        check=True,
    )
    return path


def test_the_library_is_the_loaders_choice(tmp_path: Path) -> None:
    mpi = compile_library(tmp_path / "own/lib/libmpi.so.12", ASK % MPICH)
    options = ("-Wl,-rpath,$ORIGIN/own/lib", str(mpi))
    linked = compile_library(tmp_path / "mpi_lib.so", "", *options)
    assert linked_mpi(linked) == MpiLibrary(str(mpi), "mpich")


def test_horovods_own() -> None:
    mpi = horovods_mpi()
    if mpi is None:
        pytest.skip("Horovod was built without MPI here")
    assert Path(mpi.path).is_file()
    assert mpi.family == family_of(library_version(mpi.path))


@pytest.mark.parametrize(
    ("name", "family"), [("libmpi.so.40", "openmpi"), ("libmpi_usempif08.so.40", None)]
)
def test_whose_it_is_by_its_name(
    name: str, family: Family | None, tmp_path: Path
) -> None:
    """libmpi.so.40 gives no version; the other, which is for Fortran, comes with MPI's own."""
    mpi = compile_library(tmp_path / name, ASK % "")
    options = (f"-Wl,-rpath,{tmp_path}", str(mpi))
    linked = compile_library(tmp_path / "mpi_lib.so", "", *options)
    expected = MpiLibrary(str(mpi), family) if family else None
    assert linked_mpi(linked) == expected


@pytest.mark.parametrize(
    ("version", "family"),
    [
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "openmpi"),
        ("Intel(R) MPI Library 2021.9 for Linux* OS", "intel"),
        ("MPI VERSION    : CRAY MPICH version 8.1.28 (ANL base 3.4a2)", "cray"),
        (
            "MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7 12:34:45 CDT 2022",
            "mpich",
        ),
        ("", None),
    ],
)
def test_what_a_library_says_of_itself(version: str, family: str | None) -> None:
    assert family_of(version) == family


def test_what_is_no_library_is_linked_to_nothing(tmp_path: Path) -> None:
    library = tmp_path / "mpi_lib.so"
    library.write_bytes(b"\x7fELF\x01\x01" + bytes(100))
    assert linked_mpi(library) is None
