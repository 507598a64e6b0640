"""`scripts/setup.sh --system-mxnet`: another Python, whose MXNet has another name and place, as if
built from source; the same weights, bit for bit."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import read_json

PACKAGES = (
    "numpy",
    "horovod",
    "cloudpickle",
    "psutil",
    "yaml",
    "packaging",
    "requests",
    "urllib3",
)
PACKAGES += ("idna", "certifi", "charset_normalizer", "graphviz")
STANDARD = (
    "pip",
    "setuptools",
    "pkg_resources",
    "_distutils_hack",
    "distutils-precedence.pth",
)


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """A copy of this Python with MXNet, Horovod and what they need in place of its packages."""
    base = Path(sys.base_prefix)
    if base in (Path("/usr"), Path("/usr/local")):
        pytest.skip(
            f"a Python in a folder of its own expected, to copy it, found {base}"
        )
    python_folder = tmp_path / "python"
    ours = Path(sysconfig.get_path("platlib"))
    shutil.copytree(base, python_folder, symlinks=True)
    site = python_folder / ours.relative_to(sys.prefix)
    for path in site.iterdir():
        if not path.name.startswith(STANDARD):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in PACKAGES:
        for path in ours.glob(f"{name}*"):
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, site / path.name)
    built = tmp_path / "mxnet"
    shutil.copytree(ours / "mxnet", built / "python/mxnet", symlinks=True)
    for name in ("include", "src"):
        (built / "python/mxnet" / name).rename(built / name)
    (built / "lib").mkdir()
    for library in (built / "python/mxnet").glob("lib*.so*"):
        library.rename(built / "lib" / library.name)
    (site / "built.pth").write_text(f"{built / 'python'}\n")
    dist_info = site / "site_mxnet-1.9.1.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: site-mxnet\nVersion: 1.9.1\n"
    )
    (dist_info / "top_level.txt").write_text("mxnet\n")
    return python_folder / "bin" / f"python3.{sys.version_info.minor}"


def test_a_run_with_the_mxnet_that_is_there(
    other_python: Path,
    smoke_run: Callable[[str], Path],
    root: Path,
    smoke_data: Path,
    tmp_path: Path,
) -> None:
    launch = ("launch", "smoke", "seed=1", f"data.path={smoke_data}")
    expected = read_json(smoke_run("gloo") / "result.json")["weights_digest"]
    checkout = tmp_path / "checkout"
    environment = tmp_path / "environment"
    subprocess.run(["git", "clone", "-q", root, checkout], check=True)
    subprocess.run(
        [checkout / "scripts/setup.sh", "--system-mxnet", "--into", environment],
        env=os.environ | {"PYTHON": str(other_python)},
        check=True,
    )
    for launcher in ("mpirun", "gloo"):
        results = tmp_path / launcher
        command = (environment / "bin/rn50", *launch, f"system.results={results}")
        subprocess.run([*command, "--launcher", launcher], cwd=checkout, check=True)
        (folder,) = results.glob("*/*")
        assert read_json(folder / "result.json")["weights_digest"] == expected
        packages = read_json(folder / "environment.json")["packages"]
        assert packages["site-mxnet"] == "1.9.1"
        assert "mxnet" not in packages
