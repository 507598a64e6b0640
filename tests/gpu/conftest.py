"""The fake CUDA and real ranks on it: `make gpu-test`, in an environment of its own.

What it does not prove: the numbers of MXNet's kernels, which are machine code of a GPU and compute
nothing here, and how cuDNN rounds; DALI's GPU kernels (images are decoded by its CPU pipeline),
NCCL itself (sums go through shared memory), and any speed.
"""

import json
import os
import sys
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rn50.config.load import load
from rn50.launch.launch_plan import Options, plan_launch
from rn50.launch.run import load_for_launch, run_plan
from tests.gpu.runs import Body, Done, GpuRun, answer_of
from tests.waiting import output_of

HERE = Path(__file__).parent
DRIVER = Path("/proc/driver/nvidia/version")
STUBS = {
    "cublasSetMathMode",
    "cudnnDropoutBackward",
    "cudnnSetDropoutDescriptor",
    "cudnnRestoreDropoutDescriptor",
    "cusolverDnCreate",
    "cusolverDnSetStream",
    "cuModuleUnload",
}
"""What runs may call although the fake answers success and does nothing more."""
NOT_PROVEN = (
    "fake CUDA: proves types, shapes, contexts, lifetimes, launches, start-up, Horovod's calls of "
    "NCCL and what is computed of cuDNN's calls; does not prove the numbers of MXNet's kernels, "
    "DALI's GPU kernels, NCCL between GPUs, or any speed"
)


def pytest_report_header() -> str | None:
    return NOT_PROVEN if _has_gpu_mxnet() else None


def _has_gpu_mxnet() -> bool:
    try:
        return bool(metadata.version("mxnet-cu112"))
    except metadata.PackageNotFoundError:
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not _has_gpu_mxnet():
        reason = "mxnet-cu112 expected: make gpu-test"
    elif DRIVER.exists():
        reason = "no driver expected: Horovod would open the real one beside the fake"
    else:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the environment's packages."""
    spec = find_spec("mxnet")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


@pytest.fixture(scope="session")
def fake(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake, built for this environment: a driver's libraries, as a machine's."""
    folder = tmp_path_factory.mktemp("fakecuda")
    command = [sys.executable, str(HERE / "fake" / "build.py"), str(site), str(folder)]
    output_of(command)
    return folder


@pytest.fixture(scope="session")
def kernels(root: Path) -> str:
    """The text of all our own kernels."""
    (source,) = root.glob("train/*/device.cu")
    return f"#define TRAINED_NORMS\n{source.read_text()}"


@pytest.fixture(scope="session")
def emulated(fake: Path, root: Path) -> Path:
    """They compiled for the CPU: FAKECUDA_KERNELS. MXNet, which this imports, needs a driver."""
    driver = {"LD_PRELOAD": str(fake / "libcuda.so.1"), "LD_LIBRARY_PATH": str(fake)}
    printed = output_of(
        [
            sys.executable,
            "-c",
            "from tests.train.emulated import build; print(build())",
        ],
        env=os.environ | driver,
        cwd=root,
    )
    return Path(printed.splitlines()[-1])


@pytest.fixture
def fake_environment(fake: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes started from here on find a driver and a GPU: the fake."""
    monkeypatch.setenv("LD_PRELOAD", str(fake / "libcuda.so.1"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.fixture
def computing(
    fake_environment: Path, emulated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is started from here on computes, on a Hopper."""
    monkeypatch.setenv("FAKECUDA_COMPUTE", "1")
    monkeypatch.setenv("FAKECUDA_LAZY", "1")
    monkeypatch.setenv("FAKECUDA_KERNELS", str(emulated))
    monkeypatch.setenv("FAKECUDA_CAPABILITY", "9.0")


@pytest.fixture
def body(fake_environment: Path, emulated: Path) -> Body:
    """`body(do=..., environment={}, **options)`: plan_body.py in a process of its own."""

    def start(
        environment: dict[str, str] | None = None, **options: Any
    ) -> dict[str, Any]:
        return answer_of(
            (), options, FAKECUDA_KERNELS=str(emulated), **(environment or {})
        )

    return start


@pytest.fixture
def gpu_run(
    fake_environment: Path,
    smoke_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> GpuRun:
    """`launch` of a config on fake GPUs: `gpu_run(*overrides, config=, launcher=, **script)`.
    Nothing is computed, unless a test sets FAKECUDA_COMPUTE beforehand."""
    monkeypatch.setenv("FAKECUDA_COMPUTE", os.environ.get("FAKECUDA_COMPUTE", "0"))
    numbers = iter(range(1000))

    def run(
        *overrides: str,
        config: str = "smoke",
        launcher: str | None = None,
        resume: Path | None = None,
        gpus: int = 1,
        **script: Any,
    ) -> Done:
        monkeypatch.setenv("FAKECUDA_DEVICES", str(gpus))
        folder = tmp_path / f"job{next(numbers)}"
        folder.mkdir()
        (folder / "script.json").write_text(json.dumps(script))
        base = ("system.device=gpu", "data.decoder=cpu", f"data.path={smoke_data}")
        settings = [*base, f"system.results={folder}", "seed=1", *overrides]
        loaded = (
            load(config, settings)
            if resume
            else load_for_launch(config, settings, None)
        )
        program = (
            sys.executable,
            str(HERE / "rank.py"),
            "--script",
            str(folder / "script.json"),
        )
        options = Options(launcher, program=program, resume=resume)
        # This process has no driver, as its ranks will.
        plan = replace(plan_launch(loaded, options), obstacles=[])
        _, late = run_plan(plan, lambda _: lambda *_: None)
        late.release()
        out = resume or max(folder.glob("*/*/"), key=os.path.getmtime)
        reports = [json.loads(p.read_text()) for p in sorted(out.glob("fake_*.json"))]
        assert len(reports) == loaded.run.system.world_size
        for report in reports:
            assert report["errors"] == []
            stubs = {
                key.removeprefix("stub ") for key in report["counts"] if "stub " in key
            }
            assert stubs <= STUBS
        return Done(out, json.loads((out / "result.json").read_text()), reports)

    return run
