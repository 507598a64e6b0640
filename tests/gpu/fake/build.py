"""Builds the fake CUDA of this folder for one environment: `python build.py SITE_PACKAGES FOLDER`.

FOLDER gets libcuda.so.1, which holds everything, and libcuda.so, a link to it: put it in front by
LD_PRELOAD, and into LD_LIBRARY_PATH as the driver that the machine lacks. What MXNet and Horovod
import and no source here defines answers success and is counted as "stub NAME".
"""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = sorted(HERE.glob("*.cc"))
PACKAGES = ("cuda_runtime", "cudnn", "cublas", "nccl")
LIBRARY = "libcuda.so.1"
_IMPORTED = re.compile(
    r"(__cuda|cuda|cudnn|cublas|cufft|curand|cusolver|cusparse|nccl|cu[A-Z])\w*"
)
_RUN_TIME_COMPILER = re.compile(r"nvrtc|nvtx")  # the real ones serve


def build(site: Path, folder: Path) -> Path:
    """Compile the fake for the wheels in `site`; returns the library's path."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(partial(_compile, site=site, folder=folder), SOURCES))
    libraries = [
        site / "mxnet" / "libmxnet.so",
        *site.glob("horovod/mxnet/mpi_lib*.so"),
    ]
    imported = set().union(
        *(_symbols(library, "--undefined-only") for library in libraries)
    )
    defined = set().union(
        *(_symbols(path, "--defined-only", dynamic=False) for path in objects)
    )
    names = sorted(name for name in imported - defined if _IMPORTED.fullmatch(name))
    stubs = folder / "stubs.cc"
    stubs.write_text(
        '#include "fake.h"\n'
        + "".join(
            f'FAKE int {name}() {{ fake::count("stub {name}"); return 0; }}\n'
            for name in names
        )
    )
    objects.append(_compile(stubs, site, folder))
    library = folder / LIBRARY
    _run(
        "g++", "-shared", f"-Wl,-soname,{LIBRARY}", *objects, "-o", library, "-lpthread"
    )
    link = folder / "libcuda.so"
    link.unlink(missing_ok=True)
    link.symlink_to(LIBRARY)
    return library


def _compile(source: Path, site: Path, folder: Path) -> Path:
    object_file = folder / f"{source.stem}.o"
    headers = [f"-I{site / 'nvidia' / name / 'include'}" for name in PACKAGES]
    # GNU's C++: a product and its sum become one instruction, where the processor has it.
    options = (
        "-std=gnu++17",
        "-O2",
        "-fPIC",
        "-march=native",
        "-fvisibility=hidden",
        f"-I{HERE}",
    )
    _run("g++", *options, *headers, "-c", source, "-o", object_file)
    return object_file


def _symbols(path: Path, kind: str, *, dynamic: bool = True) -> set[str]:
    listed = _run("nm", *(["-D"] if dynamic else []), kind, path)
    names = {
        line.split()[-1].partition("@")[0]
        for line in listed.splitlines()
        if line.strip()
    }
    return {name for name in names if not _RUN_TIME_COMPILER.match(name)}


def _run(*command: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command[:1]))} failed:\n{done.stderr[-3000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), Path(sys.argv[2])))
