"""Benchmarks that a signal stops: one last line, exit 130, nothing left; and how they end else."""

import shlex
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import Rn50
from tests.waiting import leave_nothing, wait_until

pytestmark = pytest.mark.slow


def _has_mxnet(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        if process.name().startswith("python"):  # not the loader, which `ldd` asks
            return any("libmxnet" in mapped.path for mapped in process.memory_maps())
    return False


@pytest.mark.parametrize(
    ("number", "by", "launcher"),
    [(signal.SIGINT, "Ctrl-C", "mpirun"), (signal.SIGTERM, "SIGTERM", "gloo")],
)
def test_a_benchmark_on_ranks(
    rn50: Rn50,
    smoke_data: Path,
    tmp_path: Path,
    number: signal.Signals,
    by: str,
    launcher: str,
) -> None:
    arguments = [
        "bench",
        "loop",
        "smoke",
        "--rounds",
        "1000",
        "--steps",
        "5",
        "--launcher",
        launcher,
        f"data.path={smoke_data}",
        f"system.results={tmp_path / 'results'}",
        "--json",
        "--plot",
        str(tmp_path / "plot.svg"),
    ]
    bench = rn50.start(*arguments)
    began = psutil.Process(bench.pid)
    wait_until(lambda: any(map(_has_mxnet, began.children(recursive=True))))
    bench.send_signal(number)
    _, err = bench.communicate(timeout=120)
    assert bench.returncode == 130, err
    assert "Traceback" not in err
    assert f"stopped by {by}" in err, err
    assert err.endswith(f"{shlex.join(arguments)}\n"), err
    leave_nothing(tmp_path)
    assert list((tmp_path / "results").iterdir()) == []
    assert not (tmp_path / "plot.svg").exists()
